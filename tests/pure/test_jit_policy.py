"""The pure parts of the JIT: states, heat, policies, reasons."""

from __future__ import annotations

from itertools import product

import pytest

from hotblock.jit.heat import DEFAULT_THRESHOLD, INFERENCE_THRESHOLD, is_hot
from hotblock.jit.policy import Backoff, Degrade, Gain
from hotblock.jit.reasons import Reason
from hotblock.jit.states import TRANSITIONS, Effect, Event, IllegalTransitionError, State, diagram, step
from hotblock_farm.supervisor import WorkerSettings


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=lambda x: x.name)
def test_every_pair_of_state_and_event(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) == TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in {state.name}"):
            step(state, event)


def test_code_runs_only_after_it_has_been_compared() -> None:
    into = {(s, e): effect for (s, e), (after, effect) in TRANSITIONS.items() if after is State.INSTALLED}
    assert into == {(State.READY, Event.AGREED): Effect.INSTALL}


def test_every_way_out_of_installed_uninstalls() -> None:
    out = [effect for (s, _), (after, effect) in TRANSITIONS.items() if s is State.INSTALLED and after is not s]
    assert out
    assert set(out) == {Effect.UNINSTALL}


def test_every_state_can_be_reached_and_nothing_is_asked_twice() -> None:
    assert {after for after, _ in TRANSITIONS.values()} == set(State)
    assert [s for (s, _), (_, effect) in TRANSITIONS.items() if effect is Effect.REQUEST] == [State.COLD]
    assert all(f"{s.name} --> " in diagram() for s in State)


@pytest.mark.requirement("J1")
def test_hot_after_the_threshold_and_then_at_a_class_s_second_entry() -> None:
    assert (DEFAULT_THRESHOLD, INFERENCE_THRESHOLD) == (8, 3)
    asked = [entry for entry in range(1, 20) if is_hot(entry, entry, DEFAULT_THRESHOLD)]
    assert asked[0] == DEFAULT_THRESHOLD
    assert not is_hot(100, 1, DEFAULT_THRESHOLD)
    assert is_hot(100, 2, DEFAULT_THRESHOLD)
    assert is_hot(1, 1, 1)


def test_waits_double_and_are_jittered() -> None:
    backoff = Backoff(first=1, longest=10, jitter=0.2)
    assert [backoff.wait(n, 0.5) for n in (1, 2, 3, 4, 5, 500)] == [1, 2, 4, 8, 10, 10]
    assert backoff.wait(1, 0.0) == pytest.approx(0.8)
    assert backoff.wait(1, 0.999999) == pytest.approx(1.2, abs=1e-3)


def _late(degrade: Degrade, requests: int, now: float) -> None:
    for number in range(requests):
        degrade.request(number, now)


@pytest.mark.requirement("J11")
def test_degrades_after_twenty_misses_that_wait_too_long() -> None:
    degrade = Degrade()
    _late(degrade, 5, 0.0)
    for _ in range(100):
        degrade.miss(1.0)  # patience is 2 s: nothing is late yet
    assert not degrade.degraded
    for _ in range(Degrade.MISSES - 1):
        degrade.miss(3.0)
    assert not degrade.degraded
    degrade.miss(3.0)
    assert degrade.degraded
    assert not degrade.may_request(3.0)


def test_a_hit_or_too_few_requests_or_enough_completions_do_not_degrade() -> None:
    hits = Degrade()
    _late(hits, 5, 0.0)
    for _ in range(200):
        hits.miss(3.0)
        hits.hit()
    few = Degrade()
    _late(few, 4, 0.0)
    for _ in range(200):
        few.miss(3.0)
    done = Degrade()
    _late(done, 10, 0.0)
    for number in range(5):
        done.answer(number, 0.1, completed=True)
    for _ in range(200):
        done.miss(3.0)
    assert [hits.degraded, few.degraded, done.degraded] == [False, False, False]


def test_probes_end_a_degradation_with_hysteresis() -> None:
    degrade = Degrade()
    _late(degrade, 6, 0.0)
    for _ in range(Degrade.MISSES):
        degrade.miss(3.0)
    assert degrade.degraded
    now = degrade.next_probe
    assert degrade.may_request(now)
    assert not degrade.may_request(now)  # one probe at a time
    degrade.request(100, now)
    degrade.answer(100, now + 0.1, completed=True)
    assert degrade.degraded  # one is not enough
    now = degrade.next_probe
    assert degrade.may_request(now)
    degrade.request(101, now)
    degrade.answer(101, now + 0.1, completed=True)
    assert not degrade.degraded


def test_a_starved_job_counts_for_nothing() -> None:
    degrade = Degrade()
    _late(degrade, 30, 0.0)
    for number in range(30):
        degrade.forget(number)
    for _ in range(100):
        degrade.miss(60.0)
    assert not degrade.degraded


def test_code_is_retired_only_with_enough_samples_of_one_size() -> None:
    gain = Gain()
    for _ in range(Gain.SAMPLES):
        gain.add(gain.interpreted, 5, 1.0)
        gain.add(gain.compiled, 6, 2.0)
    assert not gain.is_lost(5)
    assert not gain.is_lost(6)
    for _ in range(Gain.SAMPLES):
        gain.add(gain.compiled, 5, 0.98)
    assert gain.is_lost(5)
    faster = Gain({3: [1.0] * Gain.SAMPLES}, {3: [0.9] * Gain.SAMPLES})
    assert not faster.is_lost(3)


@pytest.mark.requirement("J10")
def test_the_pool_follows_cores() -> None:
    assert [WorkerSettings.for_cores(cores).workers for cores in (1, 2, 4, 16, 64)] == [1, 1, 1, 4, 16]


def test_reasons_are_words_with_a_text() -> None:
    assert all(reason.value.replace("_", "").isalpha() and reason.text for reason in Reason)
    assert Reason("guard") is Reason.GUARD

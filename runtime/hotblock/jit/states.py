"""The life of a version (a segment for one shape class) as a table. Pure: no clock, no I/O, no transition anywhere else.

Rule 1: whatever changes a version's state is an event of this table; a pair that is not in it raises and changes nothing.
Rule 2: effects are returned as data; `jit.driver` runs them.
Rule 3: a late result never gets here: requests carry a generation, and the driver drops what belongs to an older one.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["TRANSITIONS", "Effect", "Event", "IllegalTransitionError", "State", "diagram", "step"]


class State(Enum):
    COLD = "cold"  # interpreted, nothing asked for
    REQUESTED = "requested"  # interpreted, a compile is under way
    READY = "ready"  # loaded, to be compared with the interpreter at the next entry
    INSTALLED = "installed"  # entries run the code
    COOLDOWN = "cooldown"  # interpreted until some time has passed
    BANNED = "banned"  # interpreted for good
    RETIRED = "retired"  # interpreted: the code was no faster


class Event(Enum):
    HOT = "hot"  # entered often enough
    ARTIFACT = "artifact"  # verified and mapped
    FOUND = "found"  # the same, and nobody had to ask for it: a cache had it
    REFUSED = "refused"  # the compiler has no translation
    FAILED = "failed"  # a failure that may be chance
    FAILED_AGAIN = "failed_again"  # the third in a row
    LOST = "lost"  # no answer: worker gone, hung, timed out
    STARVED = "starved"  # the job got no processor
    COOLED = "cooled"  # the time is over
    AGREED = "agreed"  # the comparison found no difference
    DIFFERED = "differed"  # it found one
    EVICTED = "evicted"
    NO_GAIN = "no_gain"
    DROPPED = "dropped"  # the switch, the deny list, a closed runtime


class Effect(Enum):
    REQUEST = "request"
    CHECK = "check"
    INSTALL = "install"
    UNINSTALL = "uninstall"
    CANCEL = "cancel"
    WAIT = "wait"
    WARN = "warn"
    NOTHING = "nothing"


TRANSITIONS: Final[dict[tuple[State, Event], tuple[State, Effect]]] = {
    (State.COLD, Event.HOT): (State.REQUESTED, Effect.REQUEST),
    (State.COLD, Event.FOUND): (State.READY, Effect.CHECK),
    (State.COLD, Event.DROPPED): (State.COLD, Effect.NOTHING),
    (State.REQUESTED, Event.ARTIFACT): (State.READY, Effect.CHECK),
    (State.REQUESTED, Event.REFUSED): (State.BANNED, Effect.NOTHING),
    (State.REQUESTED, Event.FAILED): (State.COOLDOWN, Effect.WAIT),
    (State.REQUESTED, Event.FAILED_AGAIN): (State.BANNED, Effect.WARN),
    (State.REQUESTED, Event.LOST): (State.COOLDOWN, Effect.WAIT),
    (State.REQUESTED, Event.STARVED): (State.COOLDOWN, Effect.WAIT),
    (State.REQUESTED, Event.DROPPED): (State.COLD, Effect.CANCEL),
    (State.READY, Event.AGREED): (State.INSTALLED, Effect.INSTALL),
    (State.READY, Event.DIFFERED): (State.BANNED, Effect.WARN),
    (State.READY, Event.EVICTED): (State.COLD, Effect.UNINSTALL),
    (State.READY, Event.DROPPED): (State.COLD, Effect.UNINSTALL),
    (State.INSTALLED, Event.EVICTED): (State.COLD, Effect.UNINSTALL),
    (State.INSTALLED, Event.NO_GAIN): (State.RETIRED, Effect.UNINSTALL),
    (State.INSTALLED, Event.DROPPED): (State.COLD, Effect.UNINSTALL),
    (State.COOLDOWN, Event.COOLED): (State.COLD, Effect.NOTHING),
    (State.COOLDOWN, Event.DROPPED): (State.COLD, Effect.NOTHING),
    (State.BANNED, Event.DROPPED): (State.BANNED, Effect.NOTHING),
    (State.RETIRED, Event.DROPPED): (State.RETIRED, Effect.NOTHING),
}


class IllegalTransitionError(Exception):
    """An event that cannot happen in a state. A fault of ours, never of a user."""


def step(state: State, event: Event) -> tuple[State, Effect]:
    """What an event makes of a state. Raises IllegalTransitionError."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} in {state.name}") from None


def diagram() -> str:
    """STATES.md."""
    lines = [
        "# Life of a version",
        "",
        "Generated from `hotblock.jit.states`; `make gen` writes it.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> COLD",
    ]
    lines += [
        f"    {state.name} --> {after.name}: {event.value} / {effect.value}"
        for (state, event), (after, effect) in TRANSITIONS.items()
    ]
    lines += ["```", ""]
    return "\n".join(lines)

"""Programs whose lengths, layouts or values tempt a compiler into an error, against the interpreter (J6, J9).

Each case runs on its first inputs until it is compiled, then on others of the same class: what must hold for every input of
a class is easily taken from the one that the code was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.native import InProcess

import hotblock as hb
from hotblock.jit.check import difference
from hotblock.vm import LayoutTable, TensorValue

Case = tuple[Callable[..., Any], list[tuple[Any, ...]]]

_rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return _rng.standard_normal(shape).astype(np.float32)


def _offsets(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def equal_lengths_written_differently(a: Any, b: Any) -> Any:
    n = a.shape[0] * a.shape[1]
    m = b.shape[0] * b.shape[1]
    return hb.reshape(hb.exp(a), (n,)) + hb.reshape(hb.exp(b), (m,)) * 2.0


def a_broadcast_that_is_none(a: Any, b: Any) -> Any:
    n = a.shape[0] * a.shape[1]
    m = b.shape[0] * b.shape[1]
    return hb.broadcast_to(hb.reshape(hb.exp(a), (n,)), (m,)) + hb.reshape(hb.exp(b), (m,))


def a_length_that_is_a_host_int(a: Any, b: Any, k: Any) -> Any:
    return hb.reshape(hb.tanh(a), (a.shape[0], k)) + b


def zeros_of_a_host_length(a: Any, n: Any) -> Any:
    return hb.zeros((n,), dtype=hb.float32) + hb.reshape(hb.exp(a), (a.shape[0] * a.shape[1],))


def memory_that_crosses_chunks(a: Any, b: Any, c: Any) -> Any:
    doubled = b * 2.0
    return c @ hb.softmax(a @ doubled, axis=1)


def rows_that_are_columns(a: Any) -> Any:
    moved = hb.mean(a, axis=1) + a
    return moved, hb.softmax(moved, axis=1)


def a_merge_through_a_transpose(a: Any, b: Any, c: Any) -> Any:
    product = a * b
    return hb.softmax(c, axis=1) + hb.matrix_transpose(product), c + hb.matrix_transpose(c)


def a_sum_over_turned_axes(a: Any) -> Any:
    turned = hb.permute_dims(hb.exp(a), (0, 2, 1))
    return hb.sum(turned, axis=(1, 2), keepdims=True) * a, turned


def rows_taken_of_what_was_just_made(a: Any, index: Any) -> Any:
    table = a * 2.0
    return hb.take(table, index, axis=0) + table


def offsets_that_are_a_view(q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return hb.attention(q, k, v, hb.flip(offsets, axis=0))


def offsets_that_are_made(q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return hb.attention(q, k, v, offsets * 2)


def flattened_behind_padding(x: Any, w: Any) -> Any:
    return hb.reshape(hb.expand_dims(x @ w, axis=0), (-1,)) * 2.0


def the_sign_of_zero(t: Any, s: Any) -> Any:
    return t / -s


def a_power_of_a_host_scalar(t: Any, s: Any) -> Any:
    return t * hb.sqrt(s * s + 1.0)


CASES: dict[str, Case] = {
    "equal lengths written differently": (
        equal_lengths_written_differently,
        [
            (normal(4, 6), normal(4, 6)),
            (normal(4, 6), normal(3, 8)),
            (normal(4, 6), normal(5, 5)),
            (normal(1, 1), normal(1, 1)),
        ],
    ),
    "a broadcast that is none": (
        a_broadcast_that_is_none,
        [(np.zeros((4, 6), np.float32), normal(4, 6)), (normal(4, 6), normal(3, 8)), (normal(1, 1), normal(3, 8))],
    ),
    "a length that is a host int": (
        a_length_that_is_a_host_int,
        [
            (normal(60), normal(60, 60), 1),
            (normal(60, 2), normal(60, 2), 2),
            (normal(60), normal(60, 60), 2),
            (normal(1), normal(1, 1), 1),
        ],
    ),
    "zeros of a host length": (
        zeros_of_a_host_length,
        [(normal(4, 6), 24), (normal(4, 6), 1), (normal(1, 1), 7), (normal(4, 6), 0), (normal(4, 6), -1)],
    ),
    "memory that crosses chunks": (
        memory_that_crosses_chunks,
        [
            (normal(8, 8), normal(8, 16), normal(8, 8)),
            *((normal(n, n), normal(n, 16), normal(n, n)) for n in (225, 600)),
        ],
    ),
    "rows that are columns": (rows_that_are_columns, [(normal(9, 9),), (normal(300, 300),)]),
    "a merge through a transpose": (
        a_merge_through_a_transpose,
        [
            (np.zeros((8, 8), np.float32), normal(8, 8), normal(8, 8)),
            (normal(9, 9), normal(9, 9), normal(9, 9)),
            (normal(1, 1), normal(1, 1), normal(1, 1)),
        ],
    ),
    "a sum over turned axes": (a_sum_over_turned_axes, [(normal(2, 5, 5),), (normal(2, 3, 7),), (normal(2, 1, 7),)]),
    "rows taken of what was just made": (
        rows_taken_of_what_was_just_made,
        [
            (normal(6, 4), np.arange(6)),
            (normal(6, 4), np.arange(6)[::-1].copy()),
            (normal(500, 4), np.arange(500)[::-1]),
        ],
    ),
    "offsets that are a view": (
        offsets_that_are_a_view,
        [
            (normal(6, 2, 4), normal(6, 2, 4), normal(6, 2, 4), _offsets(6, 2, 0)),
            (normal(9, 2, 4), normal(9, 2, 4), normal(9, 2, 4), _offsets(9, 0)),
        ],
    ),
    "offsets that are made": (
        offsets_that_are_made,
        [
            (normal(6, 2, 4), normal(6, 2, 4), normal(6, 2, 4), _offsets(0, 1, 3)),
            (normal(6, 2, 4), normal(6, 2, 4), normal(6, 2, 4), _offsets(0, 2)),
        ],
    ),
    "flattened behind padding": (
        flattened_behind_padding,
        [(normal(8, 16), normal(16, 512)), (normal(300, 16), normal(16, 512))],
    ),
    "the sign of zero": (
        the_sign_of_zero,
        [(normal(8), 0.0), (normal(8), -0.0), (normal(8), 0.0), (normal(8), float("nan"))],
    ),
    "a power of a host scalar": (
        a_power_of_a_host_scalar,
        [(normal(8), 2.0), (normal(8), float("nan")), (normal(8), float("inf"))],
    ),
}


def _outcome(loaded: Any, arguments: tuple[Any, ...]) -> tuple[list[Any], str]:
    try:
        result = loaded(*arguments)
    except hb.HotblockError as error:
        return [], f"{type(error).__name__} {error.reason} {error}"
    return list(result) if isinstance(result, tuple) else [result], ""


@pytest.mark.requirement("J6", "J9")
@pytest.mark.parametrize("name", CASES)
def test_all_inputs_of_a_class_are_served(name: str) -> None:
    function, inputs = CASES[name]
    layouts = LayoutTable()
    compiler = InProcess()
    with hb.Runtime(compiler="off") as off, hb.Runtime(compiler=compiler, hot_threshold=1) as rt:
        plain, loaded = off.load(hb.function(function)), rt.load(hb.function(function))
        for turn, arguments in enumerate([*[inputs[0]] * 4, *inputs, *inputs]):
            wanted, problem = _outcome(plain, arguments)
            got, other = _outcome(loaded, arguments)
            assert other == problem, turn
            values = [[TensorValue(r, layouts.of(r)) for r in results] for results in (got, wanted)]
            tensors = [TensorValue(a, layouts.of(a)) for a in arguments if isinstance(a, np.ndarray)]
            assert not problem or not wanted
            assert problem or not difference(*values, tensors), turn
        assert rt.report().compiled_entries
        assert not compiler.failures
        assert not [s.name for s in rt.report().segments if s.reason.startswith("differs")]

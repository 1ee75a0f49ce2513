"""The Python front end: what compiles means what Python means."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotblock as hb
from hotblock.frontend.function import MAX_STRUCTURES
from hotblock.isa import decode, encode, parse, verify
from pure import frontend_cases as cases

pytestmark = pytest.mark.requirement("V3", "D2")

X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -7.0], [-0.5, 6.5, 8.0]])

INTS: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (cases.collatz, [(1,), (27,), (97,)]),
    (cases.nested_loops, [(0, 5), (6, 9), (20, 20)]),
    (cases.swap_in_loop, [(0,), (1,), (2,), (7,)]),
    (cases.fibonacci_pair, [(0,), (1,), (30,)]),
    (cases.early_returns, [(0,), (2,), (9,)]),
    (cases.recursive, [(0,), (12,)]),
    (cases.is_even, [(0,), (7,), (8,)]),
    (cases.ackermann, [(2, 3)]),
    (cases.short_circuit, [(0, 0), (1, 2), (3, 2), (5, -1)]),
    (cases.chained, [(1, 2, 3), (1, 1, 3), (3, 2, 1), (3, 2, 5), (6, 5, 5)]),
    (cases.conditional_expressions, [(1, 2), (0, 0), (5, 0)]),
    (cases.while_true, [(0,), (7,), (30,)]),
    (cases.ranges, [(0, 10), (3, 3), (5, -5)]),
    (cases.run_time_step, [(0, 10, 3), (10, 0, -3), (0, 10, -1), (5, 6, 100)]),
    (cases.loop_variable_is_not_the_counter, [(5,)]),
    (cases.kinds_change, [(0,), (1,), (5,)]),
    (cases.float_and_int, [(7, 2), (-3, 5), (2.5, 3)]),
    (cases.containers, [(1,), (-4,)]),
    (cases.unrolled, [(0,), (1,), (5,)]),
    (cases.unrolled_return, [(0,), (3,), (60,)]),
    (cases.records, [(1, 2)]),
    (cases.defaults, [(1,)]),
    (cases.captured, [(2,)]),
    (cases.walrus, [(3,), (20,)]),
    (cases.deleted, [(1,)]),
    (cases.nested_conditions, [(1, 1), (1, 0), (1, -1), (0, 2), (0, 100), (-1, 9)]),
    (cases.loop_carried_through_both, [(0,), (25,)]),
    (cases.tensor_arithmetic, [(X, 1)]),
    (cases.tensor_loop, [(X, 1)]),
    (cases.tensor_branch, [(X,)]),
    (cases.tensor_writes, [(X, 1)]),
    (cases.tensor_unpack, [(X,)]),
    (cases.mask_select, [(X,)]),
    (cases.static_leaf_in_loop, [(0,), (3,)]),
    (cases.container_comparisons, [(1, 2), (1, 1)]),
    (cases.membership, [(3, 1), (1, 2)]),
    (cases.fresh_containers, [(1,), (5,)]),
    (cases.index_list, [(X,)]),
    (cases.formatted, [(4,)]),
    (cases.strict_zip, [(4,)]),
    (cases.evaluated_once, [(X[0],)]),
    (cases.small_folds, [(1,), (0,)]),
    (cases.factorial, [(0,), (5,)]),
    (cases.recursive_or, [(3,)]),
    (cases.recursive_in_branch, [(0,), (6,)]),
    (cases.recursive_and, [(9,), (3,)]),
    (cases.recursive_test, [(0,), (1,), (3,)]),
    (cases.list_arithmetic, [(1, 2)]),
    (cases.scoped_comprehension, [(1,)]),
    (cases.swap_elements, [(X, 3)]),
    (cases.shift_chain, [(1.5, 0), (1.5, 3), (1.5, 9)]),
    (cases.mixed_into_helper, [(1,), (0,)]),
    (cases.with_defaults, [(3,), (3, 5)]),
]


def _equal(got: Any, want: Any) -> None:
    if isinstance(want, np.ndarray | np.generic):
        assert np.asarray(got).dtype == np.asarray(want).dtype
        np.testing.assert_array_equal(got, want)
    elif dataclasses.is_dataclass(want):
        assert type(got) is type(want)
        _equal(vars(got), vars(want))
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            _equal(got[key], want[key])
    elif isinstance(want, tuple | list):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            _equal(g, w)
    else:
        assert type(got) is type(want)
        assert got == want


@pytest.mark.parametrize(("function", "calls"), INTS, ids=lambda v: v.__name__ if callable(v) else "")
def test_bytecode_means_what_python_means(
    rt: hb.Runtime, function: Callable[..., Any], calls: list[tuple[Any, ...]]
) -> None:
    loaded = rt.load(hb.function(function))
    for args in calls:
        _equal(loaded(*args), function(*args))


@pytest.mark.parametrize(("function", "calls"), INTS, ids=lambda v: v.__name__ if callable(v) else "")
def test_programs_survive_text_and_bytes(
    rt: hb.Runtime, function: Callable[..., Any], calls: list[tuple[Any, ...]]
) -> None:
    program = hb.function(function).lower(*calls[0])
    verify(program)
    text = hb.asm.format(program)
    assert parse(text) == program
    assert decode(encode(program)) == program
    got = rt.load(decode(encode(program)))(*calls[0])
    want = function(*calls[0])
    if function is not cases.records:  # a stored program gives dataclasses as dicts
        _equal(got, want)


@pytest.fixture(scope="module")
def loaded(rt: hb.Runtime) -> dict[Callable[..., Any], Any]:
    return {function: rt.load(hb.function(function)) for function, _ in INTS}


@settings(max_examples=150)
@given(a=st.integers(-20, 20), b=st.integers(-20, 20), c=st.integers(-20, 20))
def test_random_arguments(loaded: dict[Callable[..., Any], Any], a: int, b: int, c: int) -> None:
    for function, args in (
        (cases.chained, (a, b, c)),
        (cases.short_circuit, (a, b)),
        (cases.nested_conditions, (a, b)),
        (cases.ranges, (a, b)),
        (cases.conditional_expressions, (a, b)),
    ):
        _equal(loaded[function](*args), function(*args))
    if c:
        _equal(loaded[cases.run_time_step](a, b, c), cases.run_time_step(a, b, c))


def test_registers_are_shared_by_live_range() -> None:
    @hb.function
    def chain(x):  # type: ignore[no-untyped-def]
        for _ in range(40):
            x = hb.exp(hb.sin(hb.cos(x)))
        return x

    assert chain.program.functions[0].registers <= 8


def test_one_function_per_structure() -> None:
    def helper(a):  # type: ignore[no-untyped-def]
        return a + 1

    @hb.function
    def main(x, n: int):  # type: ignore[no-untyped-def]
        return helper(x), helper(n), helper(x * 2)

    assert [f.name for f in main.program.functions] == ["main", "helper", "helper$2"]
    assert main.program.entry == "main"


def test_signature_paths() -> None:
    @hb.function
    def f(layers, x):  # type: ignore[no-untyped-def]
        for layer in layers:
            x = x @ layer["wq"]
        return {"out": x}

    w = np.eye(2, dtype=np.float32)
    program = f.lower([{"wq": w}, {"wq": w}], hb.TensorSpec(("n", 2), "float32"))
    assert program["f"].signature is not None
    assert program["f"].signature.paths == ("layers[0]['wq']", "layers[1]['wq']", "x")
    assert "%x: f32[n, 2]" in hb.asm.format(program)


def test_pytrees_through_a_file(rt: hb.Runtime, tmp_path: Path) -> None:
    @hb.function
    def f(tree, flag):  # type: ignore[no-untyped-def]
        if flag == "double":
            return {"y": [tree["a"] * 2, (tree["b"].left, None)]}
        return {"y": [tree["a"], (tree["b"].left, None)]}

    x = np.ones(2, np.float32)
    args = ({"a": x, "b": cases.Pair(x, 3)}, "double")
    path = tmp_path / "f.hbc"
    hb.save(f.lower(*args), path)
    loaded = rt.load(path)
    for tree in (args[0], {"a": x, "b": {"left": x, "right": 3}}):
        got = loaded(tree, flag="double")
        assert got["y"][0].tolist() == [2, 2]
        assert got["y"][1][0] is x
        assert got["y"][1][1] is None
    with pytest.raises(hb.HotblockError, match="flag was 'double'"):
        loaded(args[0], "single")
    with pytest.raises(hb.HotblockError, match="tree has the fields a, b"):
        loaded({"a": x}, "double")


def test_programs_of_plain_parameters() -> None:
    @hb.function
    def f(x, n: int, scale: float, flag: bool, eps=1e-5):  # type: ignore[no-untyped-def]
        return x * n + scale if flag else x + eps

    assert (
        hb.asm.format(f.program).splitlines()[2].startswith("func @f(%x: tensor, %n: int, %scale: float, %flag: bool)")
    )

    @hb.function
    def g(layers: list):  # type: ignore[no-untyped-def, type-arg]
        return layers

    with pytest.raises(hb.ProgramError, match=r"g\.lower"):
        _ = g.program


def test_a_join_of_scalar_and_tensor_keeps_what_it_holds(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, n: int):  # type: ignore[no-untyped-def]
        total = 0
        for i in range(n):
            total = total + x[i]
        return total

    loaded = rt.load(f)
    assert loaded(np.arange(3.0), 0) == 0
    assert type(loaded(np.arange(3.0), 0)) is int
    assert loaded(np.arange(3.0), 3) == 3.0


def test_in_place_is_visible_to_the_caller(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, y):  # type: ignore[no-untyped-def]
        x[0, :] = y
        x[1] = x[0] + 1
        view = x[:, 1]
        view[...] = 9
        x += 100  # rebinds, as the array API has it
        return x

    x = np.zeros((3, 2), np.float32)
    out = rt.load(f)(x, np.array([1.0, 2.0], np.float32))
    assert x.tolist() == [[1, 9], [2, 9], [0, 9]]
    assert out.tolist() == [[101, 109], [102, 109], [100, 109]]


def test_tensors_are_read_where_a_host_scalar_is_needed(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, lengths):  # type: ignore[no-untyped-def]
        n = lengths[0]
        total = 0.0
        for i in range(n):
            total += float(x[i])
        if x[0] > 1:
            total += int(x[n - 1])
        return x[: lengths[1]], total, x[lengths[0]]

    x = np.array([1.5, 2.5, 3.5])
    head, total, last = rt.load(f)(x, np.array([2, 1]))
    assert head.tolist() == [1.5]
    assert total == 6.0
    assert last == 3.5
    with pytest.raises(hb.DTypeError, match="host int"):
        rt.load(f)(x, np.array([2.5, 1.0]))


def test_parameters_and_randomness(own_rt: hb.Runtime) -> None:
    @hb.function
    def step(x):  # type: ignore[no-untyped-def]
        w = hb.param("w")
        hb.store_param("w", w + x)
        return w * x, hb.random.uniform((3,)), hb.dropout(x, 0.5)

    f = own_rt.load(step)
    own_rt.params["w"] = np.ones(4, np.float32)
    own_rt.seed(3)
    first = f(np.full(4, 2, np.float32))
    second = f(np.full(4, 2, np.float32))
    assert first[0].tolist() == [2] * 4
    assert second[0].tolist() == [6] * 4
    assert own_rt.params["w"].tolist() == [5] * 4
    assert first[1].tolist() != second[1].tolist()
    own_rt.seed(3)
    assert np.array_equal(f(np.full(4, 2, np.float32))[1], first[1])


def test_f_strings_name_parameters(own_rt: hb.Runtime) -> None:
    @hb.function
    def f(x):  # type: ignore[no-untyped-def]
        for i in (0, 1):
            x = x * hb.param(f"layers.{i}.w")
        return x

    own_rt.params["layers.0.w"] = own_rt.params["layers.1.w"] = np.full(2, 3.0)
    assert own_rt.load(f)(np.ones(2)).tolist() == [9, 9]


def test_print(own_rt: hb.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    @hb.function
    def f(x):  # type: ignore[no-untyped-def]
        print("x is", x)
        print(x.shape[0])
        return x

    own_rt.load(f)(np.arange(2))
    assert capsys.readouterr().out == "x is [0 1]\n2\n"


def test_shape_errors_name_the_python_line(rt: hb.Runtime) -> None:
    @hb.function
    def f(a, b):  # type: ignore[no-untyped-def]
        c = a + 1
        return c @ b

    with pytest.raises(hb.ShapeError) as caught:
        rt.load(f)(np.ones((2, 3)), np.ones((4, 5)))
    assert f"test_frontend.py:{f.__wrapped__.__code__.co_firstlineno + 3}" in str(caught.value)
    assert "f64[2, 3]" in str(caught.value)


def test_a_decorator_is_not_looked_through(rt: hb.Runtime) -> None:
    def twice(inner: Any) -> Any:
        @functools.wraps(inner)
        def doubled(x):  # type: ignore[no-untyped-def]
            return inner(x) * 2

        return doubled

    @hb.function
    @twice
    def f(x):  # type: ignore[no-untyped-def]
        return x + 1

    assert rt.load(f)(3) == 8


def test_enums_with_a_number_are_numbers(rt: hb.Runtime) -> None:
    class Mode(enum.IntEnum):
        A = 1
        B = 2

    @hb.function
    def f(n):  # type: ignore[no-untyped-def]
        return n + Mode.B if Mode.B == 2 else 0

    assert rt.load(f)(3) == 5


def test_bool_arrays_from_outside_are_masks(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, m):  # type: ignore[no-untyped-def]
        y = x + 0
        y[m] = 0.0
        return x[m], y

    x, m = np.arange(6.0).reshape(3, 2), np.array([True, False, True])
    picked, changed = rt.load(f)(x, m)
    assert picked.tolist() == [[0, 1], [4, 5]]
    assert changed.tolist() == [[0, 0], [2, 3], [0, 0]]
    assert rt.load(f)(x, x > 2)[0].tolist() == [3, 4, 5]


def test_dataclasses_come_back_as_they_were(rt: hb.Runtime) -> None:
    @hb.function
    def f(c):  # type: ignore[no-untyped-def]
        return c

    got = rt.load(f)(cases.Computed(3))
    assert got == cases.Computed(3)


def test_loaded_programs_keep_defaults(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, k=3, names=("a", "b")):  # type: ignore[no-untyped-def]
        return x * k

    assert rt.load(f.program)(np.ones(2)).tolist() == [3, 3]
    assert rt.load(f.lower(1))(2) == 6


def test_a_slice_with_a_run_time_step(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, s: int, a: int):  # type: ignore[no-untyped-def]
        return x[::s], x[a::s], x[:a:s]

    x = np.arange(10)
    for step in (1, 3, -1, -4):
        for a in (-3, 0, 4):
            for got, want in zip(rt.load(f)(x, step, a), (x[::step], x[a::step], x[:a:step]), strict=True):
                assert got.tolist() == want.tolist()


def test_a_running_sum_without_an_axis_has_one(rt: hb.Runtime) -> None:
    @hb.function
    def f(x):  # type: ignore[no-untyped-def]
        return hb.cumulative_sum(x)

    assert rt.load(f)(np.arange(4)).tolist() == [0, 1, 3, 6]
    with pytest.raises(hb.ShapeError, match="rank == 1"):
        rt.load(f)(np.ones((2, 2)))


def test_ever_new_structures_do_not_fill_the_memory(own_rt: hb.Runtime) -> None:
    @hb.function
    def f(x, tag):  # type: ignore[no-untyped-def]
        return x + len(tag)

    loaded = own_rt.load(f)
    for n in range(MAX_STRUCTURES + 2):
        assert loaded(1, "a" * n) == 1 + n
    assert 0 < len(f._compiled) <= MAX_STRUCTURES
    assert 0 < len(loaded._codes) <= MAX_STRUCTURES
    assert loaded(1, "") == 1

"""The Python front end: what compiles means what Python means; what does not says what to write instead."""

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


@settings(max_examples=150)
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-20, 20))
def test_random_arguments(a: int, b: int, c: int) -> None:
    rt = _shared()
    for function, args in (
        (cases.chained, (a, b, c)),
        (cases.short_circuit, (a, b)),
        (cases.nested_conditions, (a, b)),
        (cases.ranges, (a, b)),
        (cases.conditional_expressions, (a, b)),
    ):
        _equal(rt[function](*args), function(*args))
    if c:
        _equal(rt[cases.run_time_step](a, b, c), cases.run_time_step(a, b, c))


_LOADED: dict[Any, Any] = {}


def _shared() -> dict[Any, Any]:
    if not _LOADED:
        runtime = hb.Runtime(compiler="off")
        _LOADED.update({function: runtime.load(hb.function(function)) for function, _ in INTS})
    return _LOADED


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


# ---- what does not compile

OUTSIDE = np.ones(3)


def _lambda_call(x):  # type: ignore[no-untyped-def]
    return (lambda y: y)(x)


def _try(x):  # type: ignore[no-untyped-def]
    try:
        return x
    finally:
        pass


def _with(x):  # type: ignore[no-untyped-def]
    with x:
        return x


def _raise(x):  # type: ignore[no-untyped-def]
    raise ValueError(x)


def _captured_array(x):  # type: ignore[no-untyped-def]
    return x + OUTSIDE


def _numpy_call(x):  # type: ignore[no-untyped-def]
    return np.exp(x)


def _method(x):  # type: ignore[no-untyped-def]
    return x.sum()


def _unset(x):  # type: ignore[no-untyped-def]
    if x > 0:
        y = 1
    return y


def _loop_local(x):  # type: ignore[no-untyped-def]
    for i in range(x):
        y = i
    return y


def _other_structure(x):  # type: ignore[no-untyped-def]
    if x > 0:
        return x, x
    return x


def _structure_in_loop(x):  # type: ignore[no-untyped-def]
    items = []
    for i in range(x):
        items.append(i)
    return items


def _tensor_loop(x):  # type: ignore[no-untyped-def]
    for row in x:
        x = row
    return x


def _dynamic_list_index(x):  # type: ignore[no-untyped-def]
    return [1, 2, 3][x]


def _unknown_name(x):  # type: ignore[no-untyped-def]
    return x + missing  # noqa: F821


def _endless_recursion(x):  # type: ignore[no-untyped-def]
    return _endless_recursion(x)


def _dtype_attribute(x):  # type: ignore[no-untyped-def]
    return hb.zeros((2,), dtype=x.dtype)


def _run_time_axis(x, n):  # type: ignore[no-untyped-def]
    return hb.sum(x, axis=n)


def _whole_shape(x):  # type: ignore[no-untyped-def]
    return hb.zeros(x.shape)


def _string_math(x):  # type: ignore[no-untyped-def]
    return x + "a"


def _star_args(*xs):  # type: ignore[no-untyped-def]
    return xs


def _calls_star(x):  # type: ignore[no-untyped-def]
    return _star_args(x)


def _aliased_list(x):  # type: ignore[no-untyped-def]
    a = [x]
    b = a
    a.append(x)
    return b


def _loop_else(x):  # type: ignore[no-untyped-def]
    for _ in range(x):
        pass
    else:
        x = 0
    return x


def _static_changes_in_loop(x):  # type: ignore[no-untyped-def]
    t = ("a", 0)
    count = 0
    for i in range(x):
        if t[0] == "a":
            count += 1
        t = ("b", i)
    return count


def _stored_then_changed(x):  # type: ignore[no-untyped-def]
    a = [1]
    b = [a]
    a.append(x)
    return b


def _parts_changed(x):  # type: ignore[no-untyped-def]
    lists = [[x], [x]]
    for part in lists:
        part.append(0)
    return lists


def _changed_in_loop_under_two_names(x):  # type: ignore[no-untyped-def]
    a = [x]
    b = a
    for _ in range(3):
        a[0] = a[0] + 1
    return b[0]


def _chosen_then_changed(x):  # type: ignore[no-untyped-def]
    a, b = [1], [2]
    p = a if x > 0 else b
    p[0] = 9
    return a[0]


def _appends(items):  # type: ignore[no-untyped-def]
    items.append(5)
    return 0


def _argument_changed(x):  # type: ignore[no-untyped-def]
    items = [x]
    _appends(items)
    return items


@dataclasses.dataclass
class Computed:
    a: int
    b: int = 0

    def __post_init__(self) -> None:
        self.b = self.a * 2


def _post_init(x):  # type: ignore[no-untyped-def]
    return Computed(x).b


def _unequal_zip(x):  # type: ignore[no-untyped-def]
    return [a for a, _ in zip((1, 2), (x,), strict=True)]


def _container_order(x):  # type: ignore[no-untyped-def]
    return (x, 1) < (2, 3)


def _zero_step(x):  # type: ignore[no-untyped-def]
    return [1, 2][::0]


def _not_a_float(x):  # type: ignore[no-untyped-def]
    return float("abc")


def _unhashable_key(x):  # type: ignore[no-untyped-def]
    return {[1]: x}


def _no_padding(x):  # type: ignore[no-untyped-def]
    return hb.pad(x, ())


def _int_keys(x):  # type: ignore[no-untyped-def]
    return {1: x}


def _endless(x):  # type: ignore[no-untyped-def]
    while True:
        x = x + 1


def _changes_a_global(x):  # type: ignore[no-untyped-def]
    LIST.append(x)
    return x


def _grows(x):  # type: ignore[no-untyped-def]
    return _grows((x,))


LIST: list[int] = []
_SCALAR_ARGUMENT = (_loop_local, _structure_in_loop, _dynamic_list_index, _loop_else, _static_changes_in_loop)

REFUSED: list[tuple[Callable[..., Any], str]] = [
    (_lambda_call, "lambda|Lambda"),
    (_try, "try"),
    (_with, "with"),
    (_raise, "raise"),
    (_captured_array, r"hb\.param\('OUTSIDE'\)"),
    (_numpy_call, r"write hb\.exp"),
    (_method, r"write hb\.sum\(x"),
    (_unset, "'y' may be unset"),
    (_loop_local, "'y' may be unset"),
    (_other_structure, "another structure"),
    (_structure_in_loop, "another length"),
    (_tensor_loop, r"range\(x\.shape\[0\]\)"),
    (_dynamic_list_index, "run-time index into a static container"),
    (_unknown_name, "'missing' is not defined"),
    (_endless_recursion, "never returns"),
    (_dtype_attribute, "dtype is known at run time only"),
    (_run_time_axis, "axis is a constant int"),
    (_whole_shape, "name the lengths"),
    (_string_math, "operator between"),
    (_calls_star, r"takes \*xs"),
    (_aliased_list, "has a second name"),
    (_loop_else, "set a flag"),
    (_static_changes_in_loop, "on one path"),
    (_stored_then_changed, "has a second name"),
    (_parts_changed, "has a second name"),
    (_changed_in_loop_under_two_names, "comes from elsewhere"),
    (_chosen_then_changed, "comes from elsewhere|has a second name"),
    (_argument_changed, "comes from elsewhere"),
    (_post_init, "__post_init__"),
    (_unequal_zip, "zip of sequences of 2, 1 items"),
    (_container_order, "an order between"),
    (_zero_step, "slice step cannot be zero"),
    (_not_a_float, "could not convert"),
    (_unhashable_key, "unhashable"),
    (_no_padding, "pad"),
    (_int_keys, "keys of a dict are strings"),
    (_endless, "_endless never returns"),
    (_changes_a_global, "made in this function"),
    (_grows, "too deeply"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=lambda v: v.__name__ if callable(v) else "")
def test_what_does_not_compile_says_what_to_write(function: Callable[..., Any], message: str) -> None:
    made = hb.function(function)
    scalar = function in _SCALAR_ARGUMENT
    args = [int if scalar else hb.TensorSpec()] + ([int] if function is _run_time_axis else [])
    with pytest.raises(hb.ProgramError, match=message) as caught:
        made.lower(*args)
    line = function.__code__.co_firstlineno
    if function not in (_calls_star, _grows, _argument_changed):
        file, _, rest = str(caught.value).partition(":")
        assert file.endswith("test_frontend.py")
        assert line <= int(rest.split(":")[0]) <= line + 8


def test_operations_outside_a_function_raise() -> None:
    for call in (lambda: hb.exp(OUTSIDE), lambda: hb.random.uniform((2,)), lambda: hb.param("w"), lambda: hb.zeros(2)):
        with pytest.raises(hb.HotblockError, match=r"inside an @hb\.function"):
            call()
    with pytest.raises(hb.HotblockError, match="load"):
        hb.function(cases.collatz)(3)
    with pytest.raises(AttributeError):
        _ = hb.no_such_operation


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

    got = rt.load(f)(Computed(3))
    assert got == Computed(3)


def test_loaded_programs_keep_defaults(rt: hb.Runtime) -> None:
    @hb.function
    def f(x, k=3, names=("a", "b")):  # type: ignore[no-untyped-def]
        return x * k

    assert rt.load(f.program)(np.ones(2)).tolist() == [3, 3]
    assert rt.load(f.lower(1))(2) == 6


def test_odd_definitions_are_refused() -> None:
    with pytest.raises(hb.ProgramError, match=r"takes \*xs"):
        hb.function(_star_args)
    items: list[Any] = []
    items.append(items)
    with pytest.raises(hb.HotblockError, match="contains itself"):
        hb.function(_appends).lower(items)

    @hb.function
    def f(x: [1]):  # type: ignore[no-untyped-def, valid-type]
        return x

    with pytest.raises(hb.ProgramError, match=r"f\.lower"):
        _ = f.program


def test_programs_that_do_not_compile_as_they_stand_name_lower() -> None:
    @hb.function
    def f(p):  # type: ignore[no-untyped-def]
        return p["w"]

    with pytest.raises(hb.ProgramError, match=r"f\.lower"):
        _ = f.program


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

"""What the Python front end does not compile: it says what to write instead, and where."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotblock as hb
from pure import frontend_cases as cases

pytestmark = pytest.mark.requirement("V3", "D2")

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


def _post_init(x):  # type: ignore[no-untyped-def]
    return cases.Computed(x).b


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


def _pad_number(x):  # type: ignore[no-untyped-def]
    return hb.pad(x, 1)


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


def _augmented_alias(x):  # type: ignore[no-untyped-def]
    a = [x]
    b = a
    b += [x]
    return a


def _add_to(items, x):  # type: ignore[no-untyped-def]
    items += [x]
    return items


def _augmented_argument(x):  # type: ignore[no-untyped-def]
    items = [x]
    _add_to(items, x)
    return items


def _augmented_in_a_tuple(x):  # type: ignore[no-untyped-def]
    a = [x]
    t = (a,)
    a += [x]
    return t


def _augmented_in_a_sum(x):  # type: ignore[no-untyped-def]
    a = [x]
    t = (a,) * 2
    a += [x]
    return t


def _augmented_behind_a_branch(x):  # type: ignore[no-untyped-def]
    a = [x]
    t = (a,)
    y = x
    if y > 0:
        y = x + 1
    a += [y]
    return t


def _augmented_item(x):  # type: ignore[no-untyped-def]
    a = [[x], [x]]
    a[0] += [x]
    return a


def _augmented_dict(x):  # type: ignore[no-untyped-def]
    d = {"a": x}
    e = d
    e |= {"b": x}
    return d


def _grows_in_its_loop(x):  # type: ignore[no-untyped-def]
    a = [x]
    for y in a:
        if len(a) < 3:
            a += [y]
    return a


def _appends_in_its_loop(x):  # type: ignore[no-untyped-def]
    a = [x]
    for _, y in enumerate(a):
        if len(a) < 3:
            a.append(y)
    return a


def _generator(x):  # type: ignore[no-untyped-def]
    return (x for _ in (1, 2))


def _generator_inside(x):  # type: ignore[no-untyped-def]
    y: object = [(x for _ in (1, 2))]
    return y


def _unrolls_too_far(x):  # type: ignore[no-untyped-def]
    y = 0
    for _ in [0] * 500:
        for _ in [0] * 500:
            y = 1
    return y


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (_lambda_call, "lambda|Lambda"),
    (_try, "try cannot be compiled; test the condition with if"),
    (_with, "with"),
    (_raise, "write assert"),
    (_pad_number, "pad_width is"),
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
    (_augmented_alias, "second name"),
    (_augmented_argument, "comes from elsewhere"),
    (_augmented_in_a_tuple, "second name"),
    (_augmented_in_a_sum, "second name"),
    (_augmented_behind_a_branch, "second name"),
    (_augmented_item, "build a new container"),
    (_augmented_dict, r"dict\(e\)"),
    (_grows_in_its_loop, "loop over a copy"),
    (_appends_in_its_loop, "loop over a copy"),
    (_generator, "write a list"),
    (_generator_inside, "write a list"),
    (_unrolls_too_far, "unroll to more than"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=lambda v: v.__name__ if callable(v) else "")
def test_what_does_not_compile_says_what_to_write(function: Callable[..., Any], message: str) -> None:
    made = hb.function(function)
    scalar = function in _SCALAR_ARGUMENT
    args = [int if scalar else hb.TensorSpec()] + ([int] if function is _run_time_axis else [])
    with pytest.raises(hb.ProgramError, match=message) as caught:
        made.lower(*args)
    line = function.__code__.co_firstlineno
    if function not in (_calls_star, _grows, _argument_changed, _augmented_argument):
        file, _, rest = str(caught.value).partition(":")
        assert file.endswith("test_frontend_refusals.py")
        assert line <= int(rest.split(":")[0]) <= line + 8


def test_operations_outside_a_function_raise() -> None:
    for call in (lambda: hb.exp(OUTSIDE), lambda: hb.random.uniform((2,)), lambda: hb.param("w"), lambda: hb.zeros(2)):
        with pytest.raises(hb.HotblockError, match=r"inside an @hb\.function"):
            call()
    with pytest.raises(hb.HotblockError, match="load"):
        hb.function(cases.collatz)(3)
    with pytest.raises(AttributeError):
        _ = hb.no_such_operation


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


def test_a_very_deep_expression_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text(f"def deep(x):\n    y = x\n    return {' + '.join(['y'] * 1000)}\n")
    deep = runpy.run_path(str(file))["deep"]
    with pytest.raises(hb.ProgramError, match=r"deep\.py:3: .*nested too deeply"):
        hb.function(deep).lower(1.0)


def test_parameters_that_take_any_number_are_refused() -> None:
    def keywords(**options):  # type: ignore[no-untyped-def]
        return options

    line = keywords.__code__.co_firstlineno
    with pytest.raises(hb.ProgramError, match=rf"test_frontend_refusals\.py:{line}: keywords takes \*\*options;"):
        hb.function(keywords)

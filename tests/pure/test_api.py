"""The public API: arguments in, results out, parameters, constants, limits, threads, errors."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.arrays import bfloat16
from support.dlpack import Producer
from support.single import program_of

import hotblock as hb
from hotblock.isa import Opcode, parse

IDENTITY = parse("func @main(%x) {\n  ret %x\n}")
DOUBLE = parse("func @main(%x) {\n  %y = tensor.add %x, %x\n  ret %y\n}")
WRITE = parse("func @main(%x) {\n  %v = load.const 7\n  tensor.assign %x, %v\n  ret\n}")


# ---- arguments


def test_arrays_are_not_copied(rt: hb.Runtime) -> None:
    x = np.arange(6).reshape(2, 3)[:, ::-1]
    assert rt.load(IDENTITY)(x) is x


def test_numpy_scalars_are_tensors_of_rank_0(rt: hb.Runtime) -> None:
    for value in (np.float64(2.5), np.float32(2.5), np.int64(3), np.bool_(True), ml_dtypes.bfloat16(1.5)):
        got = rt.load(IDENTITY)(value)
        assert isinstance(got, np.ndarray)
        assert got.shape == ()
        assert got.dtype == np.asarray(value).dtype
    for number in (2.5, 3, True):
        assert type(rt.load(IDENTITY)(number)) is type(number)


def test_subclasses_and_read_only_arrays(rt: hb.Runtime) -> None:
    class Named(np.ndarray):  # type: ignore[type-arg]
        pass

    assert type(rt.load(DOUBLE)(np.ones(2).view(Named))) is np.ndarray
    frozen = np.ones(2)
    frozen.flags.writeable = False
    assert rt.load(DOUBLE)(frozen).tolist() == [2, 2]
    with pytest.raises(hb.HotblockError, match="read-only"):
        rt.load(WRITE)(frozen)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(2, dtype=">f4"), "foreign byte order"),
        (np.ones(2, dtype=complex), "complex128 are not supported"),
        (np.array([object()]), "object are not supported"),
        (np.array(["a"]), "not supported"),
        (np.zeros(2, dtype=[("a", "f4")]), "not supported"),
        (np.ones(2, np.uint16), "uint16 are not supported"),
        (np.ma.masked_array([1.0]), "masked array"),
        ("text", "a str is no"),
        (None, "a NoneType is no"),
        ([1, 2], "a list is no"),
        (1 << 63, "does not fit int64"),
        (1j, "a complex is no"),
    ],
    ids=lambda v: repr(v)[:24],
)
def test_what_is_no_argument(rt: hb.Runtime, value: Any, message: str) -> None:
    with pytest.raises(hb.DTypeError, match=message) as caught:
        rt.load(IDENTITY)(value)
    assert "x" in str(caught.value).split(":")[0]


def test_arguments_by_name(rt: hb.Runtime) -> None:
    f = rt.load(parse("func @main(%x, %y) {\n  %z = tensor.sub %x, %y\n  ret %z\n}"))
    assert f(5, 3) == f(y=3, x=5) == f(5, y=3) == 2
    for args, kwargs, message in (
        ((1,), {}, "misses y"),
        ((1, 2, 3), {}, "takes 2 arguments"),
        ((1,), {"x": 2}, "twice"),
        ((1,), {"z": 2}, "unknown"),
    ):
        with pytest.raises(hb.HotblockError, match=message):
            f(*args, **kwargs)


def test_results(rt: hb.Runtime) -> None:
    assert rt.load(parse("func @main() {\n  ret\n}"))() is None
    assert rt.load(parse("func @main(%x) {\n  ret %x, %x\n}"))(1) == (1, 1)


# ---- DLPack


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"])
def test_dlpack_shares_memory(rt: hb.Runtime, dtype: str) -> None:
    base = np.arange(12).reshape(3, 4).astype(dtype)
    for view in (base, base.T, base[::-1], base[:, ::2]):
        got = rt.load(IDENTITY)(Producer(view))
        assert got.dtype == view.dtype
        np.testing.assert_array_equal(got, view)
        assert np.shares_memory(got, view)
        assert got.flags.writeable


def test_dlpack_of_bfloat16_rank_0_and_empty(rt: hb.Runtime) -> None:
    x = np.array([1.5, -2.0]).astype(bfloat16)
    assert rt.load(IDENTITY)(Producer(x)).dtype == bfloat16
    assert rt.load(DOUBLE)(Producer(x)).astype(float).tolist() == [3, -4]
    assert rt.load(IDENTITY)(Producer(np.array(2.0))).shape == ()
    assert rt.load(IDENTITY)(Producer(np.zeros((0, 3)))).shape == (0, 3)
    writable = Producer(x)
    rt.load(WRITE)(writable)
    assert x.astype(float).tolist() == [7, 7]


def test_dlpack_lets_go_when_the_last_array_has_gone(rt: hb.Runtime) -> None:
    producer = Producer(np.arange(6))
    view = rt.load(IDENTITY)(producer)[2:]
    gc.collect()
    assert producer.released == 0
    assert view.tolist() == [2, 3, 4, 5]
    del view
    gc.collect()
    assert producer.released == 1


def test_dlpack_refusals_say_what_to_do(rt: hb.Runtime) -> None:
    x = np.ones(2)
    for producer, message in (
        (Producer(x, device=2), r"move it with \.cpu\(\)"),
        (Producer(x, error=BufferError("Can't export tensors that require gradient")), r"\.detach\(\)"),
        (Producer(x, code=5, bits=128), "does not have"),
        (Producer(x, lanes=4), "does not have"),
    ):
        with pytest.raises(hb.DTypeError, match=message):
            rt.load(IDENTITY)(producer)


def test_numpy_arrays_through_their_own_dlpack(rt: hb.Runtime) -> None:
    class Wrapper:
        def __init__(self, array: Any) -> None:
            self._array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self._array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self._array.__dlpack_device__()

    x = np.arange(3.0)
    assert np.shares_memory(rt.load(IDENTITY)(Wrapper(x)), x)
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    got = rt.load(IDENTITY)(Wrapper(frozen))
    assert not got.flags.writeable


# ---- parameters, constants, seeds


def test_parameters_copy_in_and_are_read_only(own_rt: hb.Runtime) -> None:
    x = np.arange(4.0)
    own_rt.params["w"] = x
    x[0] = 9
    w = own_rt.params["w"]
    assert w.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        w[0] = 1
    f = own_rt.load(parse('func @main() {\n  %w = load.param "w"\n  ret %w\n}'))
    g = own_rt.load(
        parse('func @main() {\n  %w = load.param "w"\n  %v = load.const 1.0\n  tensor.assign %w, %v\n  ret\n}')
    )
    assert f().tolist() == [0, 1, 2, 3]
    with pytest.raises(hb.HotblockError, match="read-only"):
        g()
    own_rt.params["w"] = np.zeros(2)
    assert w.tolist() == [0, 1, 2, 3]
    assert list(own_rt.params) == ["w"]
    del own_rt.params["w"]
    with pytest.raises(hb.HotblockError, match=r"no parameter 'w'; set rt\.params"):
        f()
    with pytest.raises(hb.DTypeError):
        own_rt.params["w"] = np.ones(2, complex)


def test_a_function_is_lowered_for_constants(own_rt: hb.Runtime) -> None:
    @hb.function
    def product(x: Any, layer: Any) -> Any:
        return x @ layer["w"]

    x, layer = np.ones((2, 4), np.float32), {"w": own_rt.constant(np.ones((4, 3), np.float32))}
    assert own_rt.load(product.lower(x, layer))(x, layer).tolist() == [[4.0] * 3] * 2
    assert np.from_dlpack(layer["w"]).flags.writeable is False


def test_constants_are_accepted_wherever_arrays_are(own_rt: hb.Runtime) -> None:
    x = np.arange(4.0)
    handle = own_rt.constant(x)
    x[0] = 9
    assert own_rt.load(DOUBLE)(handle).tolist() == [0, 2, 4, 6]
    with pytest.raises(hb.HotblockError, match="read-only"):
        own_rt.load(WRITE)(handle)

    @hb.function
    def f(tree):  # type: ignore[no-untyped-def]
        return tree["w"] + 1

    assert own_rt.load(f)({"w": handle}).tolist() == [1, 2, 3, 4]
    assert "f64[4]" in repr(handle)


def test_seed(own_rt: hb.Runtime) -> None:
    f = own_rt.load(parse("func @main() {\n  %s = rng.seed\n  %d = rng.draw\n  ret %s, %d\n}"))
    assert [f(), f()] == [(0, 0), (0, 1)]
    own_rt.seed(-5)
    assert f() == (-5, 0)
    with pytest.raises(hb.DTypeError, match="int64"):
        own_rt.seed(1 << 64)


# ---- the runtime itself


def test_entries() -> None:
    with hb.Runtime() as rt:
        two = parse("func @a() {\n  %x = load.const 1\n  ret %x\n}\nfunc @b() {\n  %x = load.const 2\n  ret %x\n}")
        loaded = rt.load(two)
        assert (loaded["a"](), loaded["b"]()) == (1, 2)
        with pytest.raises(hb.ProgramError, match="which function"):
            loaded()
        assert rt.load(hb.Program(two.functions, "b"))() == 2
        with pytest.raises(hb.NotFoundError, match="this program has a, b"):
            loaded["c"]
        with pytest.raises(KeyError):
            rt.params["nothing"]
    with pytest.raises(hb.HotblockError, match="closed"):
        loaded["a"]()
    with pytest.raises(hb.HotblockError, match="closed"):
        rt.load(two)


def test_wrong_choices_are_told() -> None:
    with pytest.raises(hb.HotblockError, match="no device 'tpu'"):
        hb.Runtime(device="tpu")
    with pytest.raises(hb.HotblockError, match="no compiler 'gcc'"):
        hb.Runtime(compiler="gcc")
    with hb.Runtime() as rt:
        with pytest.raises(hb.HotblockError, match=r"@hb\.function"):
            rt.load(lambda x: x)  # type: ignore[arg-type]
        with pytest.raises(hb.ProgramError, match="No such file"):
            rt.load("/nonexistent/file.hbc")


def test_no_warnings_reach_the_caller(rt: hb.Runtime) -> None:
    x = np.array([0.0, np.inf, -1.0, np.nan], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for opcode in (Opcode.TENSOR_LOG, Opcode.TENSOR_SQRT, Opcode.TENSOR_EXP, Opcode.TENSOR_SOFTMAX):
            rt.load(program_of(opcode, 1, 1, ()))(x)
        rt.load(program_of(Opcode.TENSOR_DIV, 2, 1, ()))(x, np.zeros(4, np.float32))
        rt.load(program_of(Opcode.TENSOR_FLOORDIV, 2, 1, ()))(np.array([-(1 << 63)]), np.array([-1]))


@pytest.mark.requirement("D3")
def test_the_same_shape_with_other_strides_is_another_case(rt: hb.Runtime) -> None:
    f = rt.load(DOUBLE)
    x = np.arange(9.0).reshape(3, 3)
    for view in (x, x.T, x[::-1], np.broadcast_to(x[0], (3, 3)), x.astype(np.float32), x.astype(np.int8)):
        got = f(view)
        assert got.dtype == view.dtype
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, view * view.dtype.type(2))
    assert f(2) == 4
    assert f(2.5) == 5.0
    assert f(True) == 2


def test_sizes_are_kept_apart_by_type(rt: hb.Runtime) -> None:
    f = rt.load(parse("func @main(%n) {\n  %x = tensor.zeros %n\n  ret %x\n}"))
    assert f(1).shape == (1,)
    for wrong in (1.0, True, np.ones(1)):
        with pytest.raises(hb.DTypeError):
            f(wrong)
    g = rt.load(parse("func @main(%a, %b, %c) {\n  %x = tensor.arange %a, %b, %c\n  ret %x\n}"))
    assert g(0, 3, 1).dtype == np.int64
    assert g(0.0, 3, 1).dtype == np.float32


def test_plans_are_bounded() -> None:
    with hb.Runtime() as rt:
        f = rt.load(DOUBLE)
        for n in range(5000):
            f(np.empty(n, np.int8))
        (plans,) = (memo for key, memo in rt._maker._plans.items() if key[0] is Opcode.TENSOR_ADD)
        assert len(plans) <= 4096


# ---- limits

_ENDLESS = "func @main() {\nloop:\n  loop_head\n  jump @loop\n}"
_DEEP = "func @main(%n: int) {\n  %m = add.const %n, 1\n  %r = call @main, %m\n  ret %r\n}"
_BOMB = """func @main(%x) {
loop:
  loop_head
  %x = tensor.concat %x, %x
  jump @loop
}"""


@pytest.mark.requirement("V6")
@pytest.mark.parametrize(
    ("text", "args", "limits", "reason"),
    [
        (_ENDLESS, (), hb.Limits(steps=10_000), "steps"),
        (_DEEP, (0,), hb.Limits(depth=500), "depth"),
        (_BOMB, (np.ones(8),), hb.Limits(bytes=1 << 24), "bytes"),
        ("func @main(%n) {\n  %x = tensor.zeros %n\n  ret %x\n}", (1 << 50,), hb.Limits(bytes=1 << 30), "bytes"),
        (
            "func @main(%n) {\n  %x = tensor.zeros %n, %n, %n\n  ret %x\n}",
            (1 << 62,),
            hb.Limits(bytes=1 << 30),
            "bytes",
        ),
    ],
    ids=["endless", "deep", "doubling", "huge", "beyond int64"],
)
def test_limits_end_in_resource_error(text: str, args: tuple[Any, ...], limits: hb.Limits, reason: str) -> None:
    with hb.Runtime(limits=limits) as rt, pytest.raises(hb.ResourceError) as caught:
        rt.load(parse(text))(*args)
    assert caught.value.reason == reason
    assert caught.value.location is not None


def test_default_limits_stop_deep_recursion_and_bombs() -> None:
    with hb.Runtime() as rt:
        for text, args in ((_DEEP, (0,)), (_BOMB, (np.ones(8, np.int8),))):
            with pytest.raises(hb.ResourceError):
                rt.load(parse(text))(*args)


def test_many_live_tensors_count_together() -> None:
    keep = "".join(f"  %x{i} = tensor.zeros %n\n" for i in range(64))
    text = "func @main(%n) {\n" + keep + "  ret " + ", ".join(f"%x{i}" for i in range(64)) + "\n}"
    with hb.Runtime(limits=hb.Limits(bytes=1 << 22)) as rt:
        f = rt.load(parse(text))
        assert len(f(1000)) == 64
        with pytest.raises(hb.ResourceError, match="alive"):
            f(1 << 16)


def test_tensors_that_die_anywhere_do_not_count() -> None:
    makers = "".join(
        f"  %x{i} = tensor.zeros %n\n  %l{i} = get.shape_axis %x{i}, 0\n"
        f"  %y{i} = tensor.zeros %n\n  %z{i} = tensor.ones %n\n  call @use, %z{i}\n"
        for i in range(10)
    )
    text = "func @main(%n) {\n" + makers + "  ret\n}\nfunc @use(%x) {\n  ret\n}"
    with hb.Runtime(limits=hb.Limits(bytes=3 << 20)) as rt:
        rt.load(parse(text))["main"](1 << 18)


def test_arguments_are_the_callers_memory() -> None:
    with hb.Runtime(limits=hb.Limits(bytes=1 << 20)) as rt:
        big = np.ones(1 << 20)
        chain = "".join("  %x = tensor.neg %x\n" for _ in range(20))
        assert rt.load(parse("func @main(%x) {\n" + chain + "  ret %x\n}"))(big[:10000]).sum() == 10000


def test_limits_default_to_half_of_memory() -> None:
    assert hb.Limits(steps=5).bytes is not None
    assert hb.Limits(bytes=None).bytes is None
    assert not hb.ResourceError("x", reason="steps").retryable
    assert hb.ResourceError("x", reason="memory").retryable


def test_calls_between_functions_meet_declared_types(rt: hb.Runtime) -> None:
    text = "entry @main\nfunc @main(%x) {\n  %y = call @g, %x\n  ret %y\n}\nfunc @g(%x: f32[3]) {\n  ret %x\n}"
    f = rt.load(parse(text))
    assert f(np.ones(3, np.float32)).sum() == 3
    with pytest.raises(hb.DTypeError, match="declared"):
        f(np.ones(3))
    with pytest.raises(hb.ShapeError, match="3"):
        f(np.ones(4, np.float32))


def test_dead_tensors_do_not_count() -> None:
    chain = "".join("  %x = tensor.neg %x\n" for _ in range(500))
    with hb.Runtime(limits=hb.Limits(bytes=1 << 20)) as rt:
        f = rt.load(parse("func @main(%x) {\n" + chain + "  ret %x\n}"))
        assert f(np.ones(1 << 14)).sum() == 1 << 14


# ---- threads and instruments


def test_eight_threads_call_one_runtime() -> None:
    @hb.function
    def f(x, n: int):  # type: ignore[no-untyped-def]
        total = x * 0
        for i in range(n):
            total = total + hb.sum(x[: i + 1])
        return total

    errors: list[BaseException] = []
    with hb.Runtime() as rt:
        loaded = rt.load(f)

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(40):
                    x = rng.standard_normal(int(rng.integers(1, 30)))
                    want = x * 0 + np.cumsum(x).sum()
                    np.testing.assert_allclose(loaded(x, len(x)), want, rtol=1e-9, atol=1e-12)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_draws_of_threads_are_distinct() -> None:
    seen: list[int] = []
    with hb.Runtime() as rt:
        f = rt.load(parse("func @main() {\n  %d = rng.draw\n  ret %d\n}"))
        threads = [threading.Thread(target=lambda: seen.extend(f() for _ in range(200))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(1600))


def test_an_instrument_sees_and_may_skip() -> None:
    class Skip:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def before(self, function: Any, instruction: Any, registers: Any) -> bool:
            self.seen.append(instruction.opcode.mnemonic)
            if instruction.opcode is Opcode.TENSOR_ADD:
                registers[instruction.results[0]] = 42
                return True
            return False

        def after(self, function: Any, instruction: Any, registers: Any) -> None:
            self.seen.append(f"/{instruction.opcode.mnemonic}")

    instrument = Skip()
    with hb.Runtime(instrument=instrument) as rt:
        assert rt.load(DOUBLE)(1) == 42
    assert instrument.seen == ["tensor.add", "ret", "/ret"]


@pytest.mark.requirement("V2")
@pytest.mark.parametrize(
    ("body", "arguments", "types"),
    [
        ("%y = tensor.take %x, %i {axis=0}", ["x", "i"], "tensor.take(x: f64[3, 4], indices: i64[2]): index 9"),
        (
            "%n = load.const 5\n  %y = tensor.index %x, %n {axis=0}",
            ["x", "i"],
            "tensor.index(x: f64[3, 4], i: int 5): ",
        ),
        ("%y = tensor.item %x", ["x", "i"], "tensor.item(x: f64[3, 4]): "),
        (
            "tensor.assign_where %x, %m, %i",
            ["x", "i", "m"],
            "tensor.assign_where(x: f64[3, 4], mask: bool[3, 4], value:",
        ),
        ("%y = tensor.segment_sum %x, %i", ["x", "i"], "tensor.segment_sum(x: f64[3, 4], offsets: i64[2]): "),
    ],
)
def test_errors_of_values_name_operands_and_shapes(rt: hb.Runtime, body: str, arguments: list[str], types: str) -> None:
    values = {"x": np.zeros((3, 4)), "i": np.array([9, 9]), "m": np.arange(12).reshape(3, 4) > 5}
    f = rt.load(parse(f"func @f({', '.join('%' + name for name in arguments)}) {{\n  {body}\n  ret\n}}"))
    with pytest.raises(hb.ShapeError) as caught:
        f(*(values[name] for name in arguments))
    assert types in str(caught.value)
    assert "in @f: " in str(caught.value)


def test_specs_take_every_name_of_a_dtype() -> None:
    wanted = hb.TensorSpec(("n", -1), "float32")
    for dtype in (hb.float32, np.float32, np.dtype("float32"), "f32"):
        assert hb.TensorSpec(["n", None], dtype) == wanted
    for shape, dtype in (("n", None), (5, None), ((2**70,), None), ((-2,), None), ((1.5,), None), ((), 5), ((), "f31")):
        with pytest.raises(hb.HotblockError):
            hb.TensorSpec(shape, dtype)  # type: ignore[arg-type]


def test_wrong_kinds_of_arguments_are_our_errors(tmp_path: Path) -> None:
    @hb.function
    def f(x):  # type: ignore[no-untyped-def]
        return x

    calls: list[Callable[[], Any]] = [
        lambda: hb.save(f, tmp_path / "f.hbc"),  # type: ignore[arg-type]
        lambda: hb.save(f.program, None),  # type: ignore[arg-type]
        lambda: hb.load(5),  # type: ignore[arg-type]
        lambda: hb.asm.format(f),  # type: ignore[arg-type]
        lambda: hb.asm.parse(b"func"),  # type: ignore[arg-type]
        lambda: hb.Runtime(limits=5),  # type: ignore[arg-type]
        lambda: hb.Limits(steps="a"),  # type: ignore[arg-type]
        lambda: hb.Limits(depth=-1),
        lambda: hb.Limits(bytes=1.5),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(hb.HotblockError):
            call()
    assert not list(tmp_path.iterdir())


def test_parameters_stay_read_only(own_rt: hb.Runtime) -> None:
    @hb.function
    def f():  # type: ignore[no-untyped-def]
        return hb.param("w")

    own_rt.params["w"] = np.ones(3)
    for view in (own_rt.params["w"], own_rt.load(f)()):
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.setflags(write=True)


def test_nothing_works_on_a_closed_runtime() -> None:
    rt = hb.Runtime()
    rt.close()
    for call in (lambda: rt.seed(1), rt.__enter__, lambda: rt.params, lambda: rt.load("x.hbc")):
        with pytest.raises(hb.HotblockError, match="closed"):
            call()

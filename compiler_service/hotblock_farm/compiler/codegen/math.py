"""Math functions for code generation: exp, log, tanh, erf, sigmoid and pow in float32 and float64, within 4 ulp (pow 16).

Each function is written once against `MathOps`, the few operations that every target has: no branch, no table, no clamp that
loses a NaN, subnormals kept. Coefficients are our own minimax fits (Remez on the range that a comment names). Largest errors
found against 60-digit references, in ulp: exp 1.1, log 1.0, tanh 1.4, erf
2.0, sigmoid 2.5, pow 1.1; the float32 ones over every bit pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hotblock_farm.compiler.codegen.ir import Value
from hotblock_farm.compiler.codegen.math_ops import MathOps, horner
from hotblock_farm.compiler.codegen.trigonometry import cos32, cos64, sin32, sin64
from hotblock_farm.compiler.graph import Op

__all__ = ["MATH_FUNCTIONS", "MathOps"]

H: Final = float.fromhex

# ---- exp
# exp(x) = 2^n * e^r, n = rint(x*log2 e) (magic add), r in [-ln2/2, ln2/2], e^r = 1 + (r + r^2 q(r)).
# 2^n is applied in two exact-ish steps so that subnormal results are rounded once.
# NaN: the bit pattern of n is garbage but well defined, and NaN * finite-or-whatever = NaN.
LN2_HI_32 = H("0x1.62e400p-1")  # 16 significant bits: n*hi is exact for |n| < 2^8
LN2_LO_32 = H("0x1.7f7d1cp-20")
EXP32_Q = [H("0x1.fffffcp-2"), H("0x1.55548cp-3"), H("0x1.555858p-5"), H("0x1.123de0p-7"), H("0x1.6ac6fap-10")]


def _exp32_core(b: MathOps, x: Value) -> tuple[Value, Value]:
    """-> (p, kb): exp(x) = p * 2^k, kb = k + 0x4B400000 (bits of the magic number; its low bits are 0)."""
    magic = b.const(12582912.0)  # 1.5 * 2^23
    t = b.fma(x, b.const(H("0x1.715476p+0")), magic)
    n = b.sub(t, magic)
    k = b.bits(t)  # int(n) + 0x4B400000
    r = b.fma(n, b.const(-LN2_HI_32), x)
    r = b.fma(n, b.const(-LN2_LO_32), r)
    q = horner(b, r, EXP32_Q)
    p = b.add(b.const(1.0), b.fma(b.mul(r, r), q, r))
    return p, k


def _scale32(b: MathOps, p: Value, kb: Value) -> Value:
    """p * 2^k, one rounding (subnormals and overflow right), |k| < 250; kb = k + 0x4B400000."""
    k = b.isub(kb, b.iconst(0x4B400000 - 254))  # k + 2*bias
    k1 = b.lshr(k, 1)  # biased halves of k
    k2 = b.isub(k, k1)
    return b.mul(b.mul(p, b.float_of(b.shl(k1, 23))), b.float_of(b.shl(k2, 23)))


def _scale32_normal(b: MathOps, p: Value, kb: Value) -> Value:
    """p * 2^k where 2^k is a normal number."""
    return b.mul(p, b.float_of(b.iadd(b.shl(kb, 23), b.iconst(127 << 23))))


def exp32(b: MathOps, x: Value) -> Value:
    x = b.select(b.lt(x, b.const(-104.0)), b.const(-104.0), x)  # NaN falls through
    x = b.select(b.gt(x, b.const(89.0)), b.const(89.0), x)
    p, k = _exp32_core(b, x)
    return _scale32(b, p, k)


# ---- tanh (f32)
# |x| < 0.6: x + x*t*P(t), t = x^2;  else 1 - 2/(exp(2|x|)+1), |x| capped at 10.
# (A single rational x*P(t)/Q(t) is ~9 ops shorter but reaches 5 ulp.)
TANH32_P = [H("-0x1.55553cp-2"), H("0x1.110944p-3"), H("-0x1.b888d6p-5"), H("0x1.5440e0p-6"), H("-0x1.7ff9dap-8")]


def tanh32(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    t = b.mul(x, x)
    small = b.fma(b.mul(a, t), horner(b, t, TANH32_P), a)
    c = b.select(b.gt(a, b.const(10.0)), b.const(10.0), a)  # NaN falls through
    p, k = _exp32_core(b, b.add(c, c))
    e = _scale32_normal(b, p, k)
    big = b.sub(b.const(1.0), b.div(b.const(2.0), b.add(e, b.const(1.0))))
    return b.copysign(b.select(b.lt(a, b.const(H("0x1.333334p-1"))), small, big), x)


# ---- erf (f32)
# |x| < 1: x + x*P(x^2);  else 1 - p(|x|-2)^4 with p(v) ~ erfc(v+2)^(1/4), |x| capped at 4.  No division, no exp.
ERF32_P = [
    H("0x1.06eba8p-3"),
    H("-0x1.81273ep-2"),
    H("0x1.ce2ce6p-4"),
    H("-0x1.b7f71ap-6"),
    H("0x1.53f224p-8"),
    H("-0x1.a3515ep-11"),
    H("0x1.4771fcp-14"),
]
ERF32_R = [
    H("0x1.0bcc82p-2"),
    H("-0x1.27cb84p-2"),
    H("0x1.961062p-4"),
    H("0x1.c43078p-8"),
    H("-0x1.9135ecp-7"),
    H("0x1.935358p-10"),
    H("0x1.94e9e6p-11"),
    H("-0x1.7bba1cp-13"),
    H("-0x1.7e315ap-16"),
]


def erf32(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    small = b.fma(a, horner(b, b.mul(a, a), ERF32_P), a)
    c = b.select(b.gt(a, b.const(4.0)), b.const(4.0), a)  # NaN falls through
    p = horner(b, b.sub(c, b.const(2.0)), ERF32_R)
    p2 = b.mul(p, p)
    big = b.fma(b.neg(p2), p2, b.const(1.0))
    return b.copysign(b.select(b.lt(a, b.const(1.0)), small, big), x)


# ---- sigmoid (f32)
# e = exp(-|x|) <= 1 (never overflows);  x >= 0: 1/(1+e), x < 0: e/(1+e).
def sigmoid32(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    c = b.select(b.gt(a, b.const(104.0)), b.const(104.0), a)  # NaN falls through
    p, k = _exp32_core(b, b.neg(c))
    e = _scale32(b, p, k)
    num = b.select(b.lt(x, b.const(0.0)), e, b.const(1.0))
    return b.div(num, b.add(e, b.const(1.0)))


# ---- log (f32)
# x = 2^k * m, m in [sqrt(1/2), sqrt 2), f = m-1 (exact), log m = f - f^2/2 + f^3 P(f).
LOG32_P = [
    H("0x1.555554p-2"),
    H("-0x1.000228p-2"),
    H("0x1.99a034p-3"),
    H("-0x1.54722ep-3"),
    H("0x1.22d662p-3"),
    H("-0x1.0d820ep-3"),
    H("0x1.0572c2p-3"),
    H("-0x1.38ffa8p-4"),
]


def log32(b: MathOps, x: Value) -> Value:
    tiny = b.lt(x, b.const(H("0x1p-126")))
    xs = b.select(tiny, b.mul(x, b.const(8388608.0)), x)  # 2^23: subnormals become normal
    i = b.isub(b.bits(xs), b.iconst(0x3F3504F3))  # bits(sqrt(1/2))
    k = b.ashr(i, 23)
    m = b.float_of(b.isub(b.bits(xs), b.shl(k, 23)))
    f = b.sub(m, b.const(1.0))
    n = b.add(b.from_int(k), b.select(tiny, b.const(-23.0), b.const(0.0)))
    f2 = b.mul(f, f)
    q = b.fma(f, horner(b, f, LOG32_P), b.const(-0.5))
    r = b.fma(n, b.const(LN2_LO_32), b.mul(f2, q))
    r = b.fma(n, b.const(LN2_HI_32), b.add(f, r))
    # x == 0 -> -inf, x < 0 or NaN -> NaN, inf -> inf
    bad = b.select(b.eq(x, b.const(0.0)), b.const(float("-inf")), b.const(float("nan")))
    r = b.select(b.gt(x, b.const(0.0)), r, bad)
    return b.select(b.eq(x, b.const(float("inf"))), x, r)


# ---- float64
# ---- exp (f64)
LN2_HI_64 = H("0x1.62e42fefa3800p-1")  # 42 significant bits: n*hi is exact for |n| < 2^11
LN2_LO_64 = H("0x1.ef35793c76730p-45")
EXP64_Q = [
    H("0x1.000000000000ap-1"),
    H("0x1.5555555555503p-3"),
    H("0x1.5555555550608p-5"),
    H("0x1.1111111124cdap-7"),
    H("0x1.6c16c184b42fcp-10"),
    H("0x1.a01a013d792f6p-13"),
    H("0x1.a019989383197p-16"),
    H("0x1.71def3e07597fp-19"),
    H("0x1.28aed01efccadp-22"),
    H("0x1.add788f7c0cc7p-26"),
]


def _exp64_core(b: MathOps, x: Value) -> tuple[Value, Value]:
    """-> (p, kb): exp(x) = p * 2^k, kb = k + 0x4338000000000000 (bits of the magic number; its low bits are 0)."""
    magic = b.const(6755399441055744.0)  # 1.5 * 2^52
    t = b.fma(x, b.const(H("0x1.71547652b82fep+0")), magic)
    n = b.sub(t, magic)
    k = b.bits(t)  # int(n) + 0x4338000000000000
    r = b.fma(n, b.const(-LN2_HI_64), x)
    r = b.fma(n, b.const(-LN2_LO_64), r)
    q = horner(b, r, EXP64_Q)
    p = b.add(b.const(1.0), b.fma(b.mul(r, r), q, r))
    return p, k


def _scale64(b: MathOps, p: Value, kb: Value) -> Value:
    """p * 2^k, one rounding (subnormals and overflow right), |k| < 2042; kb = k + 0x4338000000000000."""
    k = b.isub(kb, b.iconst(0x4338000000000000 - 2046))  # k + 2*bias
    k1 = b.lshr(k, 1)  # biased halves of k
    k2 = b.isub(k, k1)
    return b.mul(b.mul(p, b.float_of(b.shl(k1, 52))), b.float_of(b.shl(k2, 52)))


def _scale64_normal(b: MathOps, p: Value, kb: Value) -> Value:
    """p * 2^k where 2^k is a normal number."""
    return b.mul(p, b.float_of(b.iadd(b.shl(kb, 52), b.iconst(1023 << 52))))


def exp64(b: MathOps, x: Value) -> Value:
    x = b.select(b.lt(x, b.const(-746.0)), b.const(-746.0), x)  # NaN falls through
    x = b.select(b.gt(x, b.const(710.0)), b.const(710.0), x)
    p, k = _exp64_core(b, x)
    return _scale64(b, p, k)


# ---- log (f64)
# x = 2^k * m, f = m-1, s = f/(2+f), z = s^2, log m = 2 atanh s = 2s + s z R(z) = f - (h - s (h + z R)), h = f^2/2
LOG64_R = [
    H("0x1.5555555555592p-1"),
    H("0x1.999999997ff63p-2"),
    H("0x1.24924941db46bp-2"),
    H("0x1.c71c521a1d387p-3"),
    H("0x1.74663ba21b797p-3"),
    H("0x1.39a20bccf8a3ap-3"),
    H("0x1.2f024f971cbf9p-3"),
]


def log64(b: MathOps, x: Value) -> Value:
    tiny = b.lt(x, b.const(H("0x1p-1022")))
    xs = b.select(tiny, b.mul(x, b.const(H("0x1p52"))), x)
    i = b.isub(b.bits(xs), b.iconst(0x3FE6A09E667F3BCD))  # bits(sqrt(1/2))
    k = b.ashr(i, 52)
    m = b.float_of(b.isub(b.bits(xs), b.shl(k, 52)))
    f = b.sub(m, b.const(1.0))
    # k fits 12 bits.  (double)k without sitofp i64 (slow without AVX512DQ): magic add.
    n = b.sub(b.float_of(b.iadd(k, b.iconst(0x4338000000000000))), b.const(6755399441055744.0))
    n = b.add(n, b.select(tiny, b.const(-52.0), b.const(0.0)))
    s = b.div(f, b.add(f, b.const(2.0)))
    z = b.mul(s, s)
    h = b.mul(b.mul(f, b.const(0.5)), f)
    w = b.fma(z, horner(b, z, LOG64_R), h)
    r = b.fma(s, w, b.mul(n, b.const(LN2_LO_64)))
    r = b.sub(f, b.sub(h, r))
    r = b.fma(n, b.const(LN2_HI_64), r)
    bad = b.select(b.eq(x, b.const(0.0)), b.const(float("-inf")), b.const(float("nan")))
    r = b.select(b.gt(x, b.const(0.0)), r, bad)
    return b.select(b.eq(x, b.const(float("inf"))), x, r)


# ---- tanh (f64)
TANH64_P = [
    H("-0x1.5555555555529p-2"),
    H("0x1.111111110d9f2p-3"),
    H("-0x1.ba1ba1b7200aap-5"),
    H("0x1.664f47dd8a4e0p-6"),
    H("-0x1.226e20898b42ep-7"),
    H("0x1.d6d07fa5a1636p-9"),
    H("-0x1.7d76d039745fap-10"),
    H("0x1.33c5b72079022p-11"),
    H("-0x1.e2735332f3badp-13"),
    H("0x1.4ae324f4c50abp-14"),
    H("-0x1.1c75b240f0984p-16"),
]


def tanh64(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    t = b.mul(x, x)
    small = b.fma(b.mul(a, t), horner(b, t, TANH64_P), a)
    c = b.select(b.gt(a, b.const(20.0)), b.const(20.0), a)  # NaN falls through
    p, k = _exp64_core(b, b.add(c, c))
    e = _scale64_normal(b, p, k)
    big = b.sub(b.const(1.0), b.div(b.const(2.0), b.add(e, b.const(1.0))))
    return b.copysign(b.select(b.lt(a, b.const(H("0x1.3333333333333p-1"))), small, big), x)


# ---- sigmoid (f64)
def sigmoid64(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    c = b.select(b.gt(a, b.const(746.0)), b.const(746.0), a)  # NaN falls through
    p, k = _exp64_core(b, b.neg(c))
    e = _scale64(b, p, k)
    num = b.select(b.lt(x, b.const(0.0)), e, b.const(1.0))
    return b.div(num, b.add(e, b.const(1.0)))


# ---- erf (f64)
# |x| < 1.125: x + x*P(x^2);  else 1 - p(|x|-2.5)^8, p(v) ~ erfc(v+2.5)^(1/8), |x| capped at 5.9375.  No division, no exp.
ERF64_P = [
    H("0x1.06eba8214db68p-3"),
    H("-0x1.812746b0379a7p-2"),
    H("0x1.ce2f21a040596p-4"),
    H("-0x1.b82ce311f7924p-6"),
    H("0x1.565bccfc81570p-8"),
    H("-0x1.c02db15d7329bp-11"),
    H("0x1.f9a2e7201f8edp-14"),
    H("-0x1.f4ce4e5078f5bp-17"),
    H("0x1.b9b9967b6dd49p-20"),
    H("-0x1.5e18f6deac70ep-23"),
    H("0x1.ee976afb4d6d1p-27"),
    H("-0x1.2118a69b73a62p-30"),
    H("0x1.a0e7140c940bcp-35"),
]
ERF64_R = [
    H("0x1.81ea833518332p-2"),
    H("-0x1.0235ef895a004p-2"),
    H("0x1.46cbc212f54d2p-5"),
    H("0x1.55a101947f367p-7"),
    H("-0x1.ea063ab89a976p-9"),
    H("-0x1.9ddace4a76e9ep-14"),
    H("0x1.6a7c5a97d0e15p-13"),
    H("-0x1.c7f98cce1b583p-17"),
    H("-0x1.0eefc812b4512p-18"),
    H("0x1.558bf5014446cp-21"),
    H("0x1.eb5478f41532ap-25"),
    H("-0x1.1121c03f2d4e1p-26"),
    H("-0x1.c814a5c757639p-31"),
    H("0x1.ea4f8db69be74p-32"),
    H("-0x1.e27565a7b404ap-36"),
    H("-0x1.5d8d7d2371f77p-39"),
    H("0x1.1a0a42578d973p-40"),
    H("-0x1.f992f935b9ba6p-43"),
]


def erf64(b: MathOps, x: Value) -> Value:
    a = b.abs(x)
    small = b.fma(a, horner(b, b.mul(a, a), ERF64_P), a)
    c = b.select(b.gt(a, b.const(5.9375)), b.const(5.9375), a)  # NaN falls through
    p = horner(b, b.sub(c, b.const(2.5)), ERF64_R)
    p2 = b.mul(p, p)
    p4 = b.mul(p2, p2)
    big = b.fma(b.neg(p4), p4, b.const(1.0))
    return b.copysign(b.select(b.lt(a, b.const(1.125)), small, big), x)


# ---- pow
# |x|^y = exp(y log|x|) with a log that carries extra bits, then the C99 Annex F special cases.
# f32: everything in float64.   f64: log in double-double (~2^-65 relative).
POW32_L = [H("0x1.555554fde3e69p-1"), H("0x1.999a7a186ca17p-2"), H("0x1.2438f1c683e41p-2"), H("0x1.e2f2c58cbc93dp-3")]
POW32_E = [
    H("0x1.0000003a2451dp-1"),
    H("0x1.5555518696484p-3"),
    H("0x1.5554893f977c8p-5"),
    H("0x1.1116bfb0df2a9p-7"),
    H("0x1.6d92bd36f6677p-10"),
    H("0x1.98cb10664e4bdp-13"),
]
POW64_L = [
    H("0x1.9999999999b2fp-2"),
    H("0x1.2492492457f31p-2"),
    H("0x1.c71c722d3f776p-3"),
    H("0x1.745ce9f000cd3p-3"),
    H("0x1.3b1ee9e1a058ep-3"),
    H("0x1.0f8019686e985p-3"),
    H("0x1.0e4106e709a78p-3"),
]


def _pow_split(b: MathOps, ax: Value) -> tuple[Value, Value]:
    """b on f64: ax > 0 -> (n, f): ax = 2^n (1+f), 1+f in [sqrt(1/2), sqrt 2); subnormals handled."""
    tiny = b.lt(ax, b.const(H("0x1p-1022")))
    xs = b.select(tiny, b.mul(ax, b.const(H("0x1p52"))), ax)
    i = b.isub(b.bits(xs), b.iconst(0x3FE6A09E667F3BCD))
    k = b.ashr(i, 52)
    f = b.sub(b.float_of(b.isub(b.bits(xs), b.shl(k, 52))), b.const(1.0))
    n = b.sub(b.float_of(b.iadd(k, b.iconst(0x4338000000000000))), b.const(6755399441055744.0))
    return b.add(n, b.select(tiny, b.const(-52.0), b.const(0.0))), f


def _pow_log_special(b: MathOps, ax: Value, L: Value) -> Value:
    """log(0) = -inf, log(inf) = inf, log(NaN) = NaN put back."""
    L = b.select(b.lt(ax, b.const(float("inf"))), L, ax)
    return b.select(b.eq(ax, b.const(0.0)), b.const(float("-inf")), L)


def _pow_fix(b: MathOps, x: Value, y: Value, ax: Value, m: Value) -> Value:
    """m = exp(y log|x|); signs and special cases. b of the result's width."""
    one = b.const(1.0)
    inf = b.const(float("inf"))
    is_int = b.eq(b.rint(y), y)  # true for +-inf, false for NaN
    h = b.mul(y, b.const(0.5))
    odd = b.mand(is_int, b.mnot(b.eq(b.rint(h), h)))
    sign = b.iand(b.bits(x), b.iconst(1 << (b.dt - 1)))
    m = b.float_of(b.iselect(odd, b.ior(b.bits(m), sign), b.bits(m)))
    # finite x < 0 and y not an integer -> NaN (a NaN y gives NaN too)
    dom = b.mand(b.mand(b.lt(x, b.const(0.0)), b.lt(ax, inf)), b.mnot(is_int))
    m = b.select(dom, b.const(float("nan")), m)
    # x == 1, y == 0 -> 1 even for NaN;  (-1)^(+-inf) = 1
    ones = b.mor(b.eq(x, one), b.eq(y, b.const(0.0)))
    ones = b.mor(ones, b.mand(b.eq(ax, one), b.eq(b.abs(y), inf)))
    return b.select(ones, one, m)


def pow32(b: MathOps, x: Value, y: Value) -> Value:
    ax = b.abs(x)
    w = b.wide()
    A = w.widen(ax)  # f32 subnormals are normal in f64
    i = w.isub(w.bits(A), w.iconst(0x3FE6A09E667F3BCD))
    k = w.ashr(i, 52)
    f = w.sub(w.float_of(w.isub(w.bits(A), w.shl(k, 52))), w.const(1.0))
    n = w.sub(w.float_of(w.iadd(k, w.iconst(0x4338000000000000))), w.const(6755399441055744.0))
    s = w.div(f, w.add(f, w.const(2.0)))
    z = w.mul(s, s)
    L = w.fma(w.mul(s, z), horner(w, z, POW32_L), w.add(s, s))
    L = w.fma(n, w.const(H("0x1.62e42fefa39efp-1")), L)
    L = _pow_log_special(w, A, L)
    t = w.mul(w.widen(y), L)
    t = w.select(w.lt(t, w.const(-150.0)), w.const(-150.0), t)  # NaN falls through
    t = w.select(w.gt(t, w.const(150.0)), w.const(150.0), t)
    magic = w.const(6755399441055744.0)
    u = w.fma(t, w.const(H("0x1.71547652b82fep+0")), magic)
    q = w.sub(u, magic)
    k = w.bits(u)
    r = w.fma(q, w.const(-H("0x1.62e42fefa39efp-1")), t)
    p = w.add(w.const(1.0), w.fma(w.mul(r, r), horner(w, r, POW32_E), r))
    m = _scale64_normal(w, p, k)
    return _pow_fix(b, x, y, ax, w.narrow(m))  # narrow: the only f32 rounding


def pow64(b: MathOps, x: Value, y: Value) -> Value:
    ax = b.abs(x)
    n, f = _pow_split(b, ax)
    two = b.const(2.0)
    # s = f/(2+f) as sh + sl
    gh = b.add(f, two)
    gl = b.sub(f, b.sub(gh, two))
    inv = b.div(b.const(1.0), gh)
    sh = b.mul(f, inv)
    rem = b.fma(b.neg(sh), gh, f)
    rem = b.fma(b.neg(sh), gl, rem)
    sl = b.mul(rem, inv)
    # z = s^2
    zh = b.mul(sh, sh)
    zl = b.fma(b.add(sh, sh), sl, b.fma(sh, sh, b.neg(zh)))
    # c = s^3
    ch = b.mul(zh, sh)
    cl = b.fma(zh, sh, b.neg(ch))
    cl = b.fma(zl, sh, b.fma(zh, sl, cl))
    # R = 2/3 + z P(z) as Rh + Rl
    t23 = b.const(H("0x1.5555555555555p-1"))
    P = b.mul(zh, horner(b, zh, POW64_L))
    Rh = b.add(t23, P)
    Rl = b.add(b.sub(P, b.sub(Rh, t23)), b.const(H("0x1.5555555555555p-55")))
    # d = s^3 R
    dh = b.mul(ch, Rh)
    dl = b.fma(ch, Rh, b.neg(dh))
    dl = b.fma(cl, Rh, b.fma(ch, Rl, dl))
    # log(1+f) = 2s + d
    s2 = b.add(sh, sh)
    lh = b.add(s2, dh)
    ll = b.add(b.sub(dh, b.sub(lh, s2)), b.fma(two, sl, dl))
    # + n ln2
    a = b.mul(n, b.const(LN2_HI_64))  # exact
    Lh = b.add(a, lh)
    Ll = b.add(b.sub(lh, b.sub(Lh, a)), b.fma(n, b.const(LN2_LO_64), ll))
    H2 = b.add(Lh, Ll)  # renormalise
    Ll = b.sub(Ll, b.sub(H2, Lh))
    Lh = _pow_log_special(b, ax, H2)
    # t = y log x
    th = b.mul(y, Lh)
    tl = b.fma(y, Ll, b.fma(y, Lh, b.neg(th)))
    big = b.gt(b.abs(th), b.const(800.0))
    th = b.select(big, b.copysign(b.const(800.0), th), th)  # NaN falls through
    tl = b.select(big, b.const(0.0), tl)
    # exp(th + tl)
    magic = b.const(6755399441055744.0)
    u = b.fma(th, b.const(H("0x1.71547652b82fep+0")), magic)
    q = b.sub(u, magic)
    k = b.bits(u)
    r = b.fma(q, b.const(-LN2_HI_64), th)
    r = b.add(r, b.fma(q, b.const(-LN2_LO_64), tl))
    p = b.add(b.const(1.0), b.fma(b.mul(r, r), horner(b, r, EXP64_Q), r))
    return _pow_fix(b, x, y, ax, _scale64(b, p, k))


MATH_FUNCTIONS: Final[dict[tuple[Op, str], Callable[..., Value]]] = {
    (Op.EXP, "float"): exp32,
    (Op.EXP, "double"): exp64,
    (Op.LOG, "float"): log32,
    (Op.LOG, "double"): log64,
    (Op.TANH, "float"): tanh32,
    (Op.TANH, "double"): tanh64,
    (Op.ERF, "float"): erf32,
    (Op.ERF, "double"): erf64,
    (Op.SIGMOID, "float"): sigmoid32,
    (Op.SIGMOID, "double"): sigmoid64,
    (Op.SIN, "float"): sin32,
    (Op.SIN, "double"): sin64,
    (Op.COS, "float"): cos32,
    (Op.COS, "double"): cos64,
    (Op.POW, "float"): pow32,
    (Op.POW, "double"): pow64,
}
"""The function of a primitive on elements of a type."""

"""Sine and cosine in float32 and float64 for every finite argument, within 4 ulp.

Up to 2^17 the argument is reduced by Cody and Waite's method in fused steps, beyond by Payne and Hanek's: the fraction of
x / (2 pi) from as many bits of 1 / (2 pi) as the exponent asks for. Written against `MathOps`, without branches.
"""

from __future__ import annotations

from typing import Final

from hotblock_farm.compiler.codegen.ir import Value
from hotblock_farm.compiler.codegen.math_ops import MathOps, horner

__all__ = ["cos32", "cos64", "sin32", "sin64"]

H: Final = float.fromhex

# ---- sin / cos
# a = |x| is reduced to r (+ rl) in [-pi/4, pi/4] and a quadrant number; the sign of x is XORed in at the end.
#   *_small : valid for |x| <= 2^17 (Cody-Waite, fma);  inf/NaN -> NaN.
#   full    : selects between Cody-Waite and Payne-Hanek per lane.  Payne-Hanek is long: a generator should emit
#             the full form behind a branch "any lane > 2^17" and use *_small otherwise.
SIN32_P = [H("-0x1.55554400p-3"), H("0x1.1106c600p-7"), H("-0x1.991c2600p-13")]
COS32_P = [H("0x1.55554a00p-5"), H("-0x1.6c0c2400p-10"), H("0x1.99e61600p-16")]
SIN64_P = [
    H("-0x1.5555555555548p-3"),
    H("0x1.111111110f71ep-7"),
    H("-0x1.a01a019be5926p-13"),
    H("0x1.71de35514ecb1p-19"),
    H("-0x1.ae5e48097cd5ap-26"),
    H("0x1.5d8a38a4f3a31p-33"),
]
COS64_P = [
    H("0x1.555555555554ap-5"),
    H("-0x1.6c16c16c14e00p-10"),
    H("0x1.a01a019c5c38cp-16"),
    H("-0x1.27e4f7cd31070p-22"),
    H("0x1.1ee9c334fdba9p-29"),
    H("-0x1.8f99cb35f08a0p-37"),
]
PIO2_32 = [H("0x1.921fb600p+0"), H("-0x1.777a5c00p-25"), H("-0x1.ee59da00p-50")]
PIO2_64 = [H("0x1.921fb54442d18p+0"), H("0x1.1a62633145c07p-54"), H("-0x1.f1976b7ed8fbcp-110")]
# 1/(2 pi) cut into 29-bit pieces (bits 29j+1 .. 29j+29): |x|_f32 * piece is exact in float64
INV2PI_29 = [
    H("0x1.45f306c0p-3"),
    H("0x1.c9c882a0p-31"),
    H("0x1.4fe13a80p-61"),
    H("0x1.f47d4d30p-88"),
    H("0x1.dc0db620p-118"),
    H("0x1.2b327880p-147"),
    H("0x1.c820ff00p-177"),
]
# PH64_Tk[i] = k-th double of  2^(1040+32i-1075)/(2 pi) mod 1   (quadruple-double, 32 entries each = 1 KiB in all)
PH64_T0 = [
    H("0x1.45f306dc9c883p-38"),
    H("0x1.45f306dc9c883p-6"),
    H("0x1.c9c882a53f84fp-2"),
    H("0x1.3f84eafa3ea6ap-2"),
    H("0x1.1f534ddc0db63p-1"),
    H("0x1.b6c52b3278872p-6"),
    H("0x1.93c439041fe51p-1"),
    H("0x1.fe5163abdebbcp-5"),
    H("0x1.7bd778ac36e49p-2"),
    H("0x1.b7246e3a424ddp-5"),
    H("0x1.a424dd2e00649p-1"),
    H("0x1.924bba8274648p-11"),
    H("0x1.413a32439fc3cp-2"),
    H("0x1.cfe1deb1cb12ap-1"),
    H("0x1.cb129a73ee882p-1"),
    H("0x1.ee88235f52ebbp-1"),
    H("0x1.52ebb4484e99cp-1"),
    H("0x1.3a671c09ad17ep-3"),
    H("0x1.ad17df904e647p-3"),
    H("0x1.3991d63983534p-5"),
    H("0x1.9835339f49c84p-1"),
    H("0x1.49c845f8bbdf9p-1"),
    H("0x1.77bf250763ff1p-2"),
    H("0x1.b1ff897ffde06p-1"),
    H("0x1.fde05980fef2fp-1"),
    H("0x1.fde5e2316b415p-2"),
    H("0x1.6b414da3eda6dp-2"),
    H("0x1.f6d367ecf27cbp-1"),
    H("0x1.e4f96136e9e8cp-2"),
    H("0x1.74f463f669e60p-1"),
    H("0x1.a797fa8b5d49fp-3"),
    H("0x1.aea4f758fd7ccp-2"),
]
PH64_T1 = [
    H("-0x1.6b01ec5417056p-92"),
    H("-0x1.6b01ec5417056p-60"),
    H("-0x1.4170565911f92p-56"),
    H("-0x1.11f924eb53362p-56"),
    H("-0x1.a99b0ef1bef80p-55"),
    H("0x1.07f9458eaf7afp-63"),
    H("0x1.8eaf7aef1586ep-55"),
    H("0x1.586dc91b8e909p-59"),
    H("-0x1.1c5bdb22d1ffap-57"),
    H("0x1.700324977504fp-60"),
    H("0x1.77504e8c90e7fp-56"),
    H("0x1.cfe1deb1cb12ap-65"),
    H("-0x1.4e34ed658c117p-57"),
    H("-0x1.63045df7282b4p-55"),
    H("0x1.afa975da24275p-56"),
    H("0x1.1213a671c09adp-55"),
    H("0x1.c09ad17df904ep-55"),
    H("-0x1.bec66e29c67cbp-61"),
    H("0x1.639835339f49dp-57"),
    H("-0x1.82d8dee81d108p-59"),
    H("0x1.7e2ef7e4a0ec8p-55"),
    H("0x1.41d8ffc4bffefp-56"),
    H("0x1.7ffde05980fefp-57"),
    H("-0x1.9fc04343b9d29p-55"),
    H("0x1.18b5a0a6d1f6dp-57"),
    H("-0x1.2e092c98130d8p-57"),
    H("-0x1.30d834f648b0cp-61"),
    H("0x1.36e9e8c7ecd3dp-58"),
    H("0x1.fb34f2ff516bbp-56"),
    H("-0x1.5d28ad8453814p-57"),
    H("-0x1.4e050683a130cp-59"),
    H("-0x1.d0985f18c10ebp-58"),
]
PH64_T2 = [
    H("-0x1.6447e493ad4cep-146"),
    H("-0x1.6447e493ad4cep-114"),
    H("-0x1.3ad4cd8778df8p-110"),
    H("0x1.0e4107f9458ebp-111"),
    H("-0x1.ae9c5421443aap-109"),
    H("-0x1.d4f246dc8e2dfp-120"),
    H("-0x1.b7238b7b645a4p-110"),
    H("0x1.ba5c00c925dd4p-114"),
    H("0x1.24bba82746487p-111"),
    H("-0x1.cdbc603c429c7p-114"),
    H("0x1.deb1cb129a73fp-113"),
    H("-0x1.63045df7282b4p-119"),
    H("-0x1.f7282b4512edfp-111"),
    H("-0x1.44bb7b16638fep-109"),
    H("-0x1.8e3f652e82070p-111"),
    H("0x1.7df904e64758ep-111"),
    H("0x1.91d639835339fp-109"),
    H("0x1.9cfa4e422fc5ep-116"),
    H("-0x1.ee81d1081b5f1p-111"),
    H("-0x1.b5f13801da001p-115"),
    H("-0x1.da00087e99fc0p-115"),
    H("0x1.6603fbcbc462dp-115"),
    H("0x1.788c5ad053690p-112"),
    H("-0x1.f592e092c9813p-109"),
    H("0x1.b3f6793e584dcp-112"),
    H("-0x1.a7b24585ce04dp-112"),
    H("0x1.8fd9a797fa8b6p-115"),
    H("-0x1.00ae9456c229cp-112"),
    H("-0x1.b08a7028341d1p-110"),
    H("-0x1.a0e84c2f8c608p-113"),
    H("0x1.ce7de294a4baap-115"),
    H("-0x1.6b68aca025027p-112"),
]
PH64_T3 = [
    H("0x1.e21c820ff28b2p-200"),
    H("0x1.e21c820ff28b2p-168"),
    H("0x1.fe5163abdebbcp-165"),
    H("-0x1.0a21d4f246dc9p-168"),
    H("0x1.b7246e3a424ddp-165"),
    H("0x1.374b801924bbbp-175"),
    H("0x1.924bba8274648p-171"),
    H("0x1.3a32439fc3bd6p-170"),
    H("0x1.fc3bd63962535p-166"),
    H("0x1.894d39f74411bp-168"),
    H("-0x1.77dca0ad144bbp-169"),
    H("-0x1.44bb7b16638fep-173"),
    H("0x1.d338e04d68bf0p-166"),
    H("0x1.ad17df904e647p-163"),
    H("0x1.3991d63983534p-165"),
    H("0x1.835339f49c846p-165"),
    H("0x1.272117e2ef7e5p-163"),
    H("-0x1.036be27003b40p-172"),
    H("-0x1.c00ed00043f4dp-166"),
    H("0x1.e05980fef2f12p-169"),
    H("-0x1.0d0ee74a5f593p-169"),
    H("0x1.a0a6d1f6d367fp-169"),
    H("-0x1.25930261b069fp-166"),
    H("-0x1.b069ec9161738p-166"),
    H("-0x1.61738132c3403p-166"),
    H("0x1.3cbfd45aea4f7p-166"),
    H("-0x1.5b08a7028341dp-170"),
    H("-0x1.41a0e84c2f8c6p-169"),
    H("0x1.9e839cfbc5295p-164"),
    H("-0x1.d6b5b45650128p-167"),
    H("-0x1.404a04ee072a3p-169"),
    H("-0x1.c0e545ef53f9ap-166"),
]


def _two_sum(b: MathOps, x: Value, y: Value) -> tuple[Value, Value]:
    s = b.add(x, y)
    t = b.sub(s, x)
    return s, b.add(b.sub(x, b.sub(s, t)), b.sub(y, t))


def _reduce_small32(b: MathOps, a: Value) -> tuple[Value, Value, Value]:
    """0 <= a <= 2^17 -> r, rl, k (int, quadrant in the low 2 bits)"""
    magic = b.const(12582912.0)
    t = b.fma(a, b.const(H("0x1.45f306p-1")), magic)
    n = b.sub(t, magic)
    k = b.bits(t)  # low bits of the magic number are zero
    m = b.neg(n)
    r0 = b.fma(m, b.const(PIO2_32[0]), a)  # exact
    r1 = b.fma(m, b.const(PIO2_32[1]), r0)
    r = b.fma(m, b.const(PIO2_32[2]), r1)
    rl = b.fma(m, b.const(PIO2_32[2]), b.sub(r1, r))
    return r, rl, k


def _reduce_big32(b: MathOps, a: Value) -> tuple[Value, Value, Value]:
    """Any a >= 0 (best for a > 2^17), float64 arithmetic, no table: fractions of a/(2 pi) piece by piece."""
    w = b.wide()
    wide = w.widen(a)
    fractions = []
    for c in INV2PI_29:
        t = w.mul(wide, w.const(c))  # exact
        fractions.append(w.sub(t, w.rint(t)))  # exact, |f| <= 1/2
    s, e = _two_sum(w, fractions[0], fractions[1])
    for f in fractions[2:]:
        s, d = _two_sum(w, s, f)
        e = w.add(e, d)
    q = w.rint(w.mul(s, w.const(4.0)))
    s = w.add(w.fma(q, w.const(-0.25), s), e)
    r64 = w.mul(s, w.const(H("0x1.921fb54442d18p+2")))
    r = w.narrow(r64)
    rl = w.narrow(w.sub(r64, w.widen(r)))
    k = b.bits(b.add(w.narrow(q), b.const(12582912.0)))
    return r, rl, k


def _sincos32(b: MathOps, x: Value, a: Value, r: Value, rl: Value, k: Value, is_cos: bool) -> Value:
    z = b.mul(r, r)
    s = b.add(r, b.fma(b.mul(z, r), horner(b, z, SIN32_P), rl))
    hz = b.mul(z, b.const(0.5))
    w = b.sub(b.const(1.0), hz)
    c = b.fma(b.neg(r), rl, b.sub(b.sub(b.const(1.0), w), hz))
    c = b.add(w, b.fma(b.mul(z, z), horner(b, z, COS32_P), c))
    odd = b.ieq(b.iand(k, b.iconst(1)), b.iconst(0 if is_cos else 1))
    v = b.select(odd, c, s)
    # sign: sin: quadrants 2,3; cos: quadrants 1,2
    j = b.iadd(k, b.iconst(1)) if is_cos else k
    sg = b.iand(b.shl(j, 30), b.iconst(0x80000000))
    if not is_cos:
        sg = b.ixor(sg, b.iand(b.bits(x), b.iconst(0x80000000)))
    return b.float_of(b.ixor(b.bits(v), sg))


def _trig32(b: MathOps, x: Value, is_cos: bool, full: bool) -> Value:
    a = b.abs(x)
    r, rl, k = _reduce_small32(b, a)
    if full:
        R, RL, K = _reduce_big32(b, a)
        big = b.gt(a, b.const(131072.0))
        r = b.select(big, R, r)
        rl = b.select(big, RL, rl)
        k = b.iselect(big, K, k)
    return _sincos32(b, x, a, r, rl, k, is_cos)


def sin32(b: MathOps, x: Value) -> Value:
    return _trig32(b, x, False, True)


def cos32(b: MathOps, x: Value) -> Value:
    return _trig32(b, x, True, True)


def _reduce_small64(b: MathOps, a: Value) -> tuple[Value, Value, Value]:
    magic = b.const(6755399441055744.0)
    t = b.fma(a, b.const(H("0x1.45f306dc9c883p-1")), magic)
    n = b.sub(t, magic)
    k = b.bits(t)
    m = b.neg(n)
    r0 = b.fma(m, b.const(PIO2_64[0]), a)  # exact
    ph = b.mul(m, b.const(PIO2_64[1]))
    pl = b.fma(m, b.const(PIO2_64[1]), b.neg(ph))  # exact
    r1, e = _two_sum(b, r0, ph)
    rl = b.add(e, b.fma(m, b.const(PIO2_64[2]), pl))
    r = b.add(r1, rl)  # renormalise
    rl = b.sub(rl, b.sub(r, r1))
    return r, rl, k


def _reduce_big64(b: MathOps, a: Value) -> tuple[Value, Value, Value]:
    """a > 2^17, finite (inf/NaN -> NaN); smaller a give garbage (but no trap, the index is clamped)."""
    i = b.ashr(b.isub(b.lshr(b.bits(a), 52), b.iconst(1040)), 5)
    i = b.iselect(b.ilt(i, b.iconst(0)), b.iconst(0), i)  # 0..31
    e0 = b.shl(i, 5)
    X = b.mul(a, b.float_of(b.shl(b.isub(b.iconst(1023 + 1075 - 1040), e0), 52)))  # integer < 2^84, exact
    C = [b.table(T, i) for T in (PH64_T0, PH64_T1, PH64_T2, PH64_T3)]

    def frac(v: Value) -> Value:
        return b.sub(v, b.rint(v))

    hi = [b.mul(X, c) for c in C]
    lo = [b.fma(X, c, b.neg(h)) for c, h in zip(C[:3], hi[:3], strict=True)]
    terms = [frac(hi[0]), frac(lo[0]), frac(hi[1]), lo[1], hi[2], lo[2], hi[3]]
    s0, s1 = _two_sum(b, terms[0], terms[1])
    rest = []
    for term in terms[2:]:
        s0, v = _two_sum(b, s0, term)
        s1, v = _two_sum(b, s1, v)
        rest.append(v)
    s2 = rest[0]
    for v in rest[1:]:
        s2 = b.add(s2, v)
    q = b.rint(b.mul(s0, b.const(4.0)))
    s0 = b.fma(q, b.const(-0.25), s0)  # exact
    h, l = _two_sum(b, s0, s1)
    l = b.add(l, s2)
    p = b.const(H("0x1.921fb54442d18p+2"))  # 2 pi
    r = b.mul(h, p)
    rl = b.fma(h, p, b.neg(r))
    rl = b.add(rl, b.fma(h, b.const(H("0x1.1a62633145c07p-52")), b.mul(l, p)))
    R = b.add(r, rl)
    rl = b.sub(rl, b.sub(R, r))
    k = b.bits(b.add(q, b.const(6755399441055744.0)))
    return R, rl, k


def _sincos64(b: MathOps, x: Value, a: Value, r: Value, rl: Value, k: Value, is_cos: bool) -> Value:
    z = b.mul(r, r)
    hz = b.mul(z, b.const(0.5))
    w = b.sub(b.const(1.0), hz)
    s = b.add(r, b.fma(b.mul(z, r), horner(b, z, SIN64_P), b.mul(rl, w)))
    c = b.fma(b.neg(r), rl, b.sub(b.sub(b.const(1.0), w), hz))
    c = b.add(w, b.fma(b.mul(z, z), horner(b, z, COS64_P), c))
    odd = b.ieq(b.iand(k, b.iconst(1)), b.iconst(0 if is_cos else 1))
    v = b.select(odd, c, s)
    j = b.iadd(k, b.iconst(1)) if is_cos else k
    sg = b.iand(b.shl(j, 62), b.iconst(1 << 63))
    if not is_cos:
        sg = b.ixor(sg, b.iand(b.bits(x), b.iconst(1 << 63)))
    return b.float_of(b.ixor(b.bits(v), sg))


def _trig64(b: MathOps, x: Value, is_cos: bool, full: bool) -> Value:
    a = b.abs(x)
    r, rl, k = _reduce_small64(b, a)
    if full:
        R, RL, K = _reduce_big64(b, a)
        big = b.gt(a, b.const(131072.0))
        r = b.select(big, R, r)
        rl = b.select(big, RL, rl)
        k = b.iselect(big, K, k)
    return _sincos64(b, x, a, r, rl, k, is_cos)


def sin64(b: MathOps, x: Value) -> Value:
    return _trig64(b, x, False, True)


def cos64(b: MathOps, x: Value) -> Value:
    return _trig64(b, x, True, True)

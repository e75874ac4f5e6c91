"""Each form of a PTX instruction gives what the PTX ISA says."""

import math
import struct

import pytest

from tests.backends.ptx.build import no_compiler
from tests.backends.ptx.forms import BITS, MEANINGS
from tests.backends.ptx.texts import Texts, entry
from tests.backends.ptx.translate import Untranslatable, translate

pytestmark = pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))

NAN, INF = math.nan, math.inf
LEAST32, LEAST64 = 1 << 31, 1 << 63
QUIET = 0x7FFFFFFF
# form -> operands and result, each as bits or a float. NaN as a result is any NaN.
CASES = {
    "mov.b32": [(0x80000001, 0x80000001)], "mov.f32": [(-0.0, -0.0)], "mov.pred": [(1, 1), (0, 0)],
    "selp.b64": [(1 << 40, 2, 1, 1 << 40), (1, 2, 0, 2)],
    "add.s32": [(0x7FFFFFFF, 1, LEAST32)], "add.u16": [(0xFFFF, 2, 1)], "sub.u32": [(0, 1, 0xFFFFFFFF)],
    "add.s64": [(2**63 - 1, 1, LEAST64)],
    "mul.lo.s32": [(0x10001, 0x10001, 0x20001)], "mul.lo.u16": [(0xFFFF, 0xFFFF, 1)],
    "mad.lo.s32": [(-3, 5, 1, -14), (LEAST32, 2, 7, 7)],
    "mul.hi.u16": [(0xFFFF, 0xFFFF, 0xFFFE)], "mul.hi.s32": [(-2, 3, -1)],
    "mul.hi.u32": [(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE)],
    "mul.hi.s64": [(-2, 3, -1)], "mul.hi.u64": [(2**64 - 1, 2**64 - 1, 2**64 - 2)],
    "mul.wide.s32": [(-3, 5, -15)], "mul.wide.u32": [(0xFFFFFFFF, 2, 0x1FFFFFFFE)],
    "mad.wide.s32": [(-3, 5, 1, -14)], "mad.wide.u32": [(0xFFFFFFFF, 2, 1 << 32, 0x2FFFFFFFE)],
    "mul.wide.u16": [(0xFFFF, 0xFFFF, 0xFFFE0001)],
    "div.s32": [(-7, 2, -3), (LEAST32, -1, LEAST32)], "div.u32": [(0xFFFFFFFF, 2, 0x7FFFFFFF)],
    "div.s64": [(LEAST64, -1, LEAST64)],
    "rem.s32": [(-7, 2, -1), (7, -2, 1), (LEAST32, -1, 0)], "rem.u32": [(0xFFFFFFFF, 16, 15)],
    "min.s32": [(-1, 0, -1)], "min.u32": [(0xFFFFFFFF, 0, 0)], "max.s32": [(-1, 0, 0)],
    "max.u64": [(2**64 - 1, 0, 2**64 - 1)], "neg.s32": [(5, -5), (LEAST32, LEAST32)],
    "and.b32": [(12, 10, 8)], "or.b16": [(12, 10, 14)], "xor.b64": [(12, 10, 6)], "not.b16": [(0xFF, 0xFF00)],
    "and.pred": [(1, 0, 0), (1, 1, 1)], "or.pred": [(1, 0, 1)], "xor.pred": [(1, 1, 0)], "not.pred": [(1, 0), (0, 1)],
    # Shifts by the width and more.
    "shl.b16": [(1, 15, 0x8000), (1, 16, 0), (1, 33, 0)],
    "shl.b32": [(1, 31, LEAST32), (1, 32, 0), (1, 0xFFFFFFFF, 0)], "shl.b64": [(1, 63, LEAST64), (1, 64, 0)],
    "shr.u32": [(LEAST32, 31, 1), (LEAST32, 32, 0)], "shr.b32": [(LEAST32, 31, 1), (LEAST32, 99, 0)],
    "shr.s32": [(LEAST32, 31, -1), (LEAST32, 32, -1), (LEAST32, 0xFFFFFFFF, -1), (5, 40, 0)],
    "shr.s64": [(LEAST64, 64, -1)], "shr.u64": [(LEAST64, 63, 1), (LEAST64, 64, 0)],
    "shf.l.wrap.b32": [(LEAST32, 1, 1, 3), (LEAST32, 1, 33, 3), (5, 6, 0, 6)],
    "shf.l.clamp.b32": [(LEAST32, 1, 1, 3), (LEAST32, 1, 33, LEAST32), (5, 6, 32, 5)],
    "shf.r.wrap.b32": [(4, 1, 1, LEAST32 | 2), (4, 1, 33, LEAST32 | 2), (4, 1, 32, 4)],
    "shf.r.clamp.b32": [(4, 1, 1, LEAST32 | 2), (4, 1, 32, 1), (4, 9, 99, 9)],
    "popc.b32": [(0, 0), (0xF000000F, 8)], "clz.b32": [(0, 32), (1, 31)], "clz.b64": [(0, 64), (1 << 40, 23)],
    "brev.b32": [(1, LEAST32), (0x80000002, 0x40000001)],
    "bfind.u32": [(0, 0xFFFFFFFF), (1, 0), (LEAST32, 31)],
    "bfind.shiftamt.u32": [(0, 0xFFFFFFFF), (1, 31), (LEAST32, 0)],
    "bfi.b32": [(0xFF, 0, 4, 4, 0xF0), (0xFF, 7, 32, 4, 7), (0xFF, 7, 4, 0, 7), (0xFF, 7, 28, 40, 0xF0000007)],
    "bfi.b64": [(3, 0, 62, 2, 3 << 62)],
    "bfe.u32": [(0xF0, 4, 4, 0xF), (0xF0, 4, 0, 0), (0xF0, 40, 4, 0), (LEAST32, 28, 99, 8)],
    "bfe.s32": [(0xF0, 4, 4, -1), (0x70, 4, 4, 7), (0xF0, 4, 0, 0), (LEAST32, 40, 4, -1)],
    # A selector's highest bit asks for the sign of its byte.
    "prmt.b32": [(0x03020100, 0x07060504, 0x7531, 0x07050301), (0x80, 0, 0x1118, 0xFF), (0, 0x7F, 0x000C, 0)],
    "setp.eq.s32": [(1, 1, 1), (1, 2, 0)], "setp.ne.s64": [(1, 1 << 40, 1)], "setp.lt.s32": [(-1, 0, 1)],
    "setp.lt.u32": [(0xFFFFFFFF, 0, 0)], "setp.le.s32": [(-1, -1, 1)], "setp.gt.u64": [(LEAST64, 1, 1)],
    "setp.ge.s64": [(LEAST64, 1, 0)], "setp.lt.s16": [(0xFFFF, 0, 1)],
    # Ordered comparisons are false beside a NaN, unordered ones true.
    **{f"setp.{name}.f32": [(NAN, 1.0, 0), (1.0, NAN, 0), (1.0, 2.0, less), (1.0, 1.0, same), (2.0, 1.0, more)]
       for name, less, same, more in (("eq", 0, 1, 0), ("ne", 1, 0, 1), ("lt", 1, 0, 0), ("le", 1, 1, 0),
                                      ("gt", 0, 0, 1), ("ge", 0, 1, 1), ("num", 1, 1, 1))},
    **{f"setp.{name}.f32": [(NAN, 1.0, 1), (1.0, NAN, 1), (1.0, 2.0, less), (1.0, 1.0, same), (2.0, 1.0, more)]
       for name, less, same, more in (("equ", 0, 1, 0), ("neu", 1, 0, 1), ("ltu", 1, 0, 0), ("leu", 1, 1, 0),
                                      ("gtu", 0, 0, 1), ("geu", 0, 1, 1), ("nan", 0, 0, 0))},
    "add.rn.f32": [(1.0, 2.0**-24, 1.0), (1.0, 3 * 2.0**-24, 1.0 + 2.0**-22), (INF, -INF, NAN)],
    "sub.rn.f32": [(1.0, 2.0**-25, 1.0)], "add.f32": [(2.0**-149, 2.0**-149, 2.0**-148)], "sub.f32": [(1.0, 1.0, 0.0)],
    "mul.rn.f32": [(2.0**-100, 2.0**-40, 2.0**-140), (INF, 0.0, NAN)], "mul.f32": [(-0.0, 2.0, -0.0)],
    "div.rn.f32": [(1.0, 0.0, INF), (1.0, 3.0, struct.unpack("f", struct.pack("f", 1 / 3))[0])],
    # Rounded once: the product alone would round to what is taken away.
    "fma.rn.f32": [(1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-11), 2.0**-24)],
    "rcp.rn.f32": [(4.0, 0.25), (-0.0, -INF)], "neg.f32": [(0.0, -0.0)], "abs.f32": [(-3.0, 3.0), (-0.0, 0.0)],
    "min.f32": [(NAN, 1.0, 1.0), (1.0, NAN, 1.0), (NAN, NAN, QUIET), (0.0, -0.0, -0.0), (-0.0, 0.0, -0.0)],
    "max.f32": [
        (NAN, 1.0, 1.0), (1.0, NAN, 1.0), (NAN, NAN, QUIET), (0.0, -0.0, 0.0), (-0.0, 0.0, 0.0),
        (3.0, NAN, 1.0, 3.0), (1.0, 2.0, 3.0, 3.0),
    ],
    "max.NaN.f32": [
        (NAN, 1.0, QUIET), (1.0, NAN, QUIET), (1.0, 2.0, 2.0), (-0.0, 0.0, 0.0), (1.0, 2.0, NAN, QUIET),
        (1.0, 3.0, 2.0, 3.0),
    ],
    "max.NaN.bf16": [(0x7FC1, 0x3F80, 0x7FFF), (0x3F80, 0x4000, 0x4000), (0x8000, 0, 0)],
    "setp.num.bf16": [(0x7FC1, 0x3F80, 0), (0x3F80, 0xFF81, 0), (0x3F80, 0x7F80, 1)],
    "cvt.f32.bf16": [(0x3F80, 1.0), (0xFF80, -INF), (0x7FC1, NAN), (0x0001, 2.0**-133)],
    "add.rn.f32x2": [(0x3F80000040000000, 0x4000000080000000, 0x4040000040000000)],
    "sub.rn.f32x2": [(0x3F80000040000000, 0x4000000040000000, 0xBF80000000000000)],
    "mul.rn.f32x2": [(0x3F80000040000000, 0x40000000C0000000, 0x40000000C0800000)],
    # As fma.rn.f32 in the upper half: rounded once.
    "fma.rn.f32x2": [(0x3F80080040000000, 0x3F800800C0000000, 0xBF80100040000000, 0x33800000C0000000)],
    "max.NaN.f16x2": [(0x7E013C00, 0x3C004000, 0x7FFF4000), (0x80000000, 0x00008000, 0)],
    "max.NaN.bf16x2": [(0x7FC13F80, 0x3F804000, 0x7FFF4000), (0xFF800000, 0x00008000, 0)],
    "ex2.approx.ftz.f32": [(-0.0, 1.0), (2.0**-140, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN), (-127.0, 0.0)],
    "ex2.approx.f32": [(2.0**-140, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN), (-127.0, 2.0**-127), (-160.0, 0.0)],
    "div.full.f32": [(1.0, 0.0, INF), (INF, INF, NAN), (1.0, INF, 0.0), (-1.0, 2.0**127, -(2.0**-127))],
    "lg2.approx.ftz.f32": [(0.0, -INF), (-0.0, -INF), (-(2.0**-140), -INF), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "cvt.u16.u32": [(0x12345, 0x2345)], "cvt.s32.s8": [(0x80, -128), (0x17F, 127)], "cvt.s64.s32": [(-1, -1)],
    "cvt.u64.u32": [(0xFFFFFFFF, 0xFFFFFFFF)], "cvt.u32.u64": [((5 << 32) + 6, 6)], "cvt.u32.s16": [(0xFFFF, -1)],
    # What is narrower than its register fills it: by its sign, or zeros.
    "cvt.s8.s32": [(0x1FF, -1)], "cvt.u8.u32": [(0x1FF, 0xFF)],
    "cvt.rn.f32.s32": [(16777217, 16777216.0), (16777219, 16777220.0), (-1, -1.0)],
    "cvt.rn.f32.u32": [(0xFFFFFFFF, 2.0**32)], "cvt.rn.f32.u64": [(2**64 - 1, 2.0**64)],
    "cvt.rzi.u32.f32": [(3.9, 3), (-3.9, 0), (1e10, 0xFFFFFFFF), (NAN, 0), (INF, 0xFFFFFFFF)],
    "cvt.rzi.s32.f32": [(-3.9, -3), (1e10, 0x7FFFFFFF), (-1e10, LEAST32), (NAN, 0)],
    "cvt.rzi.u64.f32": [(1e20, 2**64 - 1), (-1.0, 0), (2.0**63, LEAST64), (NAN, LEAST64)],
    "cvt.rzi.s64.f32": [(2.0**63, LEAST64 - 1), (-INF, LEAST64), (NAN, LEAST64)],
    "cvt.f32.f16": [(0x3C00, 1.0), (0x0001, 2.0**-24), (0xFC00, -INF), (0x7E00, NAN)],
    "cvt.rn.f16.f32": [(65520.0, 0x7C00), (65519.0, 0x7BFF), (2.0**-25, 0), (1 + 2.0**-11, 0x3C00)],
}  # fmt: skip
REGISTER = {16: "%rs", 32: "%r", 64: "%rd"}


def width(kind):
    """Bits of the register: one byte has a wider one, and a predicate is seen through one."""
    return max(BITS[kind], 32 if BITS[kind] < 16 else 0)


def bits(value, kind):
    if isinstance(value, float):
        return struct.unpack("<I", struct.pack("<f", value))[0]
    return value & ((1 << width(kind)) - 1)


def one(index, form, operands):
    """PTX that puts a form's result into word `index`."""
    meaning = MEANINGS[form]
    lines, names = [], []
    kinds = (*meaning.operands, meaning.operands[-1])[: len(operands)]  # min and max take two or three
    for i, (value, kind) in enumerate(zip(operands, kinds, strict=True), 10):
        move, register = ("pred", "%p") if kind == "pred" else (f"b{width(kind)}", REGISTER[width(kind)])
        names.append(f"{register}{i}")
        lines.append(f"mov.{move} {names[-1]}, {bits(value, kind)};")
    seen = f"{REGISTER[width(meaning.result)]}20"
    result = "%p20" if meaning.result == "pred" else seen
    lines.append(f"{form} {', '.join([result, *names])};")
    if meaning.result == "pred":
        lines.append(f"selp.b32 {seen}, 1, 0, {result};")
    lines.append(f"st.global.b{width(meaning.result)} [%rd1+{8 * index}], {seen};")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def results():
    """form -> the bits of each case's result."""
    flat = [(form, case) for form, cases in CASES.items() for case in cases]
    body = "\n".join(one(i, form, case[:-1]) for i, (form, case) in enumerate(flat))
    report, words = Texts(entry("cases", body)).run("cases", words=len(flat))
    assert report == ""
    found = {}
    for (form, _), word in zip(flat, words, strict=True):
        found.setdefault(form, []).append(int(word) & ((1 << width(MEANINGS[form].result)) - 1))
    return found


@pytest.mark.parametrize("form", CASES)
def test_a_form(results, form):
    for (*operands, expected), found in zip(CASES[form], results[form], strict=True):
        kind = MEANINGS[form].result
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(struct.unpack("<f", struct.pack("<I", found))[0]), operands
        else:
            assert found == bits(expected, kind), (operands, hex(found))


def test_every_operation_has_a_case():
    """What moves memory or needs other threads is in test_ptx_machine.py."""
    elsewhere = {
        "ld", "st", "atom", "shfl", "vote", "redux", "bar", "barrier", "fence", "griddepcontrol", "prefetch", "trap",
        "cvta", "mapa", "stmatrix", "ldmatrix",
    }  # fmt: skip
    assert {form.partition(".")[0] for form in MEANINGS} - elsewhere == {form.partition(".")[0] for form in CASES}


@pytest.mark.parametrize(
    "statement",
    ["add.sat.s32 %r1, %r2, %r3;", "lg2.approx.f32 %f1, %f2;", "bar.sync 0, 64;", "ld.volatile.global.u32 %r1, [%rd1];",
     "setp.lt.and.s32 %p1, %r1, %r2, %p2;", "min.ftz.f32 %f1, %f2, %f3;", "mov.b64 {%r1, %r2, %r3}, %rd1;"],
)  # fmt: skip
def test_a_form_that_is_not_known_is_named(statement):
    with pytest.raises(Untranslatable, match=r"line 1\d: " + statement.split(" ")[0]):
        translate(entry("unknown", statement), "unknown.ptx")


LOGS = [1e-30, 3.7, 0.51, 0.99, 1.01, 1.7, 1.99, 12345.678, 1e30]
APPROXIMATIONS = {  # values, what is exact, and the documented error
    "ex2.approx.ftz.f32": ([(-30.0 + 0.37 * i,) for i in range(160)], lambda x: 2.0**x, lambda x, y: y * 2.0**-22),
    "lg2.approx.ftz.f32": (
        [(x * (1 + i / 100),) for x in LOGS for i in range(12)],
        math.log2,
        lambda x, y: (1.0 if 0.5 < x < 2 else abs(y)) * 2.0**-22,
    ),
    "div.full.f32": (
        [(3.0 + i, 7.0 - 0.3 * i) for i in range(100)],
        lambda x, y: x / y,
        lambda x, y, z: 2.0 ** (math.frexp(z)[1] - 23),
    ),
}
APPROXIMATIONS["ex2.approx.f32"] = APPROXIMATIONS["ex2.approx.ftz.f32"]


def to_floats(words):
    return [struct.unpack("<f", struct.pack("<I", int(word) & 0xFFFFFFFF))[0] for word in words]


@pytest.fixture(scope="module")
def approximations():
    return Texts(
        *[
            entry(form.replace(".", "_"), "\n".join(one(i, form, values) for i, values in enumerate(cases)))
            for form, (cases, *_) in APPROXIMATIONS.items()
        ]
    )


@pytest.mark.parametrize("form", APPROXIMATIONS)
def test_approximations_lie_anywhere_within_their_documented_error(approximations, form):
    """It is used up to more than half, in both directions, and another seed gives other values."""
    cases, exactly, error = APPROXIMATIONS[form]
    name = form.replace(".", "_")
    first, second = (to_floats(approximations.run(name, words=len(cases), schedule=seed)[1]) for seed in (1, 2))
    assert first != second
    off = []
    for values, found in zip(cases, first, strict=True):
        values = to_floats([bits(x, "f32") for x in values])
        exact = exactly(*values)
        off.append((found - exact) / error(*values, exact))
    assert max(map(abs, off)) <= 1
    assert min(off) < -0.5
    assert max(off) > 0.5

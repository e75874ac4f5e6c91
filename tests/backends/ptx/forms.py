"""What each form of a PTX instruction means, in C++.

A line is: forms (ATOM stands for several), for which types T, what the result and the operands are, the meaning. In a
meaning a, b, c and d are the operands, U is T without sign, W twice as wide, BITS the width of T, SIZE the bytes that a
memory access touches, AT the place in the PTX and FORM the name of the form. The names in it are thread.h's. For a load
or store (``*``) the meaning is the address of the first element; for an atomic it has that, a semicolon, and what is
written there in the place of `old`.
NaN, saturation and shifts are those of the PTX ISA 9.0, chapter 9.7.
"""

import itertools
import re
from typing import NamedTuple

# Of any order: no store waits in this machine.
ATOM = ("atom.global", "atom.global.gpu.relaxed", "atom.global.gpu.acq_rel")
C_TYPES = {
    **{f"{kind}{bits}": f"{'' if kind == 's' else 'u'}int{bits}_t" for kind in "bus" for bits in (8, 16, 32, 64)},
    "f32": "float", "f64": "double", "pred": "bool", "s128": "__int128", "u128": "unsigned __int128",
}  # fmt: skip
BITS = {name: int(re.sub(r"\D", "", name) or 1) for name in C_TYPES}
ANY = "b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64"
GROUPS = {
    "ANY": ANY, "INT": "u16 s16 u32 s32 u64 s64", "UNSIGNED": "u16 u32 u64", "SIGNED": "s16 s32 s64",
    "BITS": "b16 b32 b64", "COMPARED": "b16 u16 s16 b32 u32 s32 b64 u64 s64",
    "SELECTED": "b16 u16 s16 b32 u32 s32 f32 b64 u64 s64", "EACH_INT": "u8 s8 u16 s16 u32 s32 u64 s64",
}  # fmt: skip

TABLE = """
mov.T                          | SELECTED pred | T T             | a
selp.T                         | SELECTED      | T T T pred      | c ? a : b
add.T                          | INT           | T T T           | a + b
sub.T                          | INT           | T T T           | a - b
mul.lo.T                       | INT           | T T T           | (U)a * (U)b
mad.lo.T                       | INT           | T T T T         | (U)a * (U)b + c
mul.hi.T                       | INT           | T T T           | (W)a * (W)b >> BITS
mul.wide.T                     | u16 s16 u32 s32 | W T T         | (W)a * (W)b
mad.wide.T                     | u16 s16 u32 s32 | W T T W       | (W)a * (W)b + c
div.T                          | INT           | T T T           | quotient<T>(a, b, AT)
rem.T                          | INT           | T T T           | remainder_of<T>(a, b, AT)
min.T                          | INT           | T T T           | a < b ? a : b
max.T                          | INT           | T T T           | a > b ? a : b
neg.T                          | SIGNED        | T T             | -a
and.T                          | BITS pred     | T T T           | a & b
or.T                           | BITS pred     | T T T           | a | b
xor.T                          | BITS pred     | T T T           | a ^ b
not.T                          | BITS          | T T             | ~a
not.pred                       |               | pred pred       | !a
shl.T                          | BITS          | T T u32         | b < BITS ? a << b : 0
shr.T                          | UNSIGNED BITS | T T u32         | b < BITS ? a >> b : 0
shr.T                          | SIGNED        | T T u32         | a >> (b < BITS ? b : BITS - 1)
shf.l.wrap.b32                 |               | b32 b32 b32 u32 | ((uint64_t)b << 32 | a) << (c & 31) >> 32
shf.r.wrap.b32                 |               | b32 b32 b32 u32 | ((uint64_t)b << 32 | a) >> (c & 31)
shf.l.clamp.b32                |               | b32 b32 b32 u32 | c < 32 ? ((uint64_t)b << 32 | a) << c >> 32 : a
shf.r.clamp.b32                |               | b32 b32 b32 u32 | ((uint64_t)b << 32 | a) >> (c < 32 ? c : 32)
popc.b32                       |               | u32 b32         | __builtin_popcount(a)
clz.b32                        |               | u32 b32         | a ? __builtin_clz(a) : 32
clz.b64                        |               | u32 b64         | a ? __builtin_clzll(a) : 64
brev.b32                       |               | b32 b32         | reversed(a)
bfind.u32                      |               | u32 u32         | a ? 31 - __builtin_clz(a) : -1
bfind.shiftamt.u32             |               | u32 u32         | a ? __builtin_clz(a) : -1
bfi.T                          | b32 b64       | T T T u32 u32   | inserted<T>(a, b, c, d)
bfe.T                          | u32 s32 u64 s64 | T T u32 u32   | extracted<T>(a, b, c)
prmt.b32                       |               | b32 b32 b32 b32 | permuted(a, b, c)
setp.eq.T                      | COMPARED f32  | pred T T        | a == b
setp.ne.T                      | COMPARED      | pred T T        | a != b
setp.lt.T                      | INT f32       | pred T T        | a < b
setp.le.T                      | INT f32       | pred T T        | a <= b
setp.gt.T                      | INT f32       | pred T T        | a > b
setp.ge.T                      | INT f32       | pred T T        | a >= b
setp.ne.f32                    |               | pred f32 f32    | a < b || a > b
setp.equ.f32                   |               | pred f32 f32    | !(a < b || a > b)
setp.neu.f32                   |               | pred f32 f32    | a != b
setp.ltu.f32                   |               | pred f32 f32    | !(a >= b)
setp.leu.f32                   |               | pred f32 f32    | !(a > b)
setp.gtu.f32                   |               | pred f32 f32    | !(a <= b)
setp.geu.f32                   |               | pred f32 f32    | !(a < b)
setp.num.f32                   |               | pred f32 f32    | a == a && b == b
setp.nan.f32                   |               | pred f32 f32    | a != a || b != b
setp.num.bf16                  |               | pred b16 b16    | !is_nan_bfloat(a) && !is_nan_bfloat(b)
add.f32 add.rn.f32             |               | f32 f32 f32     | a + b
sub.f32 sub.rn.f32             |               | f32 f32 f32     | a - b
mul.f32 mul.rn.f32             |               | f32 f32 f32     | a * b
div.rn.f32                     |               | f32 f32 f32     | a / b
div.full.f32                   |               | f32 f32 f32     | quotient_within(a, b)
fma.rn.f32                     |               | f32 f32 f32 f32 | __builtin_fmaf(a, b, c)
rcp.rn.f32                     |               | f32 f32         | 1.0f / a
neg.f32                        |               | f32 f32         | -a
abs.f32                        |               | f32 f32         | __builtin_fabsf(a)
min.f32                        |               | f32 f32 f32     | smaller(a, b)
add.rn.f32x2                   |               | b64 b64 b64     | by_pairs(plus, a, b)
sub.rn.f32x2                   |               | b64 b64 b64     | by_pairs(minus, a, b)
mul.rn.f32x2                   |               | b64 b64 b64     | by_pairs(times, a, b)
fma.rn.f32x2                   |               | b64 b64 b64 b64 | by_pairs(times_plus, a, b, c)
max.f32                        |               | f32 f32 f32     | larger(a, b)
max.NaN.f32                    |               | f32 f32 f32     | larger_or_nan(a, b)
max.NaN.bf16                   |               | b16 b16 b16     | larger_or_nan_of_halves(a, b, from_bfloat)
max.NaN.f16x2                  |               | b32 b32 b32     | larger_or_nan_of_halves(a, b, from_half)
max.NaN.bf16x2                 |               | b32 b32 b32     | larger_or_nan_of_halves(a, b, from_bfloat)
ex2.approx.ftz.f32             |               | f32 f32         | exp2_within(a, true)
ex2.approx.f32                 |               | f32 f32         | exp2_within(a, false)
lg2.approx.ftz.f32             |               | f32 f32         | log2_within(a)
cvt.T.S                        | EACH_INT      | T S             | a
cvt.rn.f32.T                   | INT           | f32 T           | a
cvt.rzi.T.f32                  | u32 s32 u64 s64 | T f32         | toward_zero<T>(a)
cvt.f32.f16                    |               | f32 b16         | from_half(a)
cvt.f32.bf16                   |               | f32 b16         | from_bfloat(a)
cvt.rn.f16.f32                 |               | b16 f32         | to_half(a)
cvta.to.global.u64 cvta.to.local.u64 cvta.local.u64 cvta.global.u64 | | u64 u64 | a
cvta.shared.u64                |               | u64 u64         | to_generic(a)
cvta.to.shared.u64             |               | u64 u64         | to_shared(a, AT)
mapa.u64                       |               | u64 u64 u32     | of_peer(a, b, AT)
shfl.sync.up.b32 shfl.sync.down.b32 | | b32 b32 b32 b32 b32            | shuffled(FORM, a, b, c, d, &second, AT)
shfl.sync.bfly.b32 shfl.sync.idx.b32 | | b32 b32 b32 b32 b32           | shuffled(FORM, a, b, c, d, &second, AT)
vote.sync.any.pred             |               | pred pred b32   | votes(FORM, a, b, AT) != 0
vote.sync.all.pred             |               | pred pred b32   | votes(FORM, a, b, AT) == b
vote.sync.ballot.b32           |               | b32 pred b32    | votes(FORM, a, b, AT)
redux.sync.add.T redux.sync.min.T redux.sync.max.T | u32 s32 | T T b32 | reduced(FORM, a, b, AT)
redux.sync.min.f32             |               | f32 f32 b32     | reduced_by(smaller, FORM, a, b, AT)
redux.sync.max.f32             |               | f32 f32 b32     | reduced_by(larger, FORM, a, b, AT)
redux.sync.max.NaN.f32         |               | f32 f32 b32     | reduced_by(larger_or_nan, FORM, a, b, AT)
redux.sync.and.b32 redux.sync.or.b32 redux.sync.xor.b32 | | b32 b32 b32 | reduced(FORM, a, b, AT)
bar.warp.sync                  |               | - b32           | sync_warp(a, AT)
bar.sync                       |               | - u32           | sync_block(FORM, a, 0, AT)
bar.red.or.pred                |               | pred u32 pred   | sync_block(FORM, a, b, AT) != 0
bar.red.and.pred               |               | pred u32 pred   | sync_block(FORM, a, !b, AT) == 0
bar.red.popc.u32               |               | u32 u32 pred    | sync_block(FORM, a, b, AT)
barrier.cluster.arrive.relaxed.aligned |       | -               | arrive_at_cluster(&arrived, AT)
barrier.cluster.wait.acquire.aligned   |       | -               | wait_for_cluster(&arrived, AT)
fence.acq_rel.cluster          |               | -               | fence_cluster()
griddepcontrol.wait            |               | -               | wait_for_kernel_before(AT)
griddepcontrol.launch_dependents |             | -               |
prefetch.global.L2             |               | - *             | (void)a
trap                           |               | -               | trap(AT)
ld.T                           | ANY           | T *             | at_generic(a, SIZE, false, AT)
ld.global.T ld.global.cg.T ld.global.nc.T ld.global.nc.L1::no_allocate.T | ANY | T * | at_global(a, SIZE, AT)
ld.acquire.gpu.global.T        | u32 u64 b32 b64 | T *           | at_acquired(a, SIZE, AT)
ld.shared.T                    | ANY           | T *             | at_shared(a, SIZE, kRead, AT)
ld.local.T                     | ANY           | T *             | at_local(a, SIZE, local, local_bytes, AT)
ld.param.T                     | ANY           | T *             | at_param(a, SIZE, param, param_bytes, AT)
st.T                           | ANY           | - * T           | at_generic(a, SIZE, true, AT)
st.global.T                    | ANY           | - * T           | at_global(a, SIZE, AT)
st.shared.T                    | ANY           | - * T           | at_shared(a, SIZE, kWrite, AT)
st.local.T                     | ANY           | - * T           | at_local(a, SIZE, local, local_bytes, AT)
ATOM.add.T                     | u32 s32 u64   | T * T           | at_atomic(a, SIZE, AT); old + b
atom.add.acq_rel.gpu.global.T  | u32           | T * T           | at_atomic(a, SIZE, AT); old + b
ATOM.max.T                     | u32 s32 u64 s64 | T * T         | at_atomic(a, SIZE, AT); old > b ? old : b
ATOM.min.T                     | u32 s32 u64 s64 | T * T         | at_atomic(a, SIZE, AT); old < b ? old : b
ATOM.or.T                      | b32 b64       | T * T           | at_atomic(a, SIZE, AT); old | b
ATOM.exch.T                    | b32 b64       | T * T           | at_atomic(a, SIZE, AT); b
atom.shared.add.T              | u32 s32 u64   | T * T           | at_shared(a, SIZE, kAtomic, AT); old + b
atom.shared.max.T              | u32 s32 u64 s64 | T * T         | at_shared(a, SIZE, kAtomic, AT); old > b ? old : b
atom.shared.min.T              | u32 s32 u64 s64 | T * T         | at_shared(a, SIZE, kAtomic, AT); old < b ? old : b
atom.shared.or.T               | b32 b64       | T * T           | at_shared(a, SIZE, kAtomic, AT); old | b
atom.shared.exch.T             | b32 b64       | T * T           | at_shared(a, SIZE, kAtomic, AT); b
stmatrix.sync.aligned.m8n8.x4.shared.b16 |     | - * quad        | store_matrices(FORM, a, b, AT)
ldmatrix.sync.aligned.m8n8.x1.shared.b16 |     | b32 *           | load_matrix(FORM, a, AT)
"""


class Meaning(NamedTuple):
    result: str  # a type; "*": memory; "-": none
    operands: tuple
    text: str


def wider(type):
    return f"{type[0]}{2 * BITS[type]}"


def read_table():
    """form -> Meaning, with each type put in."""
    found = {}
    for line in TABLE.strip().splitlines():
        forms, types, signature, meaning = re.split(r"\s*\|\s*", f"{line}|", maxsplit=3)
        types = [name for word in types.split() for name in GROUPS.get(word, word).split()] or [""]
        forms = forms.split() if not forms.startswith("ATOM") else [f"{head}{forms[4:]}" for head in ATOM]
        for form, type, source in itertools.product(forms, types, types):
            if ".S" not in form and source != types[0]:
                continue
            names = {"T": type, "S": source, "W": wider(type) if type[-1:] in ("6", "2", "4") else ""}
            result, *operands = (names.get(word, word) for word in signature.split())
            name = re.sub(r"(?<=\.)[TS]\b", lambda match, names=names: names[match[0]], form)
            c = {
                "T": C_TYPES.get(type, ""), "U": C_TYPES.get(f"u{type[1:]}", ""), "W": C_TYPES.get(names["W"], ""),
                "BITS": str(BITS.get(type)), "FORM": f'"{name}"',
            }  # fmt: skip
            text = re.sub(r"\b(T|U|W|BITS|FORM)\b", lambda match, c=c: c[match[0]], meaning.rstrip("|").strip())
            found[name] = Meaning(result, tuple(operands), text)
    return found


MEANINGS = read_table()

"""How a verdict is written (``specdec_kernels.Form``): what csrc/include/specdec/walk.h has as ``VerdictWriter``."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._math import PARAMETER
from specdec_kernels.triton_kernels._rows import barrier
from specdec_kernels.triton_kernels._trees import NODES

EMITTED, ADDED, ZEROS = (tl.constexpr(bit) for bit in (1, 2, 4))


class VerdictWriter(NamedTuple):
    """Where the verdict of one request goes; ``flat`` is the length of the row that an index leads into.

    Kernels make it themselves: before Triton 3.7 no function can return it (``_laws``).
    """

    tokens: tl.tensor
    tokens_slot: tl.tensor
    path: tl.tensor
    index: tl.tensor
    index_node: tl.tensor
    flat: tl.tensor
    num_accepted: tl.tensor
    status: tl.tensor
    form: tl.tensor


@triton.jit
def put_token(verdict, depth, node, token, there):
    """Writes the token after ``node``, for one depth or a block of them."""
    at = depth
    if verdict.index is not None:
        at = tl.load(verdict.index + node * verdict.index_node, mask=there, other=-1).to(tl.int64)
        there = there & (at >= 0) & (at < verdict.flat)
    tl.store(verdict.tokens + at * verdict.tokens_slot, token.to(verdict.tokens.dtype.element_ty), mask=there)


@triton.jit
def put_node(verdict, depth, node, there):
    """Writes a node of the path, or its place. Returns PARAMETER where that is outside of the tokens."""
    reported = there.to(tl.int32) * 0
    if verdict.path is not None:
        shown = node
        if verdict.index is not None:
            place = tl.load(verdict.index + node * verdict.index_node, mask=there, other=-1).to(tl.int64)
            inside = (place >= 0) & (place < verdict.flat)
            shown = tl.where(inside, place, -1)
            reported = (there & (inside == 0)).to(tl.int32) * PARAMETER
        tl.store(verdict.path + depth, shown.to(tl.int32), mask=there)
    return reported


@triton.jit
def clear_places(verdict, depth, there):
    """Depths behind the last."""
    if verdict.index is None:
        tl.store(verdict.tokens + depth * verdict.tokens_slot, tl.where(verdict.form & ZEROS != 0, 0, -1), mask=there)
    if verdict.path is not None:
        tl.store(verdict.path + depth, -1, mask=there)


@triton.jit
def clear_nodes(verdict, node, there):
    """Nodes that are not on the path: where an index leads to, and its places are wanted without gaps."""
    if verdict.index is not None:
        put_token(verdict, node, node, node * 0, there & (verdict.form & ZEROS != 0))


@triton.jit
def clear_off_path(verdict, nodes, depth):
    """All nodes but those of the path, which this program has written down to ``depth``."""
    if verdict.index is not None:  # noqa: SIM102  one is known when it is compiled
        if verdict.form & ZEROS != 0:
            barrier()
            for base in range(0, nodes, NODES):
                node = base + tl.arange(0, NODES)
                place = tl.load(verdict.index + node * verdict.index_node, mask=node < nodes, other=-1).to(tl.int64)
                off = node < nodes
                for at in range(0, depth + 1):
                    off = off & (tl.load(verdict.path + at, cache_modifier=".cg") != place)
                clear_nodes(verdict, node, off)


@triton.jit
def put_count(verdict, accepted):
    """By one program: how many drafts were accepted, -1 for an idle request."""
    counted = accepted + tl.where(verdict.form & EMITTED != 0, 1, 0)
    added = verdict.form & ADDED != 0
    before = tl.load(verdict.num_accepted, mask=added, other=0)
    tl.store(verdict.num_accepted, tl.where(added, before + tl.maximum(counted, 0), counted))


def arguments(call):
    """A call's form, as the kernels take it."""
    index, path = call.index, call.path
    return dict(
        tokens=call.tokens, tokens_request=call.tokens.stride(0) if index is None else 0,
        tokens_slot=call.tokens.stride(-1), path=path, path_request=0 if path is None else path.stride(0),
        index=index, index_request=0 if index is None else index.stride(0),
        index_node=0 if index is None else index.stride(1), flat=call.tokens.shape[-1],
        num_accepted=call.num_accepted, status=call.status, form=call.form,
    )  # fmt: skip


def shape_of(call):
    """[requests, places] of the paths."""
    return (call.tokens if call.index is None else call.path).shape

"""Writing of verdicts (``specdec_kernels.OutputFormat``), as ``VerdictWriter`` of csrc/include/specdec/walk.h."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _math, _rows, _trees

EMITTED, ADDED, ZEROS = (tl.constexpr(bit) for bit in (1, 2, 4))


class Verdict(NamedTuple):
    """The outputs of a call."""

    tokens: tl.tensor  # [B, depths], or [flat] with an index
    tokens_request: int
    tokens_column: int
    path: tl.tensor  # int32 [B, depths], or None
    path_request: int
    index: tl.tensor  # [B, N]: the index of each node in ``tokens``, or None
    index_request: int
    index_node: int
    flat: int
    num_accepted: tl.tensor  # int32 [B]
    status: tl.tensor  # int32 [B]
    output_format: int  # bits


class Writer(NamedTuple):
    """Writes the verdict of request ``b``."""

    to: Verdict
    b: tl.tensor


@triton.jit
def index_at(writer, node, there):
    """The index of a node, or of a block of them; -1 if not ``there``."""
    index = writer.to.index + writer.b * writer.to.index_request
    return tl.load(index + node * writer.to.index_node, mask=there, other=-1).to(tl.int64)


@triton.jit
def put_token(writer, depth, node, token, there):
    """Writes the token after ``node``, for one depth or a block of them."""
    to, at = writer.to.tokens, depth
    if writer.to.index is None:
        to += writer.b * writer.to.tokens_request
    else:
        at = index_at(writer, node, there)
        there = there & (at >= 0) & (at < writer.to.flat)
    tl.store(to + at * writer.to.tokens_column, token.to(to.dtype.element_ty), mask=there)


@triton.jit
def put_node(writer, depth, node, there):
    """Writes a node of the path, or its index. Returns PARAMETER where that is outside of the tokens."""
    reported = there.to(tl.int32) * 0
    if writer.to.path is not None:
        shown = node
        if writer.to.index is not None:
            column = index_at(writer, node, there)
            inside = (column >= 0) & (column < writer.to.flat)
            shown = tl.where(inside, column, -1)
            reported = (there & (inside == 0)).to(tl.int32) * _math.PARAMETER
        tl.store(path_of(writer) + depth, shown.to(tl.int32), mask=there)
    return reported


@triton.jit
def path_of(writer):
    return writer.to.path + writer.b * writer.to.path_request


@triton.jit
def clear_columns(writer, depth, there):
    """Writes that there is no token, and no node, at depths behind the last."""
    if writer.to.index is None:
        at = writer.to.tokens + writer.b * writer.to.tokens_request + depth * writer.to.tokens_column
        tl.store(at, tl.where((writer.to.output_format & ZEROS) != 0, 0, -1), mask=there)
    if writer.to.path is not None:
        tl.store(path_of(writer) + depth, -1, mask=there)


@triton.jit
def clear_nodes(writer, node, there):
    """Writes zeros as the tokens of nodes off the path, if there is an index and the format has zeros."""
    if writer.to.index is not None:  # noqa: SIM102  the outer `if` is constexpr
        if (writer.to.output_format & ZEROS) != 0:
            put_token(writer, node, node, node * 0, there)


@triton.jit
def clear_off_path(writer, nodes, depth):
    """Clears all nodes but those of the path, which this program has written down to ``depth``."""
    if writer.to.index is not None:  # noqa: SIM102  the outer `if` is constexpr
        if (writer.to.output_format & ZEROS) != 0:
            _rows.barrier()
            for base in range(0, nodes, _trees.NODES):
                node = base + tl.arange(0, _trees.NODES)
                column = index_at(writer, node, node < nodes)
                off = node < nodes
                for at in range(0, depth + 1):
                    off = off & (tl.load(path_of(writer) + at, cache_modifier=".cg") != column)
                clear_nodes(writer, node, off)


@triton.jit
def put_count(writer, accepted):
    """Writes how many drafts were accepted, -1 for an idle request. One program of the request calls this."""
    counted = accepted + tl.where((writer.to.output_format & EMITTED) != 0, 1, 0)
    added = (writer.to.output_format & ADDED) != 0
    before = tl.load(writer.to.num_accepted + writer.b, mask=added, other=0)
    tl.store(writer.to.num_accepted + writer.b, tl.where(added, before + tl.maximum(counted, 0), counted))


@triton.jit
def put_status(writer, flags):
    tl.store(writer.to.status + writer.b, flags)


@triton.jit
def load_status(writer):
    return tl.load(writer.to.status + writer.b)


def verdict_of(call):
    """The ``Verdict`` of a call."""
    index, path = call.index, call.path
    return Verdict(
        call.tokens, call.tokens.stride(0) if index is None else 0, call.tokens.stride(-1), path,
        0 if path is None else path.stride(0), index, *((0, 0) if index is None else index.stride()),
        call.tokens.shape[-1], call.num_accepted, call.status, call.output_format,
    )  # fmt: skip


def shape_of(call):
    """[requests, depths] of the paths."""
    return (call.tokens if call.index is None else call.path).shape

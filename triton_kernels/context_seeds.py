"""Seeds of races from the tokens before them: one launch, a program for each row, by csrc/include/specdec/context.h."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _trees

WINDOW = tl.constexpr(8)  # tokens at most
BLOCK = 128  # places of a text that are looked at together


class Context(NamedTuple):
    """What windows are of: the text of a request, how much of it is there, and its drafts up to node ``last``."""

    text: tl.tensor
    text_slot: tl.tensor
    length: tl.tensor
    tree: _trees.Tree
    last: tl.tensor
    size: tl.tensor  # of windows


@triton.jit
def window_at(context, node, place, there, ORDERED: tl.constexpr):
    """The tokens before places [n], int64 [n, WINDOW], behind a node or 0: the latest first, or in order."""
    each = tl.arange(0, WINDOW)[None, :]
    steps = each + tl.zeros_like(place)[:, None].to(tl.int32)
    at = node + tl.zeros_like(steps)
    for _ in range(WINDOW - 1):
        moves = (steps > 0) & (at > 0)
        above, _ = _trees.parents_of(context.tree.parents, context.tree.parents_node, at, moves)
        at = tl.where(moves, above, at)
        steps -= moves.to(tl.int32)
    there = there[:, None] & (each < context.size)
    drafted = there & (at > 0) & (at <= context.last)
    token = tl.load(context.tree.tokens + at * context.tree.tokens_node, mask=drafted, other=-1).to(tl.int64)
    before = place[:, None] - 1 - steps
    text = tl.load(context.text + before * context.text_slot, mask=there & (at <= 0) & (before >= 0), other=-1)
    token = tl.where(at > 0, token, text.to(tl.int64))
    if not ORDERED:
        token = tl.sort(tl.where(each < context.size, token, 1 << 62))
    return token


@triton.jit
def sum_of(words, size):
    """Modulo 2^32, of the first ``size``."""
    return tl.sum(tl.where(tl.arange(0, WINDOW) < size, words.to(tl.int64), 0), axis=0).to(tl.uint32)


@triton.jit
def wide_of(key, a, b, c, stream):
    low, high, _, _ = tl.philox(key, a, b, c, tl.full([], _math.STREAM_CONTEXT + stream, tl.uint32))
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64)


@triton.jit
def seed_of(window, size, key):
    place, nothing = (tl.arange(0, WINDOW) + 1).to(tl.uint32), tl.zeros([WINDOW], tl.uint32)
    stream = nothing + _math.STREAM_CONTEXT
    a, b, c, _ = tl.philox(key, window.to(tl.uint32), place, nothing + size.to(tl.uint32), stream)
    return wide_of(key, sum_of(a, size), sum_of(b, size), sum_of(c, size), 1)


@_launch.kernel
def context_seeds_kernel(
    text: _arguments.Steps, entries, columns, drafts: _trees.Drafts, packing: _arguments.Packing,
    index: _arguments.Index, key: _arguments.Counter, start: _arguments.Counter, seed: _arguments.Steps,
    position: _arguments.Steps, size: tl.int32, seeds, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    nodes = tl.cast(drafts.nodes, tl.int32)
    b, node = row // nodes, (row % nodes).to(tl.int32)
    entry, live, _ = _arguments.entry_of(index, b)
    packed = _arguments.packed_of(packing, b, nodes - 1)
    live = live & (entry < entries) & packed.readable
    if drafts.parents.data is not None:
        tree, last = _trees.tree_of(drafts.parents, drafts.tokens, b), nodes - 1
    else:
        tokens = _arguments.at(drafts.tokens, b, 0)
        if packing.cu_drafts is not None:
            tokens = drafts.tokens.data + packed.first_token * drafts.tokens.inner
        tree, last = _trees.Tree(None, 0, tokens - drafts.tokens.inner, drafts.tokens.inner), packed.drafts
    stands = tl.load(position.data + b * position.outer).to(tl.int64)
    length = tl.minimum(tl.maximum(stands, 0), columns)
    context = Context(_arguments.at(text, entry, 0), text.inner, length, tree, last, size)
    own_key = tl.cast(_arguments.number(key, entry, 0, live), tl.int64)
    first = tl.maximum(tl.cast(_arguments.number(start, entry, 0, live), tl.int64), 0) + size
    depth, above = 0, tl.where(live, node, 0)
    while above > 0:
        above, _ = _trees.parents_of(tree.parents, tree.parents_node, above, above > 0)
        depth += 1
    marked = live & (own_key != 0) & (first <= length + depth)
    one = tl.zeros([1], tl.int64)
    own = window_at(context, node, one + length, one == tl.where(marked, 0, 1), ORDERED)
    seen, place = row * 0, first
    while place < tl.where(marked, length + (depth > 0), 0):
        places = place + tl.arange(0, BLOCK)
        there = places < length + (depth > 0)
        same = tl.min((window_at(context, 0, places, there, ORDERED) == own).to(tl.int32), axis=1)
        seen |= tl.max(same * there, axis=0)
        place += BLOCK
    above, place = tl.where(marked, node, 0), length + depth
    while above > 0:
        above, _ = _trees.parents_of(tree.parents, tree.parents_node, above, above > 0)
        place -= 1
        if (above > 0) & (place >= first):
            seen |= tl.min((window_at(context, above, one + length, one == 0, ORDERED) == own).to(tl.int32))
    noise = wide_of(
        tl.load(seed.data + b * seed.outer).to(tl.int64), tl.full([], 0, tl.uint32),
        (stands + depth).to(tl.uint32), tl.full([], 0, tl.uint32), 2,
    )  # fmt: skip
    window = tl.reshape(own, [WINDOW])
    drawn = tl.where(marked & (seen == 0), seed_of(window, size, own_key), noise)
    tl.store(seeds + row, tl.where(live, drawn, 0))


def context_seeds(call):
    """Seeds int64 [B, N] of each request's rows."""
    requests, nodes = call.seeds.shape
    if requests == 0:
        return
    parents = _arguments.NO_STEPS if call.parents is None else _arguments.nodes_of(call.parents)
    text = call.text
    with _launch.on_device(text):
        arguments = dict(
            text=_arguments.Steps(text, *text.stride()), entries=text.shape[0], columns=text.shape[1],
            packing=_arguments.packing_of(call, requests), position=_arguments.steps_or_none(call.position),
            drafts=_trees.Drafts(parents, _arguments.row_steps(call.draft_tokens), nodes, nodes - 1),
            index=_arguments.Index(call.request_index, text.shape[0]), key=_arguments.counter_of(call.key),
            seed=_arguments.steps_or_none(call.seed), start=_arguments.counter_of(call.start), size=call.window,
            seeds=call.seeds, ORDERED=bool(call.ordered), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(context_seeds_kernel, (requests * nodes,), 1, arguments)

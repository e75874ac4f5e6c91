"""Seeds of races from the tokens before them: one launch, a program for each row, by csrc/include/specdec/context.h."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _trees

WINDOW = tl.constexpr(8)  # tokens at most
BLOCK = 128  # places of a text that are looked at together


class Text(NamedTuple):
    """Texts [S, T]."""

    data: tl.tensor
    outer: int  # steps
    inner: int
    entries: int
    columns: int


class Context(NamedTuple):
    """What a row's window is of: the text of a request, how much of it is there, and the drafts up to node ``last``."""

    text: tl.tensor
    text_slot: tl.tensor
    columns: tl.tensor
    length: tl.tensor
    tree: _trees.Tree
    last: tl.tensor


@triton.jit
def text_at(context, place, there):
    there = there & (place >= 0) & (place < context.columns)
    return tl.load(context.text + place * context.text_slot, mask=there, other=-1).to(tl.int64)


@triton.jit
def window_of(context, node):
    """The tokens before the token after a node, int64 [WINDOW], the latest first."""
    steps = tl.arange(0, WINDOW)
    at = node + tl.zeros([WINDOW], tl.int32)
    for _ in range(WINDOW - 1):
        moves = (steps > 0) & (at > 0)
        above, _ = _trees.parents_of(context.tree.parents, context.tree.parents_node, at, moves)
        at = tl.where(moves, above, at)
        steps -= moves.to(tl.int32)
    drafted = (at > 0) & (at <= context.last)
    token = tl.load(context.tree.tokens + at * context.tree.tokens_node, mask=drafted, other=-1).to(tl.int64)
    return tl.where(at > 0, token, text_at(context, context.length - 1 - steps, at <= 0))


@triton.jit
def is_same(tokens, window, size, ORDERED: tl.constexpr):
    """Which of some windows [n, WINDOW] are the context ``window``."""
    each = tl.arange(0, WINDOW)
    if ORDERED:
        same = tokens == window[None, :]
    else:
        counts = (each < size).to(tl.int32)
        own = tl.sum((window[:, None] == window[None, :]).to(tl.int32) * counts[:, None], axis=0)
        other = tl.sum((tokens[:, :, None] == window[None, None, :]).to(tl.int32) * counts[None, :, None], axis=1)
        same = other == own[None, :]
    return tl.min((same | (each >= size)[None, :]).to(tl.int32), axis=1)


@triton.jit
def seed_of(window, size, key, ORDERED: tl.constexpr):
    each = tl.arange(0, WINDOW)
    place = (each + 1).to(tl.uint32) if ORDERED else tl.zeros([WINDOW], tl.uint32)
    width = size.to(tl.uint32) + tl.zeros([WINDOW], tl.uint32)
    stream = tl.full([WINDOW], _math.STREAM_CONTEXT, tl.uint32)
    a, b, c, _ = tl.philox(key, window.to(tl.uint32), place, width, stream)
    counts = each < size
    a, b, c = (sum_of(a, counts), sum_of(b, counts), sum_of(c, counts))
    low, high, _, _ = tl.philox(key, a, b, c, tl.full([], _math.STREAM_CONTEXT + 1, tl.uint32))
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64)


@triton.jit
def sum_of(words, counts):
    """Modulo 2^32."""
    return tl.sum(tl.where(counts, words.to(tl.int64), 0), axis=0).to(tl.uint32)


@_launch.kernel
def context_seeds_kernel(
    text: Text, drafts: _trees.Drafts, packing: _arguments.Packing, index: _arguments.Index,
    key: _arguments.Counter, noise: _arguments.Noise, entering: _arguments.Entering, start: _arguments.Counter,
    size: tl.int32, seeds, positions, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    nodes = tl.cast(drafts.nodes, tl.int32)
    b, node = row // nodes, (row % nodes).to(tl.int32)
    entry, live, _ = _arguments.entry_of(index, b)
    live = live & (entry < text.entries)
    packed = _arguments.packed_of(packing, b, nodes - 1)
    live = live & packed.readable
    own_noise = _arguments.noise_of(noise, entry, 0, live)
    length = _arguments.number(noise.position, entry, 0, live).to(tl.int64)
    if entering.positions.data is not None:
        first = packed.first_row if packing.cu_drafts is not None else 0
        length = tl.load(_arguments.at(entering.positions, b, first), mask=live, other=0).to(tl.int64) + 1
    if drafts.parents.data is not None:
        tree, last = _trees.tree_of(drafts.parents, drafts.tokens, b), nodes - 1
    else:
        tokens = _arguments.at(drafts.tokens, b, 0)
        if packing.cu_drafts is not None:
            tokens = drafts.tokens.data + packed.first_token * drafts.tokens.inner
        tree, last = _trees.Tree(None, 0, tokens - drafts.tokens.inner, drafts.tokens.inner), packed.drafts
    context = Context(text.data + entry * text.outer, text.inner, text.columns, length, tree, last)
    own_key = tl.cast(_arguments.number(key, entry, 0, live), tl.int64)
    begin = tl.maximum(tl.cast(_arguments.number(start, entry, 0, live), tl.int64), 0)
    marked = live & (own_key != 0)
    window, each = window_of(context, node), tl.arange(0, WINDOW)
    seen = row * 0
    place = begin
    end = tl.where(marked, tl.minimum(length, text.columns), 0)
    while place < end:
        places = place + tl.arange(0, BLOCK)
        before = text_at(context, places[:, None] - 1 - each[None, :], (places < end)[:, None])
        seen |= tl.max(is_same(before, window, size, ORDERED) * (places < end), axis=0)
        place += BLOCK
    depth, above = 0, tl.where(live, node, 0)
    while above > 0:
        above, _ = _trees.parents_of(tree.parents, tree.parents_node, above, above > 0)
        depth += 1
    above, place = tl.where(marked, node, 0), length + depth
    while above > 0:
        above, _ = _trees.parents_of(tree.parents, tree.parents_node, above, above > 0)
        place -= 1
        same = tl.max(is_same(window_of(context, above)[None, :], window, size, ORDERED), axis=0)
        seen |= same * (place >= begin)
    marked = marked & (seen == 0)
    seed = tl.where(marked, seed_of(window, size, own_key, ORDERED), tl.where(live, own_noise.seed, 0))
    tl.store(seeds + row, seed)
    tl.store(positions + row, tl.where(live & (marked == 0), length + depth, 0))


def context_seeds(call):
    """Seeds and positions int64 [B, N] of each request's rows."""
    requests, nodes = call.seeds.shape
    if requests == 0:
        return
    packing = _arguments.packing_of(call, requests)
    parents = _arguments.NO_STEPS if call.parents is None else _arguments.nodes_of(call.parents)
    text = call.text
    with _launch.on_device(text):
        arguments = dict(
            text=Text(text, *text.stride(), *text.shape), packing=packing,
            drafts=_trees.Drafts(parents, _arguments.row_steps(call.draft_tokens), nodes, nodes - 1),
            index=_arguments.Index(call.request_index, text.shape[0]), key=_arguments.counter_of(call.key),
            noise=_arguments.noise_numbers(call.noise), start=_arguments.counter_of(call.start),
            entering=_arguments.Entering(_arguments.row_steps(call.input_positions), *[_arguments.NO_STEPS] * 3),
            size=call.window, seeds=call.seeds, positions=call.positions, ORDERED=bool(call.ordered), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(context_seeds_kernel, (requests * nodes,), 1, arguments)

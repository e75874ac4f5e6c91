"""Seeds of races from the tokens before them (csrc/include/specdec/context.h): one launch, a program for each row."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _trees

WINDOW = tl.constexpr(8)  # most tokens of a window
BLOCK = 128  # windows of a text that are compared together


class Text(NamedTuple):
    """The text before a row: tokens of its request, then drafts from the root to ``node``."""

    tokens: tl.tensor  # [length], ``step`` elements apart
    step: tl.tensor
    length: tl.tensor
    end: tl.tensor  # tokens and drafts together
    tree: _trees.Tree
    node: tl.tensor
    last: tl.tensor  # nodes behind this one have no token


@triton.jit
def windows_at(text, ends, size, ORDERED: tl.constexpr):
    """The ``size`` tokens before each of ``ends`` [n], int64 [n, WINDOW]: the latest first if ORDERED, else sorted."""
    each = tl.arange(0, WINDOW)[None, :]
    before = ends[:, None] - 1 - each
    there = (each < size) & (before >= 0) & (before < text.length)
    token = tl.load(text.tokens + before * text.step, mask=there, other=-1).to(tl.int64)
    at, drafted = tl.where(tl.max(ends, axis=0) > text.length, text.node, 0), text.end - 1
    while at > 0:
        draft = tl.load(text.tree.tokens + at * text.tree.tokens_node, mask=at <= text.last, other=-1).to(tl.int64)
        token = tl.where((before == drafted) & (each < size), draft, token)
        at, _ = _trees.load_parent(text.tree.parents, text.tree.parents_node, at, at > 0)
        drafted -= 1
    if not ORDERED:
        token = tl.sort(tl.where(each < size, token, 1 << 62))
    return token


@triton.jit
def sum_words(words, size):
    """The sum of the first ``size`` words modulo 2^32."""
    return tl.sum(tl.where(tl.arange(0, WINDOW) < size, words.to(tl.int64), 0), axis=0).to(tl.uint32)


@triton.jit
def wide_seed(key, a, b, c, stream):
    low, high, _, _ = tl.philox(key, a, b, c, tl.full([], _math.STREAM_CONTEXT + stream, tl.uint32))
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64)


@triton.jit
def window_seed(window, size, key):
    lane, nothing = (tl.arange(0, WINDOW) + 1).to(tl.uint32), tl.zeros([WINDOW], tl.uint32)
    stream = nothing + _math.STREAM_CONTEXT
    a, b, c, _ = tl.philox(key, window.to(tl.uint32), lane, nothing + size.to(tl.uint32), stream)
    return wide_seed(key, sum_words(a, size), sum_words(b, size), sum_words(c, size), 1)


@_launch.kernel
def context_seeds_kernel(
    text: _arguments.Steps, entries, columns, drafts: _trees.Drafts, packing: _arguments.Packing,
    index: _arguments.Index, key: _arguments.Counter, start: _arguments.Counter, seed: _arguments.Steps,
    position: _arguments.Steps, size: tl.int32, seeds, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    nodes = tl.cast(drafts.nodes, tl.int32)
    b, node = row // nodes, (row % nodes).to(tl.int32)
    entry, live, _ = _arguments.load_entry(index, b)
    packed = _arguments.locate_request(packing, b, nodes - 1)
    live = live & (entry < entries) & packed.readable
    if drafts.parents.data is not None:
        tree, last = _trees.tree_of(drafts.parents, drafts.tokens, b), nodes - 1
    else:
        tokens = _arguments.at(drafts.tokens, b, 0)
        if packing.cu_drafts is not None:
            tokens = drafts.tokens.data + packed.first_token * drafts.tokens.inner
        tree, last = _trees.Tree(None, 0, tokens - drafts.tokens.inner, drafts.tokens.inner), packed.drafts
    request_key = tl.cast(_arguments.number(key, entry, 0, live), tl.int64)
    first = tl.maximum(tl.cast(_arguments.number(start, entry, 0, live), tl.int64), 0) + size
    row_position = tl.load(position.data + b * position.outer).to(tl.int64)
    length = tl.minimum(tl.maximum(row_position, 0), columns)
    end, above = length, tl.where(live, node, 0)
    while above > 0:
        above, _ = _trees.load_parent(tree.parents, tree.parents_node, above, above > 0)
        end += 1
        row_position += 1
    row_text = Text(_arguments.at(text, entry, 0), text.inner, length, end, tree, node, last)
    marked = live & (request_key != 0) & (first <= end)
    end = tl.where(marked, end, 0)
    window = windows_at(row_text, tl.zeros([1], tl.int64) + end, size, ORDERED)
    seen = row * 0
    while first < end:
        ends = first + tl.arange(0, BLOCK)
        same = tl.min((windows_at(row_text, ends, size, ORDERED) == window).to(tl.int32), axis=1)
        seen |= tl.max(same * (ends < end), axis=0)
        first += BLOCK
    request_seed = tl.load(seed.data + b * seed.outer).to(tl.int64)
    zero = tl.full([], 0, tl.uint32)
    noise = wide_seed(request_seed, zero, row_position.to(tl.uint32), zero, 2)
    row_seed = tl.where(marked & (seen == 0), window_seed(tl.reshape(window, [WINDOW]), size, request_key), noise)
    tl.store(seeds + row, tl.where(live, row_seed, 0))


def context_seeds(call):
    """``seeds`` int64 [B, N] of the rows of each request."""
    requests, nodes = call.seeds.shape
    parents = _arguments.NO_STEPS if call.parents is None else _arguments.nodes_of(call.parents)
    text = call.text
    with _launch.on_device(text):
        arguments = dict(
            text=_arguments.Steps(text, *text.stride()), entries=text.shape[0], columns=text.shape[1],
            drafts=_trees.Drafts(parents, _arguments.row_steps(call.draft_tokens), nodes, nodes - 1),
            packing=_arguments.packing_of(call, requests), index=_arguments.Index(call.request_index, text.shape[0]),
            key=_arguments.counter_of(call.key), start=_arguments.counter_of(call.start),
            seed=_arguments.steps_or_none(call.seed), position=_arguments.steps_or_none(call.position),
            size=call.window, seeds=call.seeds, ORDERED=bool(call.ordered), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(context_seeds_kernel, (requests * nodes,), 1, arguments)

"""Walks through trees by their links: one launch, the last row split over programs (csrc/include/specdec/link_walk.h).

Every program of a request walks its tree, which is short, so all of them reach the same last row without waiting. The
first program writes the path, the last one the token that all sampled.

Counters are int32, zero before and after a call, 4 for each request: the best key (two words), programs done, status.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _laws, _math, _races, _rows, _trees, _verdict


class Links(NamedTuple):
    """The trees of a call, [B, N] each."""

    tokens: _arguments.Steps
    first_child: _arguments.Steps
    next_sibling: _arguments.Steps
    valid: tl.tensor  # [B]: whether a request has more than its root; or None
    nodes: int
    max_depth: int


class Linked(NamedTuple):
    """The tree of request ``b``, which has its root alone unless it is ``live``."""

    links: Links
    b: tl.tensor
    nodes: tl.tensor
    live: tl.tensor


class Rule(NamedTuple):
    """The acceptance rule: uniforms that are given, and thresholds."""

    uniforms: _arguments.Number  # [B, N]
    single: _arguments.Number  # [B]: a child with this probability is accepted
    total: _arguments.Number  # [B]: the factor of uniforms


@triton.jit
def first_of(tree, node):
    """The link to the first child of a node."""
    return tl.load(_arguments.at(tree.links.first_child, tree.b, node), mask=tree.live, other=-1).to(tl.int64)


@triton.jit
def leads(tree, link, left):
    """Whether a link leads to a node, and its list is no longer than the tree."""
    return (link > 0) & (link < tree.nodes) & (left > 0)


@triton.jit
def token_of(tree, node):
    return tl.load(_arguments.at(tree.links.tokens, tree.b, node)).to(tl.int64)


@triton.jit
def sibling_of(tree, node):
    return tl.load(_arguments.at(tree.links.next_sibling, tree.b, node)).to(tl.int64)


@triton.jit
def listed_before(tree, node, token, count):
    """Whether one of the first ``count`` children of a node has a token."""
    listed = count < 0
    link, left = first_of(tree, node), tree.nodes + 0
    while leads(tree, link, left) & (count > 0) & (listed == 0):
        other = token_of(tree, link)
        listed = other == token
        count -= (other != -1).to(tl.int32)
        link, left = sibling_of(tree, link), left - 1
    return listed


@triton.jit
def try_links(tree, node, deep, row, target_token, uniform, single):
    """(accepted child or -1, whether any was tried, status). If ``deep`` no child may be tried."""
    accepted, count, flags = tl.full([], -1, tl.int64), 0 * tree.nodes, 0 * tree.nodes
    total = tl.full([], 0.0, tl.float32)
    wanted = tl.full([], -1, tl.int64)
    if row.at is None:
        wanted = tl.load(target_token).to(tl.int64)
    link, left = first_of(tree, node), tree.nodes + 0
    over = node < 0
    while leads(tree, link, left) & (over == 0):
        token = token_of(tree, link)
        if token != -1:
            if deep:
                flags |= _math.PARAMETER
                over = node >= 0
            else:
                if row.at is None:
                    passes = token == wanted
                else:
                    passes = node < 0
                    in_range = (token >= 0) & (token < row.columns)
                    flags |= tl.where(in_range, 0, _math.TOKEN_RANGE)
                    fresh = in_range
                    if in_range:
                        fresh = listed_before(tree, node, token, count) == 0
                    if fresh:
                        p, bad = _rows.probability_at(row, token, in_range)
                        flags |= tl.where(bad, _math.NON_FINITE, 0)
                        total += p
                        passes = (p > 0.0) & ((uniform < total) | (p >= single))
                count += 1
                accepted = tl.where(passes, link, accepted)
                over = passes
        if over == 0:
            link, left = sibling_of(tree, link), left - 1
    flags |= tl.where((over == 0) & (link != -1), _math.PARAMETER, 0)
    return accepted, count > 0, flags


@triton.jit
def finish_verdict(writer, depth, node, token, flags, max_depth):
    """Writes the last token, clears what is behind it, and writes count and status. One program calls this."""
    for base in range(0, max_depth + 1, _trees.NODES):
        at = base + tl.arange(0, _trees.NODES)
        _verdict.clear_columns(writer, at, (at <= max_depth) & (at > depth))
    _verdict.put_token(writer, depth, node, token, depth >= 0)
    _verdict.put_count(writer, depth)
    _verdict.put_status(writer, flags)


@_launch.kernel
def verify_linked_tree_kernel(
    links: Links, target: _arguments.Rows, target_tokens: _arguments.Steps, rule: Rule, noise: _arguments.Noise,
    verdict: _verdict.Verdict, counters, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    nodes, max_depth = tl.cast(links.nodes, tl.int32), tl.cast(links.max_depth, tl.int32)
    there = b >= 0
    live = there
    if links.valid is not None:
        live = tl.load(links.valid + b) != 0
    tree, writer = Linked(links, b, nodes, live), _verdict.Writer(verdict, b)
    split, splits = tl.program_id(1), tl.num_programs(1)
    writes = split == 0
    single, total = _arguments.number(rule.single, b, 0, there), _arguments.number(rule.total, b, 0, there)
    seeds = _arguments.load_noise(noise, b, 0, there)
    law, stats = _laws.Law(None, None), _laws.RowStats(0.0, 0.0)
    node, depth, flags, tried = tl.full([], 0, tl.int64), 0 * nodes, 0 * nodes, b < 0
    walks = there
    while walks:
        row, target_token, uniform = _laws.Row(None), None, 0.0
        if target.rows is None:
            target_token = _arguments.at(target_tokens, b, node)
        else:
            row = _laws.Row(_rows.start_of(target, b, node, ALIGNED), target.vocab, law, None, stats)
            if rule.uniforms.data is None:
                uniform = _math.accept_uniform(_math.later(seeds, depth), node)
            else:
                uniform = tl.load(_arguments.at(rule.uniforms, b, node))
        child, tried, reported = try_links(tree, node, depth == max_depth, row, target_token, uniform * total, single)
        flags |= reported | _verdict.put_node(writer, depth, node, writes)
        walks = child >= 0
        if walks:
            _verdict.put_token(writer, depth, node, token_of(tree, child), writes)
            node = child
            depth += 1

    if writes:
        _verdict.clear_off_path(writer, nodes, depth)
    if target.rows is None:
        token = tl.load(_arguments.at(target_tokens, b, node)).to(tl.int64)
        finish_verdict(writer, depth, node, token, flags, max_depth)
    else:
        record = counters + 4 * b
        if writes:
            tl.atomic_or(record + _rows.FLAGS, flags, sem="relaxed")
        last_noise = _math.later(seeds, depth)
        row = _laws.Row(_rows.start_of(target, b, node, ALIGNED), target.vocab, law)
        children = _races.Listed(
            _arguments.at(links.tokens, b, 0), links.tokens.inner, _arguments.at(links.next_sibling, b, 0),
            links.next_sibling.inner, tl.where(tried, first_of(tree, node), -1), nodes,
        )  # fmt: skip
        if _races.sample_slice(
            row, _laws.Row(None), None, 1.0, tried, there, None, children, record, last_noise, split, splits, TILE
        ):
            token, reported, _ = _races.finish_sample(row, _laws.Row(None), tried, there, record, last_noise, TILE)
            reported |= tl.load(record + _rows.FLAGS, cache_modifier=".cg")
            _rows.barrier()  # all warps have read it
            finish_verdict(writer, depth, node, token, reported, max_depth)
            tl.store(record + _rows.DONE, 0)
            tl.store(record + _rows.FLAGS, 0)


def verify_linked_tree(call):
    """Writes the verdicts of ``specdec_kernels.verify_linked_tree``."""
    target, (requests, width) = call.target, _verdict.shape_of(call)
    if requests == 0:
        return
    vocab = 1 if target is None else target.shape[-1]
    tile, tiles, warps = _launch.tile_of(vocab)
    trees = map(_arguments.nodes_of, (call.draft_tokens, call.first_child, call.next_sibling))
    uniforms = 0.0 if call.uniforms is None else call.uniforms
    with _launch.on_device(call.draft_tokens), _launch.whole_calls:
        counters, _ = _launch.workspace(call.draft_tokens, 4 * requests, 0)
        arguments = dict(
            links=Links(*trees, call.tree_valid, call.draft_tokens.shape[1], width - 1),
            target=_arguments.rows_of(target), verdict=_verdict.verdict_of(call), counters=counters,
            target_tokens=_arguments.NO_STEPS if target is not None else _arguments.nodes_of(call.target_tokens),
            rule=Rule(*map(_arguments.number_of, (uniforms, call.threshold_single, call.threshold_total))),
            noise=_arguments.noise_numbers(call.noise), TILE=tile,
            ALIGNED=target is not None and _launch.aligned(target),
        )  # fmt: skip
        splits = 1 if target is None else _launch.splits_of(requests, tiles, target.device)
        _launch.launch(verify_linked_tree_kernel, (requests, splits), warps, arguments)

"""Walks through trees by their links: one launch, the last row split over programs (csrc/include/specdec/link_walk.h).

Every program walks its request's tree, which is short, and so knows the row at its end without asking another. The
first one writes the path, the last one the token that all drew.

int32 counters of a request, zero before and after: the best key (two words), programs done, status.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _verdict
from specdec_kernels.triton_kernels._laws import Known, Law
from specdec_kernels.triton_kernels._math import NON_FINITE, PARAMETER, TOKEN_RANGE, accept_coin, later
from specdec_kernels.triton_kernels._races import Listed, draw_part, drawn
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Rows,
    barrier,
    noise_at,
    number,
    probability_at,
    row_at,
    row_of,
)
from specdec_kernels.triton_kernels._trees import NODES
from specdec_kernels.triton_kernels._verdict import (
    VerdictWriter,
    clear_off_path,
    clear_places,
    put_count,
    put_node,
    put_token,
)


class Linked(NamedTuple):
    """The tree of one request: pointers to its nodes, and strides. Without ``live`` it is its root alone."""

    tokens: tl.tensor
    tokens_node: tl.tensor
    first_child: tl.tensor
    first_child_node: tl.tensor
    next_sibling: tl.tensor
    next_sibling_node: tl.tensor
    nodes: tl.tensor
    live: tl.tensor


@triton.jit
def first_of(tree, node):
    """The link to the first child of a node."""
    return tl.load(tree.first_child + node * tree.first_child_node, mask=tree.live, other=-1).to(tl.int64)


@triton.jit
def leads(tree, link, left):
    """Whether a link leads to a node, and the list that it stands in is no longer than the tree."""
    return (link > 0) & (link < tree.nodes) & (left > 0)


@triton.jit
def token_of(tree, node):
    return tl.load(tree.tokens + node * tree.tokens_node).to(tl.int64)


@triton.jit
def sibling_of(tree, node):
    return tl.load(tree.next_sibling + node * tree.next_sibling_node).to(tl.int64)


@triton.jit
def listed_before(tree, node, token, count):
    """Whether one of the first ``count`` children of a node has a token."""
    found = count < 0
    link, left = first_of(tree, node), tree.nodes + 0
    while leads(tree, link, left) & (count > 0) & (found == 0):
        other = token_of(tree, link)
        found = other == token
        count -= (other != -1).to(tl.int32)
        link, left = sibling_of(tree, link), left - 1
    return found


@triton.jit
def try_links(tree, node, deep, target, target_tokens, coin, single):
    """(the child accepted, or -1; whether any was tried; status). Where ``deep``, none may be tried."""
    accepted, count, flags = tl.full([], -1, tl.int64), 0 * tree.nodes, 0 * tree.nodes
    total = tl.full([], 0.0, tl.float32)
    wanted = tl.full([], -1, tl.int64)
    if target is None:
        wanted = tl.load(target_tokens).to(tl.int64)
    link, left = first_of(tree, node), tree.nodes + 0
    over = node < 0
    while leads(tree, link, left) & (over == 0):
        token = token_of(tree, link)
        if token != -1:
            if deep:
                flags |= PARAMETER
                over = node >= 0
            else:
                if target is None:
                    passes = token == wanted
                else:
                    passes = node < 0
                    in_range = (token >= 0) & (token < target.columns)
                    flags |= tl.where(in_range, 0, TOKEN_RANGE)
                    fresh = in_range
                    if in_range:
                        fresh = listed_before(tree, node, token, count) == 0
                    if fresh:
                        p, bad = probability_at(
                            target, token, in_range, Law(None, None), Known(0.0, 0.0), None
                        )  # fmt: skip
                        flags |= tl.where(bad, NON_FINITE, 0)
                        total += p
                        passes = (p > 0.0) & ((coin < total) | (p >= single))
                count += 1
                accepted = tl.where(passes, link, accepted)
                over = passes
        if over == 0:
            link, left = sibling_of(tree, link), left - 1
    flags |= tl.where((over == 0) & (link != -1), PARAMETER, 0)
    return accepted, count > 0, flags


@triton.jit
def finish_verdict(verdict, depth, node, token, flags, max_depth):
    """By one program: the token at the end of the path, nothing behind it, and what is said of the request."""
    for base in range(0, max_depth + 1, NODES):
        at = base + tl.arange(0, NODES)
        clear_places(verdict, at, (at <= max_depth) & (at > depth))
    put_token(verdict, depth, node, token, depth >= 0)
    put_count(verdict, depth)
    tl.store(verdict.status, flags)


@_launch.kernel
def verify_links_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    first_child, first_child_request: tl.int64, first_child_node: tl.int64,
    next_sibling, next_sibling_request: tl.int64, next_sibling_node: tl.int64, tree_valid,
    target, target_request: tl.int64, target_row: tl.int64, vocab: tl.int32, nodes: tl.int32, max_depth: tl.int32,
    target_tokens, target_tokens_request: tl.int64, target_tokens_node: tl.int64,
    coins, coins_request: tl.int64, coins_node: tl.int64, coins_value: tl.float32,
    threshold_single, threshold_single_request: tl.int64, threshold_single_value: tl.float32,
    threshold_total, threshold_total_request: tl.int64, threshold_total_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, num_accepted, status,
    form: tl.int32, counters, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    there = b >= 0
    live = there
    if tree_valid is not None:
        live = tl.load(tree_valid + b) != 0
    tree = Linked(
        draft_tokens + b * draft_tokens_request, draft_tokens_node, first_child + b * first_child_request,
        first_child_node, next_sibling + b * next_sibling_request, next_sibling_node, nodes, live,
    )  # fmt: skip
    verdict = VerdictWriter(
        tokens + (b * tokens_request if index is None else 0), tokens_slot,
        None if path is None else path + b * path_request, None if index is None else index + b * index_request,
        index_node, flat, num_accepted + b, status + b, form,
    )  # fmt: skip
    split, splits = tl.program_id(1), tl.num_programs(1)
    writes = split == 0
    single = number(threshold_single, threshold_single_value, b * threshold_single_request, there)
    total = number(threshold_total, threshold_total_value, b * threshold_total_request, there)
    rows = None
    if target is not None:
        rows = Rows(row_at(target, b * target_request, ALIGNED), target_row, vocab)
    if target_tokens is not None:
        target_tokens += b * target_tokens_request

    seeds = noise_at(
        seed, seed_value, b * seed_request, position, position_value, b * position_request, nonce, nonce_value,
        b * nonce_request, there,
    )  # fmt: skip
    node, depth, flags, tried = tl.full([], 0, tl.int64), 0 * nodes, 0 * nodes, b < 0
    walks = there
    while walks:
        own, wanted, coin = None, None, 0.0
        if target is None:
            wanted = target_tokens + node * target_tokens_node
        else:
            own = row_of(rows, node, ALIGNED)
            if coins is None:
                coin = accept_coin(later(seeds, depth), node)
            else:
                coin = tl.load(coins + b * coins_request + node * coins_node)
        child, tried, reported = try_links(tree, node, depth == max_depth, own, wanted, coin * total, single)
        flags |= reported | put_node(verdict, depth, node, writes)
        walks = child >= 0
        if walks:
            put_token(verdict, depth, node, token_of(tree, child), writes)
            node = child
            depth += 1

    if writes:
        clear_off_path(verdict, nodes, depth)
    if target is None:
        token = tl.load(target_tokens + node * target_tokens_node).to(tl.int64)
        finish_verdict(verdict, depth, node, token, flags, max_depth)
    else:
        record = counters + 4 * b
        if writes:
            tl.atomic_or(record + FLAGS, flags, sem="relaxed")
        noise, own, law = later(seeds, depth), row_of(rows, node, ALIGNED), Law(None, None)
        children = Listed(
            tree.tokens, tree.tokens_node, tree.next_sibling, tree.next_sibling_node,
            tl.where(tried, first_of(tree, node), -1), nodes,
        )  # fmt: skip
        if draw_part(
            own, law, None, None, None, 1.0, tried, there, None, children, None, record, noise, split, splits, TILE
        ):
            token, reported = drawn(own, law, None, None, tried, there, record, noise, TILE)
            reported |= tl.load(record + FLAGS, cache_modifier=".cg")
            barrier()  # all warps have read
            finish_verdict(verdict, depth, node, token, reported, max_depth)
            tl.store(record + DONE, 0)
            tl.store(record + FLAGS, 0)


def verify_links(call):
    """The verdict of each request, as ``specdec_kernels.verify_links`` has it."""
    target, (requests, width) = call.target, _verdict.shape_of(call)
    if requests == 0:
        return
    vocab = 1 if target is None else target.shape[-1]
    tile, tiles, warps = _launch.tile_of(vocab)
    links = ("draft_tokens", "first_child", "next_sibling")
    with _launch.on_device(call.draft_tokens), _launch.whole_calls:
        counters, _ = _launch.workspace(call.draft_tokens, 4 * requests, 0)
        arguments = dict(
            tree_valid=call.tree_valid, vocab=vocab, nodes=call.draft_tokens.shape[1], max_depth=width - 1,
            counters=counters, ALIGNED=target is not None and _launch.aligned(target), TILE=tile,
            target_tokens=None, target_tokens_request=0, target_tokens_node=0,
        ) | {
            **_launch.rows("target", target), **_launch.noise(call.noise, "request"), **_verdict.arguments(call),
            **_launch.number("coins", 0.0 if call.coins is None else call.coins, "request", "node"),
            **_launch.number("threshold_single", call.threshold_single, "request"),
            **_launch.number("threshold_total", call.threshold_total, "request"),
        }  # fmt: skip
        for name in links if target is not None else (*links, "target_tokens"):
            arguments |= _launch.nodes(name, getattr(call, name))
        splits = 1 if target is None else _launch.splits_of(requests, tiles, target.device)
        _launch.launch(verify_links_kernel, (requests, splits), warps, arguments)

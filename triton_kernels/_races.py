"""Races over tiles of rows: which token arrives first, and the sample that ends a verification."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _laws, _math, _rows, _trees

# How many groups of a tile are scored at once: in races over one row, and over a pair. Scoring is rare, so it should
# not set the registers of a kernel.
SCORED, WEIGHED = tl.constexpr(8), tl.constexpr(4)
MERGED = tl.constexpr(1024)  # keys loaded together
DRAFTED = tl.constexpr(1 << 16)  # a private status bit: a token of the draft row has weight


@triton.jit
def can_win(bound, a, to_beat):
    """Whether a group with first word ``a`` and log weights up to ``bound`` can win: it arrives at a * 2**-38 or later.

    The errors of the approximate exponential and of the rounded ``a`` are far smaller than the slack. The
    exponent of a group without weight is NaN, which is no.
    """
    return a.to(tl.float32) <= tl.exp(bound - to_beat + _math.slack(bound, to_beat)) * 2.0**38 + 1.0


@triton.jit
def may_win(tops, a, best, law):
    """Which groups can beat the best key, by their largest clean values."""
    wins = can_win(_laws.log_weights(tops, law), a, _math.key_score(best))
    if law.greedy is not None:
        wins = tl.where(law.greedy, tops >= _math.key_score(best), wins)
    return wins


@triton.jit
def exchange_best(key, best):
    """Adds this program's best key to the row's; returns the best key of all its programs so far."""
    # An atomic reads it, for other programs write it: each warp would make a scalar load of its own, so two warps could
    # see different values and take different branches.
    return tl.maximum(best, tl.atomic_max(key, best, sem="relaxed"))


@triton.jit
def pack_groups(groups):
    """A mask [at most 64] of a tile's groups as the bits of a number."""
    bit = tl.full([groups.shape[0]], 1, tl.uint64) << tl.arange(0, groups.shape[0]).to(tl.uint64)
    return tl.sum(tl.where(groups, bit, 0), axis=0)


@triton.jit
def next_groups(left, first, COUNT: tl.constexpr):
    """(the lowest COUNT groups in the bits of ``left``, plus ``first``, then NO_GROUP; the other bits)."""
    lane = tl.arange(0, COUNT)
    groups = tl.full([COUNT], _math.NO_GROUP, tl.int32)
    for i in tl.static_range(COUNT):
        rest = left & tl.sub(left, 1, sanitize_overflow=False)
        bit = ((left ^ rest).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        groups = tl.where((lane == i) & (left != 0), first + bit, groups)
        left = rest
    return groups, left


@triton.jit
def group_scores(x, groups, noise, law, STREAM: tl.constexpr):
    """The score of every token of ``groups``, whose clean values are ``x``."""
    GROUPS: tl.constexpr = x.shape[0]
    a, b = _math.random_words_of_groups(noise, groups, STREAM)
    first = _math.first_arrival(a, b)[:, None]
    column = tl.arange(0, _math.GROUP)
    four = noise.first // 4 + groups[:, None] * (_math.GROUP // 4) + tl.arange(0, _math.GROUP // 4)[None, :]
    w0, w1, w2, w3 = _math.random_words(noise, four.to(tl.uint32), STREAM + 1)
    second = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [GROUPS, _math.GROUP])
    arrival = tl.where(column[None, :] == _math.first_winner(b)[:, None], first, first + _math.later_by(second))
    return _laws.log_weights(x, law) - _math.log(arrival)


class Sampled(NamedTuple):
    """What a race writes."""

    tokens: tl.tensor  # int64 [rows], or [rows, k]
    scores: tl.tensor  # float32, of the same shape, or None
    status: tl.tensor  # int32 [rows], or None


class Excluded(NamedTuple):
    """A list of tokens without weight."""

    tokens: tl.tensor  # [count]
    count: tl.tensor
    first: tl.tensor


class Listed(NamedTuple):
    """The children of a node by their links, from ``first`` on; a list longer than ``nodes`` is cut there."""

    tokens: tl.tensor
    tokens_node: tl.tensor
    next_sibling: tl.tensor
    next_sibling_node: tl.tensor
    first: tl.tensor
    nodes: tl.tensor


@triton.jit
def without_linked(x, tokens, nothing, children):
    """A block of values with ``nothing`` at the tokens of linked children."""
    child, left = children.first, children.nodes + 0
    while (child > 0) & (child < children.nodes) & (left > 0):
        token = tl.load(children.tokens + child * children.tokens_node).to(tl.int64)
        x = tl.where(tokens == token, nothing, x)
        child = tl.load(children.next_sibling + child * children.next_sibling_node).to(tl.int64)
        left -= 1
    return x


@triton.jit
def without_children(x, tokens, start, nothing, children, TILE: tl.constexpr):
    """A block of the tile at ``start`` with ``nothing`` at the tokens of ``children``."""
    end = children.end
    for base in range(children.node + 1, end, _trees.NODES):
        index, token, mine = _trees.children_at(children.tree, base, children.node, end)
        mine = mine & (token >= start) & (token < start + TILE)
        while _math.any_of(mine) > 0:
            first = tl.min(tl.where(mine, index, end), axis=0)
            mine = mine & (index != first)
            x = tl.where(tokens == tl.sum(tl.where(index == first, token, 0), axis=0), nothing, x)
    return x


@triton.jit
def without_listed(x, tokens, nothing, listed):
    """A block of values with ``nothing`` at the tokens of a list."""
    for i in range(0, listed.count):
        token = tl.load(listed.tokens + i)
        x = tl.where((tokens == token - listed.first) & (token >= 0), nothing, x)
    return x


@triton.jit
def best_of_groups(x, groups, best, noise, law, STREAM: tl.constexpr):
    """The best key after ``groups``, whose clean values are ``x``."""
    if law.greedy is None:
        scores = group_scores(x, groups, noise, law, STREAM)
    else:
        scores = _laws.greedy_scores(x, law)
        if law.greedy == 0:
            scores = group_scores(x, groups, noise, law, STREAM)
    return _rows.best_of_tile(scores, _rows.group_tokens(groups), best)


@triton.jit
def race_tiles(row, first, last, key, noise, excluded, children, STREAM: tl.constexpr, TILE: tl.constexpr, listed=None):
    """(best key, bad) of the tiles [first, last) of a row. ``excluded``, ``children`` and ``listed`` tokens have no
    weight.

    ``key`` points to the best key of all programs of the row; None if one program races alone. Most groups cost a
    maximum, half a Philox call and one comparison. Groups that may hold the winner are read again, from cache, SCORED
    at a time, until none may. Only there tokens lose their weight; before, a bound that is too high does no harm.
    """
    GROUPS: tl.constexpr = TILE // _math.GROUP
    best = tl.full([], 0, tl.uint64)
    bad = tl.zeros([GROUPS], tl.int1)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = _rows.load_tile(row, start, TILE)
        if key is not None:
            best = exchange_best(key, best)
        tops = _rows.group_tops(x)
        unclean = _laws.unclean_groups(x, tops, row.law)
        bad = bad | unclean
        tops = tl.where(unclean, _math.INFINITY, _laws.clean(tops, row.law))  # a group with a bad value is read again
        a, _ = _math.random_group_words(noise, start // _math.GROUP, STREAM, GROUPS)
        left = pack_groups(may_win(tops, a, best, row.law))
        while left != 0:
            groups, left = next_groups(left, start // _math.GROUP, min(SCORED, GROUPS))
            tokens = _rows.group_tokens(groups)
            y = _rows.load(row, tokens, start, start + TILE)
            if excluded is not None:
                y = tl.where(tokens == excluded, _laws.nothing(row.law), y)
            if listed is not None:
                y = without_listed(y, tokens, _laws.nothing(row.law), listed)
            if children is not None:
                if len(children) == 3:
                    y = without_children(y, tokens, start, _laws.nothing(row.law), children, TILE)
                else:
                    y = without_linked(y, tokens, _laws.nothing(row.law), children)
            best = best_of_groups(_laws.clean(y, row.law), groups, best, noise, row.law, STREAM)
            if left != 0:
                left &= pack_groups(may_win(tops, a, best, row.law))
    return best, _math.any_of(bad) > 0


@triton.jit
def race_row(row, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of a row that one program races alone, SCORED groups at a time."""
    SLICE: tl.constexpr = min(SCORED * _math.GROUP, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = row.columns < 0
    for at in range(0, row.columns, SLICE):
        start = tl.cast(at, tl.int32)
        x = _rows.load_tile(row, start, SLICE)
        bad = bad | (_math.any_of(_laws.unclean_groups(x, _rows.group_tops(x), row.law)) > 0)
        x, groups = _laws.clean(x, row.law), start // _math.GROUP + tl.arange(0, SLICE // _math.GROUP)
        a, _ = _math.random_group_words(noise, start // _math.GROUP, STREAM, SLICE // _math.GROUP)
        if _math.any_of(may_win(tl.max(x, axis=1), a, best, row.law)) > 0:
            best = best_of_groups(x, groups, best, noise, row.law, STREAM)
    return best, bad


@triton.jit
def mapped_scores(x, tokens, noise, law, STREAM: tl.constexpr):
    """The scores of a tile of clean values of ``tokens``."""
    w0, w1, w2, w3 = _math.random_words(noise, (tokens // (2 * _math.GROUP)).to(tl.uint32), STREAM)
    odd = tokens // _math.GROUP % 2 == 1
    first, winner = (
        _math.first_arrival(tl.where(odd, w1, w0), tl.where(odd, w3, w2)),
        _math.first_winner(tl.where(odd, w3, w2)),
    )
    later = first + _math.later_by(_math.second_random_words(noise, tokens, STREAM))
    return _laws.log_weights(x, law) - _math.log(tl.where(tokens % _math.GROUP == winner, first, later))


@triton.jit
def map_tokens(row, start, TILE: tl.constexpr):
    """The target's tokens at a tile of a draft row's columns."""
    column = _rows.tile_tokens(start, TILE)
    return tl.load(row.map + column, mask=column < row.columns, other=_math.NO_TOKEN)


@triton.jit
def race_mapped(row, first, last, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of the tiles [first, last) of a draft row with a map. Every token is scored."""
    SLICE: tl.constexpr = min(SCORED * _math.GROUP, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for at in range(first * TILE, tl.minimum(last * TILE, row.columns), SLICE):
        start = tl.cast(at, tl.int32)
        x = _rows.load_tile(row, start, SLICE)
        bad = bad | (_math.any_of(_laws.unclean_groups(x, _rows.group_tops(x), row.law)) > 0)
        x = _laws.clean(x, row.law)
        tokens = map_tokens(row, start, SLICE)
        scores = _laws.greedy_scores(x, row.law)
        if row.law.greedy == 0:
            scores = mapped_scores(x, tokens, noise, row.law, STREAM)
        best = _rows.best_of_tile(scores, tokens, best)
    return best, bad


@triton.jit
def scale_by_bucket(p, q, bucket_scales, by_bucket):
    """q times the scale of its bucket (paths.h) if ``by_bucket`` > 0; else q."""
    if by_bucket > 0.0:
        q = tl.load(bucket_scales + _math.bucket_of(p, q), cache_modifier=".cg") * q
    return q


@triton.jit
def residual_tiles(
    p_row, q_row, first, last, key, h, noise, STREAM: tl.constexpr, TILE: tl.constexpr, bucket_scales=None,
    by_bucket=0.0
):  # fmt: skip
    """(best key, bad, whether q has weight) of the race over (p - h q)^+ in the tiles [first, last)."""
    # p bounds the weights, so q is computed from logits in few tiles only. Whether q has weight is checked only if the
    # draft row holds probabilities.
    GROUPS: tl.constexpr = TILE // _math.GROUP
    best = tl.full([], 0, tl.uint64)
    bad, drafted = tl.zeros([GROUPS], tl.int1), tl.zeros([GROUPS], tl.int1)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = _rows.load_tile(p_row, start, TILE)
        best = exchange_best(key, best)
        tops = _rows.group_tops(x)
        unclean = _laws.unclean_groups(x, tops, p_row.law)
        if q_row.law.inverse is None:
            y = _rows.load_tokens(q_row, _rows.tile_tokens(start, TILE), start, TILE)
            y_tops = _rows.group_tops(y)
            unclean = unclean | _laws.unclean_groups(y, y_tops, q_row.law)
            drafted = drafted | ((y_tops < _math.SMALLEST) == 0)
        bad = bad | unclean
        bounds = tl.where(unclean, _math.INFINITY, _laws.log_bound(tops, p_row.law, p_row.stats))
        a, _ = _math.random_group_words(noise, start // _math.GROUP, STREAM, GROUPS)
        left = pack_groups(can_win(bounds, a, _math.key_score(best)))
        while left != 0:
            groups, left = next_groups(left, start // _math.GROUP, min(WEIGHED, GROUPS))
            tokens = _rows.group_tokens(groups)
            p = _laws.probabilities(_rows.load(p_row, tokens, start, start + TILE), tokens, p_row.law, p_row.stats)
            raw = _rows.load_tokens(q_row, tokens, start, TILE)
            q = _laws.probabilities(raw, tokens, q_row.law, q_row.stats)
            if bucket_scales is not None:
                q = scale_by_bucket(p, q, bucket_scales, by_bucket)
            weights = _math.residual_weight(p, h * q)
            best = best_of_groups(weights, groups, best, noise, _laws.Law(None, None), STREAM)
            if left != 0:
                left &= pack_groups(can_win(bounds, a, _math.key_score(best)))
    return best, _math.any_of(bad) > 0, _math.any_of(drafted) > 0


@triton.jit
def sample_slice(
    p, q, pair_stats, h, from_residual, readable, excluded, children, request, noise, split, splits, TILE: tl.constexpr,
    bucket_scales=None, by_bucket=0.0,
):  # fmt: skip
    """Races one program's tiles of the last token's sample: from (p - h q)^+, or p if not ``from_residual``."""
    # ``pair_stats`` is float32 [4] for the two rows. Without a draft row, ``excluded`` and ``children`` have no weight.
    # Returns whether this program was the last of the row.
    first, last = _rows.tile_range(tl.cdiv(p.columns, TILE), split, splits)
    last = tl.where(readable, last, first)
    key = _rows.key_at(request)
    if (q.at is not None) and from_residual:
        p_stats = _laws.load_row_stats(pair_stats, p.law, readable)
        q_stats = _laws.load_row_stats(pair_stats + 2, q.law, readable)
        best, bad, drafted = residual_tiles(
            _laws.Row(p.at, p.columns, p.law, None, p_stats), _laws.Row(q.at, q.columns, q.law, q.map, q_stats), first,
            last, key, h, noise, _math.STREAM_RESIDUAL, TILE, bucket_scales, by_bucket,
        )  # fmt: skip
        if drafted:
            tl.atomic_or(request + _rows.FLAGS, DRAFTED, sem="relaxed")
    else:
        best, bad = race_tiles(p, first, last, key, noise, excluded, children, _math.STREAM_RESIDUAL, TILE)
    tl.atomic_max(key, best, sem="relaxed")
    if bad:
        tl.atomic_or(request + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")
    return _rows.is_last(request + _rows.DONE, splits)


@triton.jit
def finish_sample(p, q, from_residual, readable, request, noise, TILE: tl.constexpr):
    """(sampled token, status, whether p has no weight), for the last program of a row. It samples p if the residual is
    empty."""
    best = tl.atomic_xchg(_rows.key_at(request), tl.full([], 0, tl.uint64), sem="relaxed")
    row_status = tl.load(request + _rows.FLAGS, cache_modifier=".cg")
    flags = row_status & _math.NON_FINITE
    if q.at is not None:  # noqa: SIM102  without a draft row q has no law
        if q.law.inverse is None:
            flags |= tl.where(from_residual & (row_status & DRAFTED == 0), _math.NON_FINITE, 0)
    if (best == _math.NO_CANDIDATE) & from_residual:
        best, bad = race_row(p, noise, _math.STREAM_RESIDUAL, TILE)
        flags |= tl.where(bad, _math.NON_FINITE, 0) | tl.where(best == _math.NO_CANDIDATE, 0, _math.EMPTY_RESIDUAL)
    empty = (best == _math.NO_CANDIDATE) & readable
    return _math.key_token(best).to(tl.int64), flags | tl.where(empty, _math.NON_FINITE, 0), empty


@triton.jit
def decode_arrival(best, live, idle, rank, vocab_start):
    """(token, score, whether a token arrived) of the key of an arrival, by ``rank``; -1 and -inf if none arrived."""
    # A request that is not live has one token, of rank 0, with a score that beats those of all shards of a row.
    arrived = (best != _math.NO_CANDIDATE) & live
    unread = (live == 0) & (rank == 0)
    token = tl.where(arrived, _math.key_token(best).to(tl.int64) + vocab_start, -1)
    token = tl.where(unread & (idle == 0), 0, token)
    score = tl.where(arrived, _math.key_score(best), tl.where(unread, _math.INFINITY, -_math.INFINITY))
    return token, score, arrived


@triton.jit
def store_best(keys, scores, tokens, k):
    """Stores the k best keys of a tile of scores, best first."""
    for n in range(0, k):
        best = _rows.best_of_tile(scores, tokens, tl.full([], 0, tl.uint64))
        tl.store(keys + n, best)
        scores = tl.where(tokens == _math.key_token(best), -_math.INFINITY, scores)


@triton.jit
def next_best(keys, count, before):
    """The best key below ``before`` of the ``count`` that programs of a row stored. No two keys are equal."""
    best = tl.full([], 0, tl.uint64)
    for base in range(0, count, MERGED):
        index = base + tl.arange(0, MERGED)
        key = tl.load(keys + index, mask=index < count, other=_math.NO_CANDIDATE, cache_modifier=".cg")
        best = tl.maximum(best, tl.max(tl.where(key < before, key, _math.NO_CANDIDATE), axis=0))
    return best


# Host side

# Registers of a thread, for rows of 16 bits and of float32, by what a kernel of 128 threads does: it races, samples the
# last token, or scans a pair of rows or one row. So 8, 6, 4 and 5 programs of 16 bits fit a multiprocessor.
LIMITS = {"race": (64, 96), "draw": (80, 96), "pair": (128, 168), "row": (96, 128)}


def limit(does, rows):
    return LIMITS[does][rows.dtype == torch.float32]


def most_registers(arguments, step):
    """Register limits of a step of verification: ``race``, ``scan``, ``accept`` or ``sample``."""
    # With edits three programs of rejection fit, for ptxas spills to fit four, and one program of the 512 threads that
    # accept, for it spills to fit two. Four programs sample from filtered rows.
    memory, rows, draft = arguments["memory"], arguments["target"].rows, arguments["draft"].rows
    if arguments["edits"].by_row is not None:
        return {"race": None, "accept": 128}.get(step, 168)
    if step == "sample":
        return limit("draw", rows) if memory.target_cuts is memory.draft_cuts is None else 128
    if step == "accept":
        return None
    return limit("race" if step == "race" else "row" if draft is None else "pair", rows)

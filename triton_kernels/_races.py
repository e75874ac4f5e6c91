"""Races over tiles of rows: which token arrives first, and the draw that ends a verification."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _laws, _math, _rows, _trees

# How many groups of a tile are scored at once: in races over one row, and over a pair. Scoring is rare, so it must not
# decide how many registers a kernel takes.
SCORED, WEIGHED = tl.constexpr(8), tl.constexpr(4)
MERGED = tl.constexpr(1024)  # keys looked at together
DRAFTED = tl.constexpr(1 << 16)  # beside the public bits: some token of the draft row has weight


@triton.jit
def can_win(bound, a, to_beat):
    """Whether a group with first word ``a`` and log weights up to ``bound`` can win: it arrives at a * 2**-38 or later.

    The errors of the approximate exponential and of the rounded ``a`` are far smaller than the slack. For a group
    without weight the exponent is NaN, and the answer is no.
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
def exchange(key, best):
    """The best key of all programs of a row so far, after telling them ours."""
    # Memory that other programs may write is read by atomics only. Each warp makes a scalar load on its own: two warps
    # could see different values and take different branches.
    return tl.maximum(best, tl.atomic_max(key, best, sem="relaxed"))


@triton.jit
def set_of(groups):
    """Some groups of a tile, at most 64, as the bits of a number."""
    bit = tl.full([groups.shape[0]], 1, tl.uint64) << tl.arange(0, groups.shape[0]).to(tl.uint64)
    return tl.sum(tl.where(groups, bit, 0), axis=0)


@triton.jit
def next_groups(left, first, COUNT: tl.constexpr):
    """(the first COUNT groups of a set, counted on from ``first``, NO_GROUP behind them; the set without them)."""
    place = tl.arange(0, COUNT)
    groups = tl.full([COUNT], _math.NO_GROUP, tl.int32)
    for i in tl.static_range(COUNT):
        rest = left & tl.sub(left, 1, sanitize_overflow=False)
        bit = ((left ^ rest).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        groups = tl.where((place == i) & (left != 0), first + bit, groups)
        left = rest
    return groups, left


@triton.jit
def group_scores(x, groups, noise, law, STREAM: tl.constexpr):
    """The score of every token of some groups of clean values."""
    GROUPS: tl.constexpr = x.shape[0]
    a, b = _math.words_of_groups(noise, groups, STREAM)
    first = _math.first_arrival(a, b)[:, None]
    column = tl.arange(0, _math.GROUP)
    four = noise.first // 4 + groups[:, None] * (_math.GROUP // 4) + tl.arange(0, _math.GROUP // 4)[None, :]
    w0, w1, w2, w3 = _math.words(noise, four.to(tl.uint32), STREAM + 1)
    second = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [GROUPS, _math.GROUP])
    arrival = tl.where(column[None, :] == _math.first_winner(b)[:, None], first, first + _math.later_by(second))
    return _laws.log_weights(x, law) - _math.log(arrival)


class Sampled(NamedTuple):
    """What a race writes: a number for each row, or k."""

    tokens: tl.tensor
    scores: tl.tensor
    status: tl.tensor


class Excluded(NamedTuple):
    """Tokens of a list: where they are, how many, and the token of column 0."""

    tokens: tl.tensor
    count: tl.tensor
    first: tl.tensor


class Listed(NamedTuple):
    """The children of a node by their links: from the first on, no more than the tree has nodes."""

    tokens: tl.tensor
    tokens_node: tl.tensor
    next_sibling: tl.tensor
    next_sibling_node: tl.tensor
    first: tl.tensor
    nodes: tl.tensor


@triton.jit
def without_linked(x, tokens, nothing, children):
    """A block of values with ``nothing`` at the tokens of children by links."""
    child, left = children.first, children.nodes + 0
    while (child > 0) & (child < children.nodes) & (left > 0):
        token = tl.load(children.tokens + child * children.tokens_node).to(tl.int64)
        x = tl.where(tokens == token, nothing, x)
        child = tl.load(children.next_sibling + child * children.next_sibling_node).to(tl.int64)
        left -= 1
    return x


@triton.jit
def without_children(x, tokens, start, nothing, children, TILE: tl.constexpr):
    """A block of a tile with ``nothing`` at the tokens of ``children``: those of a node of a tree."""
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
    """A block of values with ``nothing`` at listed tokens."""
    for i in range(0, listed.count):
        token = tl.load(listed.tokens + i)
        x = tl.where((tokens == token - listed.first) & (token >= 0), nothing, x)
    return x


@triton.jit
def best_of_groups(x, groups, best, noise, law, STREAM: tl.constexpr):
    """The best key after some groups of clean values."""
    if law.greedy is None:
        scores = group_scores(x, groups, noise, law, STREAM)
    else:
        scores = _laws.greedy_scores(x, law)
        if law.greedy == 0:
            scores = group_scores(x, groups, noise, law, STREAM)
    return _rows.best_of_tile(scores, _rows.group_tokens(groups), best)


@triton.jit
def race_tiles(row, first, last, key, noise, excluded, children, STREAM: tl.constexpr, TILE: tl.constexpr, listed=None):
    """(best key, bad) of the tiles [first, last) of a row; token ``excluded`` and those of ``children`` have no weight.

    Nor have ``listed`` tokens: where they are, how many, and the token of column 0.

    ``key`` points to the best key of all programs of the row; None for one that races alone. For each group, most tiles
    cost a maximum, half a Philox call and one comparison. Groups that may hold the winner are read again, from cache,
    some at a time, for as long as they may. ``excluded`` and ``children`` are taken out only there: before, a bound may
    be too high, which does no harm.
    """
    GROUPS: tl.constexpr = TILE // _math.GROUP
    best = tl.full([], 0, tl.uint64)
    bad = tl.zeros([GROUPS], tl.int1)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = _rows.load_tile(row, start, TILE)
        if key is not None:
            best = exchange(key, best)
        tops = _rows.group_tops(x)
        unclean = _laws.unclean_groups(x, tops, row.law)
        bad = bad | unclean
        tops = tl.where(unclean, _math.INFINITY, _laws.clean(tops, row.law))  # opened, whatever else it holds
        a, _ = _math.group_words(noise, start // _math.GROUP, STREAM, GROUPS)
        left = set_of(may_win(tops, a, best, row.law))
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
                left &= set_of(may_win(tops, a, best, row.law))
    return best, _math.any_of(bad) > 0


@triton.jit
def race_row(row, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of a row that one program races alone, as many groups at a time as it scores at once."""
    PART: tl.constexpr = min(SCORED * _math.GROUP, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = row.columns < 0
    for at in range(0, row.columns, PART):
        start = tl.cast(at, tl.int32)
        x = _rows.load_tile(row, start, PART)
        bad = bad | (_math.any_of(_laws.unclean_groups(x, _rows.group_tops(x), row.law)) > 0)
        x, groups = _laws.clean(x, row.law), start // _math.GROUP + tl.arange(0, PART // _math.GROUP)
        a, _ = _math.group_words(noise, start // _math.GROUP, STREAM, PART // _math.GROUP)
        if _math.any_of(may_win(tl.max(x, axis=1), a, best, row.law)) > 0:
            best = best_of_groups(x, groups, best, noise, row.law, STREAM)
    return best, bad


@triton.jit
def mapped_scores(x, tokens, noise, law, STREAM: tl.constexpr):
    """The score of each value of a tile of clean values; ``tokens`` are the tokens that have them."""
    w0, w1, w2, w3 = _math.words(noise, (tokens // (2 * _math.GROUP)).to(tl.uint32), STREAM)
    odd = tokens // _math.GROUP % 2 == 1
    first, winner = (
        _math.first_arrival(tl.where(odd, w1, w0), tl.where(odd, w3, w2)),
        _math.first_winner(tl.where(odd, w3, w2)),
    )
    later = first + _math.later_by(_math.second_words(noise, tokens, STREAM))
    return _laws.log_weights(x, law) - _math.log(tl.where(tokens % _math.GROUP == winner, first, later))


@triton.jit
def map_tokens(row, start, TILE: tl.constexpr):
    """The target's tokens of a tile of a draft row's columns."""
    column = _rows.tile_tokens(start, TILE)
    return tl.load(row.map + column, mask=column < row.columns, other=_math.NO_TOKEN)


@triton.jit
def race_mapped(row, first, last, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of the tiles [first, last) of a draft row with a vocabulary of its own. Every token is scored."""
    PART: tl.constexpr = min(SCORED * _math.GROUP, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for at in range(first * TILE, tl.minimum(last * TILE, row.columns), PART):
        start = tl.cast(at, tl.int32)
        x = _rows.load_tile(row, start, PART)
        bad = bad | (_math.any_of(_laws.unclean_groups(x, _rows.group_tops(x), row.law)) > 0)
        x = _laws.clean(x, row.law)
        tokens = map_tokens(row, start, PART)
        scores = _laws.greedy_scores(x, row.law)
        if row.law.greedy == 0:
            scores = mapped_scores(x, tokens, noise, row.law, STREAM)
        best = _rows.best_of_tile(scores, tokens, best)
    return best, bad


@triton.jit
def shared(p, q, shares, by_bucket):
    """q times the share of its bucket (paths.h), where it counts ``by_bucket``; else q."""
    if by_bucket > 0.0:
        q = tl.load(shares + _math.bucket_of(p, q), cache_modifier=".cg") * q
    return q


@triton.jit
def residual_tiles(
    p_row, q_row, first, last, key, h, noise, STREAM: tl.constexpr, TILE: tl.constexpr, shares=None, by_bucket=0.0
):  # fmt: skip
    """(best key, bad, whether q has weight) of the race over (p - h q)^+ in the tiles [first, last)."""
    # p is an upper bound of the weights, so q of logits is computed for few tiles only. Whether q has weight is looked
    # at only if the draft row holds probabilities.
    GROUPS: tl.constexpr = TILE // _math.GROUP
    best = tl.full([], 0, tl.uint64)
    bad, drafted = tl.zeros([GROUPS], tl.int1), tl.zeros([GROUPS], tl.int1)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = _rows.load_tile(p_row, start, TILE)
        best = exchange(key, best)
        tops = _rows.group_tops(x)
        unclean = _laws.unclean_groups(x, tops, p_row.law)
        if q_row.law.inverse is None:
            y = _rows.load_tokens(q_row, _rows.tile_tokens(start, TILE), start, TILE)
            y_tops = _rows.group_tops(y)
            unclean = unclean | _laws.unclean_groups(y, y_tops, q_row.law)
            drafted = drafted | ((y_tops < _math.SMALLEST) == 0)
        bad = bad | unclean
        bounds = tl.where(unclean, _math.INFINITY, _laws.log_bound(tops, p_row.law, p_row.known))
        a, _ = _math.group_words(noise, start // _math.GROUP, STREAM, GROUPS)
        left = set_of(can_win(bounds, a, _math.key_score(best)))
        while left != 0:
            groups, left = next_groups(left, start // _math.GROUP, min(WEIGHED, GROUPS))
            tokens = _rows.group_tokens(groups)
            p = _laws.probabilities(_rows.load(p_row, tokens, start, start + TILE), tokens, p_row.law, p_row.known)
            raw = _rows.load_tokens(q_row, tokens, start, TILE)
            q = _laws.probabilities(raw, tokens, q_row.law, q_row.known)
            if shares is not None:
                q = shared(p, q, shares, by_bucket)
            weights = _math.residual_weight(p, h * q)
            best = best_of_groups(weights, groups, best, noise, _laws.Law(None, None), STREAM)
            if left != 0:
                left &= set_of(can_win(bounds, a, _math.key_score(best)))
    return best, _math.any_of(bad) > 0, _math.any_of(drafted) > 0


@triton.jit
def draw_part(
    p, q, figures, h, from_residual, readable, excluded, children, request, noise, split, splits, TILE: tl.constexpr,
    shares=None, by_bucket=0.0,
):  # fmt: skip
    """A program's part of the draw that ends a verification: from (p - h q)^+ or, if not ``from_residual``, from p."""
    # ``figures`` has what is known of the two rows. Without a draft row, tokens that were tried have no weight. Returns
    # whether it was the last part.
    first, last = _rows.share_of(tl.cdiv(p.columns, TILE), split, splits)
    last = tl.where(readable, last, first)
    key = _rows.key_at(request)
    if (q.at is not None) and from_residual:
        p_known, q_known = _laws.known_at(figures, p.law, readable), _laws.known_at(figures + 2, q.law, readable)
        best, bad, drafted = residual_tiles(
            _laws.Row(p.at, p.columns, p.law, None, p_known), _laws.Row(q.at, q.columns, q.law, q.map, q_known), first,
            last, key, h, noise, _math.STREAM_RESIDUAL, TILE, shares, by_bucket,
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
def drawn(p, q, from_residual, readable, request, noise, TILE: tl.constexpr):
    """(the token that all parts together drew, status, whether p has no weight), from p if the residual is empty.

    The last part calls this.
    """
    best = tl.atomic_xchg(_rows.key_at(request), tl.full([], 0, tl.uint64), sem="relaxed")
    row_status = tl.load(request + _rows.FLAGS, cache_modifier=".cg")
    flags = row_status & _math.NON_FINITE
    if q.at is not None:  # noqa: SIM102  q has no law then
        if q.law.inverse is None:
            flags |= tl.where(from_residual & (row_status & DRAFTED == 0), _math.NON_FINITE, 0)
    if (best == _math.NOBODY) & from_residual:
        best, bad = race_row(p, noise, _math.STREAM_RESIDUAL, TILE)
        flags |= tl.where(bad, _math.NON_FINITE, 0) | tl.where(best == _math.NOBODY, 0, _math.EMPTY_RESIDUAL)
    empty = (best == _math.NOBODY) & readable
    return _math.key_token(best).to(tl.int64), flags | tl.where(empty, _math.NON_FINITE, 0), empty


@triton.jit
def arrival_of(best, live, idle, place, vocab_start):
    """(token, score, whether a token arrived) of a key at a place; -1 and -inf for nobody."""
    # A request that is not live has its one token at place 0, with a score that wins against all parts of a row.
    arrived = (best != _math.NOBODY) & live
    unread = (live == 0) & (place == 0)
    token = tl.where(arrived, _math.key_token(best).to(tl.int64) + vocab_start, -1)
    token = tl.where(unread & (idle == 0), 0, token)
    score = tl.where(arrived, _math.key_score(best), tl.where(unread, _math.INFINITY, -_math.INFINITY))
    return token, score, arrived


@triton.jit
def store_best(keys, scores, tokens, k):
    """Stores the k best keys of a tile of scores, in order."""
    for n in range(0, k):
        best = _rows.best_of_tile(scores, tokens, tl.full([], 0, tl.uint64))
        tl.store(keys + n, best)
        scores = tl.where(tokens == _math.key_token(best), -_math.INFINITY, scores)


@triton.jit
def next_best(keys, count, before):
    """The best of ``count`` keys that programs of a row stored, of those below ``before``. No two keys are equal."""
    best = tl.full([], 0, tl.uint64)
    for base in range(0, count, MERGED):
        index = base + tl.arange(0, MERGED)
        found = tl.load(keys + index, mask=index < count, other=_math.NOBODY, cache_modifier=".cg")
        best = tl.maximum(best, tl.max(tl.where(found < before, found, _math.NOBODY), axis=0))
    return best


# Host side


# Registers of a thread, for rows of 16 bits and of float32, by what a kernel of 128 threads does: it races, draws, or
# learns a pair of rows or one row. With 16 bits eight, six, four and five programs then fit a multiprocessor.
LIMITS = {"race": (64, 96), "draw": (80, 96), "pair": (128, 168), "row": (96, 128)}


def limit(does, rows):
    return LIMITS[does][rows.dtype == torch.float32]


def most_registers(arguments):
    """Limits of a verification."""
    # With edits three programs of rejection fit, where ptxas would spill to fit in four; and one of the 512 threads
    # that walk, where it would spill for two. Four draw from what filters keep.
    stage, races, memory = arguments["STAGE"], arguments["plan"].METHOD.value == "race", arguments["memory"]
    rows, draft = arguments["target"].rows, arguments["draft"].rows
    if arguments["edits"].by_row is not None:
        return None if races else 128 if stage == "walk" else 168
    if stage == "emit":
        return limit("draw", rows) if memory.target_cuts is memory.draft_cuts is None else 128
    if stage == "scan":
        return limit("race" if races else "row" if draft is None else "pair", rows)
    return None

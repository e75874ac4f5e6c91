"""Races over tiles of rows: which token arrives first, and the draw that ends a verification."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._laws import (
    Law,
    clean,
    greedy_scores,
    known_at,
    log_bound,
    log_weights,
    nothing,
    probabilities,
    unclean_groups,
)
from specdec_kernels.triton_kernels._math import (
    EMPTY_RESIDUAL,
    GROUP,
    INFINITY,
    NO_TOKEN,
    NOBODY,
    NON_FINITE,
    SMALLEST,
    STREAM_RESIDUAL,
    any_of,
    bucket_of,
    first_arrival,
    first_winner,
    group_words,
    key_score,
    key_token,
    later_by,
    log,
    residual_weight,
    second_words,
    slack,
    words,
)
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    best_of_tile,
    group_tops,
    is_last,
    key_at,
    load_tile,
    load_tokens,
    share_of,
    tile_tokens,
)
from specdec_kernels.triton_kernels._trees import NODES, children_at

# How many tokens of a tile are scored at once: in races over one row, and over a pair. Scoring is rare, so it must not
# decide how many registers a kernel takes.
MOST_SCORED, MOST_WEIGHED = tl.constexpr(512), tl.constexpr(256)
MERGED = tl.constexpr(1024)  # keys looked at together
DRAFTED = tl.constexpr(1 << 16)  # beside the public bits: some token of the draft row has weight


@triton.jit
def can_win(bound, a, to_beat):
    """Whether a group with first word ``a`` and log weights up to ``bound`` can win: it arrives at a * 2**-38 or later.

    The errors of the approximate exponential and of the rounded ``a`` are far smaller than the slack. For a group
    without weight the exponent is NaN, and the answer is no.
    """
    return a.to(tl.float32) <= tl.exp(bound - to_beat + slack(bound, to_beat)) * 2.0**38 + 1.0


@triton.jit
def exchange(key, best):
    """The best key of all programs of a row so far, after telling them ours.

    Memory that other programs may write is read by atomics only. Each warp makes a scalar load on its own: two warps
    could see different values and take different branches.
    """
    return tl.maximum(best, tl.atomic_max(key, best, sem="relaxed"))


@triton.jit
def tile_scores(x, a, b, start, noise, law, STREAM: tl.constexpr):
    """The score of every token of a tile of clean values."""
    GROUPS: tl.constexpr = x.shape[0]
    first = first_arrival(a, b)[:, None]
    column = tl.arange(0, GROUP)
    four = (
        noise.first // 4 + start // 4 + tl.arange(0, GROUPS)[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
    )
    w0, w1, w2, w3 = words(noise, four.to(tl.uint32), STREAM + 1)
    second = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [GROUPS, GROUP])
    arrival = tl.where(column[None, :] == first_winner(b)[:, None], first, first + later_by(second))
    return log_weights(x, law) - log(arrival)


class Listed(NamedTuple):
    """The children of a node by their links: from the first on, no more than the tree has nodes."""

    tokens: tl.tensor
    tokens_node: tl.tensor
    next_sibling: tl.tensor
    next_sibling_node: tl.tensor
    first: tl.tensor
    nodes: tl.tensor


@triton.jit
def without_linked(x, start, nothing, children, TILE: tl.constexpr):
    """A tile with ``nothing`` at the tokens of children by links."""
    tokens = tile_tokens(start, TILE)
    child, left = children.first, children.nodes + 0
    while (child > 0) & (child < children.nodes) & (left > 0):
        token = tl.load(children.tokens + child * children.tokens_node).to(tl.int64)
        x = tl.where(tokens == token, nothing, x)
        child = tl.load(children.next_sibling + child * children.next_sibling_node).to(tl.int64)
        left -= 1
    return x


@triton.jit
def without_children(x, start, nothing, children, TILE: tl.constexpr):
    """A tile with ``nothing`` at the tokens of ``children``: those of a node of a tree, before index ``end``."""
    tree, node, end = children
    tokens = tile_tokens(start, TILE)
    for base in range(node + 1, end, NODES):
        index, token, mine = children_at(tree, base, node, end)
        mine = mine & (token >= start) & (token < start + TILE)
        while any_of(mine) > 0:
            first = tl.min(tl.where(mine, index, end), axis=0)
            mine = mine & (index != first)
            x = tl.where(tokens == tl.sum(tl.where(index == first, token, 0), axis=0), nothing, x)
    return x


@triton.jit
def without_listed(x, start, nothing, listed, TILE: tl.constexpr):
    """A tile with ``nothing`` at listed tokens."""
    tokens, count, first = listed
    for i in range(0, count):
        token = tl.load(tokens + i)
        x = tl.where((tile_tokens(start, TILE) == token - first) & (token >= 0), nothing, x)
    return x


@triton.jit
def race_part(x, start, best, noise, law, STREAM: tl.constexpr):
    """The best key after a part of a tile of clean values. All its tokens are scored if one of its groups can win."""
    a, b = group_words(noise, start // GROUP, STREAM, x.shape[0])
    tops, to_beat = tl.max(x, axis=1), key_score(best)
    wins = can_win(log_weights(tops, law), a, to_beat)
    if law.greedy is not None:
        wins = tl.where(law.greedy, tops >= to_beat, wins)
    if any_of(wins) > 0:
        tokens = tile_tokens(start, x.shape[0] * GROUP)
        if law.greedy is None:
            best = best_of_tile(tile_scores(x, a, b, start, noise, law, STREAM), tokens, best)
        else:
            if law.greedy:
                best = best_of_tile(greedy_scores(x, law), tokens, best)
            else:
                best = best_of_tile(tile_scores(x, a, b, start, noise, law, STREAM), tokens, best)
    return best


@triton.jit
def race_tiles(
    row, law, first, last, key, noise, excluded, children, STREAM: tl.constexpr, TILE: tl.constexpr, listed=None
):  # fmt: skip
    """(best key, bad) of the tiles [first, last) of a row; token ``excluded`` and those of ``children`` have no weight.

    Nor have ``listed`` tokens: where they are, how many, and the token of column 0.

    ``key`` points to the best key of all programs of the row. For each group, most tiles cost a maximum, half a Philox
    call and one comparison. A tile that may hold the winner is read again, from cache, in parts. ``excluded`` and
    ``children`` are taken out only there: before, a bound may be too high, which does no harm.
    """
    PART: tl.constexpr = min(MOST_SCORED, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, law, start, TILE)
        best = exchange(key, best)
        tops = group_tops(x)
        unclean = unclean_groups(x, tops, law)
        tops = clean(tops, law)
        a, _ = group_words(noise, start // GROUP, STREAM, x.shape[0])
        wins = can_win(log_weights(tops, law), a, key_score(best))
        if law.greedy is not None:
            wins = tl.where(law.greedy, tops >= key_score(best), wins)
        found = tl.max(tl.where(unclean, 2, wins.to(tl.int32)), axis=0)
        if found > 0:
            for at in range(start, tl.minimum(start + TILE, row.columns), PART):
                part = tl.cast(at, tl.int32)
                y = load_tile(row, law, part, PART)
                if excluded is not None:
                    y = tl.where(tile_tokens(part, PART) == excluded, nothing(law), y)
                if listed is not None:
                    y = without_listed(y, part, nothing(law), listed, PART)
                if children is not None:
                    if len(children) == 3:
                        y = without_children(y, part, nothing(law), children, PART)
                    else:
                        y = without_linked(y, part, nothing(law), children, PART)
                best = race_part(clean(y, law), part, best, noise, law, STREAM)
        bad = bad | (found > 1)
    return best, bad


@triton.jit
def race_row(row, law, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of a row that one program races alone."""
    PART: tl.constexpr = min(MOST_SCORED, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = row.columns < 0
    for at in range(0, row.columns, PART):
        start = tl.cast(at, tl.int32)
        x = load_tile(row, law, start, PART)
        bad = bad | (any_of(unclean_groups(x, group_tops(x), law)) > 0)
        best = race_part(clean(x, law), start, best, noise, law, STREAM)
    return best, bad


@triton.jit
def mapped_scores(x, tokens, noise, law, STREAM: tl.constexpr):
    """The score of each value of a tile of clean values; ``tokens`` are the tokens that have them."""
    w0, w1, w2, w3 = words(noise, (tokens // (2 * GROUP)).to(tl.uint32), STREAM)
    odd = tokens // GROUP % 2 == 1
    first, winner = first_arrival(tl.where(odd, w1, w0), tl.where(odd, w3, w2)), first_winner(tl.where(odd, w3, w2))
    later = first + later_by(second_words(noise, tokens, STREAM))
    return log_weights(x, law) - log(tl.where(tokens % GROUP == winner, first, later))


@triton.jit
def map_tokens(draft_map, columns, start, TILE: tl.constexpr):
    """The target's tokens of a tile of a draft row's columns."""
    column = tile_tokens(start, TILE)
    return tl.load(draft_map + column, mask=column < columns, other=NO_TOKEN)


@triton.jit
def race_mapped(row, law, draft_map, first, last, noise, STREAM: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of the tiles [first, last) of a draft row with a vocabulary of its own. Every token is scored."""
    PART: tl.constexpr = min(MOST_SCORED, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for at in range(first * TILE, tl.minimum(last * TILE, row.columns), PART):
        start = tl.cast(at, tl.int32)
        x = load_tile(row, law, start, PART)
        bad = bad | (any_of(unclean_groups(x, group_tops(x), law)) > 0)
        x = clean(x, law)
        tokens = map_tokens(draft_map, row.columns, start, PART)
        scores = greedy_scores(x, law)
        if law.greedy == 0:
            scores = mapped_scores(x, tokens, noise, law, STREAM)
        best = best_of_tile(scores, tokens, best)
    return best, bad


@triton.jit
def shared(p, q, shares, by_bucket):
    """q times the share of its bucket (paths.h), where it counts ``by_bucket``; else q."""
    if by_bucket > 0.0:
        q = tl.load(shares + bucket_of(p, q), cache_modifier=".cg") * q
    return q


@triton.jit
def residual_tiles(
    target, target_law, draft, draft_law, draft_map, p_known, q_known, first, last, key, h, noise,
    STREAM: tl.constexpr, TILE: tl.constexpr, shares=None, by_bucket=0.0,
):  # fmt: skip
    """(best key, bad, whether q has weight) of the race over (p - h q)^+ in the tiles [first, last).

    p is an upper bound of the weights, so q of logits is computed for few tiles only. Whether q has weight is looked at
    only if the draft row holds probabilities.
    """
    PART: tl.constexpr = min(MOST_WEIGHED, TILE)
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    drafted = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(target, target_law, start, TILE)
        best = exchange(key, best)
        tops = group_tops(x)
        unclean = unclean_groups(x, tops, target_law)
        if draft_law.inverse is None:
            y = load_tokens(draft, draft_law, draft_map, start, TILE)
            y_tops = group_tops(y)
            unclean = unclean | unclean_groups(y, y_tops, draft_law)
            drafted = drafted | (any_of((y_tops < SMALLEST) == 0) > 0)
        a, _ = group_words(noise, start // GROUP, STREAM, x.shape[0])
        wins = can_win(log_bound(tops, target_law, p_known), a, key_score(best))
        found = tl.max(tl.where(unclean, 2, wins.to(tl.int32)), axis=0)
        if found > 0:
            for at in range(start, tl.minimum(start + TILE, target.columns), PART):
                part = tl.cast(at, tl.int32)
                tokens = tile_tokens(part, PART)
                p = probabilities(load_tile(target, target_law, part, PART), tokens, target_law, p_known)
                raw = load_tokens(draft, draft_law, draft_map, part, PART)
                q = probabilities(raw, tokens, draft_law, q_known)
                if shares is not None:
                    q = shared(p, q, shares, by_bucket)
                best = race_part(residual_weight(p, h * q), part, best, noise, Law(None, None), STREAM)
        bad = bad | (found > 1)
    return best, bad, drafted


@triton.jit
def draw_part(
    target, target_law, draft, draft_law, draft_map, h, from_residual, readable, excluded, children, own, request,
    noise, split, splits, TILE: tl.constexpr, shares=None, by_bucket=0.0,
):  # fmt: skip
    """A program's part of the draw that ends a verification: from (p - h q)^+ or, if not ``from_residual``, from p.

    What is known of the two rows is at ``own``. Without a draft row, tokens that were tried have no weight. Returns
    whether it was the last part.
    """
    first, last = share_of(tl.cdiv(target.columns, TILE), split, splits)
    last = tl.where(readable, last, first)
    key = key_at(request)
    if (draft is not None) and from_residual:
        best, bad, drafted = residual_tiles(
            target, target_law, draft, draft_law, draft_map, known_at(own, target_law, readable),
            known_at(own + 2, draft_law, readable), first, last, key, h, noise, STREAM_RESIDUAL, TILE, shares,
            by_bucket,
        )  # fmt: skip
        if drafted:
            tl.atomic_or(request + FLAGS, DRAFTED, sem="relaxed")
    else:
        best, bad = race_tiles(target, target_law, first, last, key, noise, excluded, children, STREAM_RESIDUAL, TILE)
    tl.atomic_max(key, best, sem="relaxed")
    if bad:
        tl.atomic_or(request + FLAGS, NON_FINITE, sem="relaxed")
    return is_last(request + DONE, splits)


@triton.jit
def drawn(target, target_law, draft, draft_law, from_residual, readable, request, noise, TILE: tl.constexpr):
    """(the token that all parts together drew, status), from p if the residual is empty. The last part calls this."""
    best = tl.atomic_xchg(key_at(request), tl.full([], 0, tl.uint64), sem="relaxed")
    row_status = tl.load(request + FLAGS, cache_modifier=".cg")
    flags = row_status & NON_FINITE
    if draft is not None and draft_law.inverse is None:
        flags |= tl.where(from_residual & (row_status & DRAFTED == 0), NON_FINITE, 0)
    if (best == NOBODY) & from_residual:
        flags |= EMPTY_RESIDUAL
        best, bad = race_row(target, target_law, noise, STREAM_RESIDUAL, TILE)
        flags |= tl.where(bad, NON_FINITE, 0)
    flags |= tl.where((best == NOBODY) & readable, NON_FINITE, 0)
    return key_token(best).to(tl.int64), flags


@triton.jit
def arrival_of(best, live, idle, place, vocab_start):
    """(token, score, whether a token arrived) of a key at a place; -1 and -inf for nobody.

    A request that is not live has its one token at place 0, with a score that wins against all parts of a row.
    """
    arrived = (best != NOBODY) & live
    unread = (live == 0) & (place == 0)
    token = tl.where(arrived, key_token(best).to(tl.int64) + vocab_start, -1)
    token = tl.where(unread & (idle == 0), 0, token)
    score = tl.where(arrived, key_score(best), tl.where(unread, INFINITY, -INFINITY))
    return token, score, arrived


@triton.jit
def store_best(keys, scores, tokens, k):
    """Stores the k best keys of a tile of scores, in order."""
    for n in range(0, k):
        best = best_of_tile(scores, tokens, tl.full([], 0, tl.uint64))
        tl.store(keys + n, best)
        scores = tl.where(tokens == key_token(best), -INFINITY, scores)


@triton.jit
def next_best(keys, count, before):
    """The best of ``count`` keys that programs of a row stored, of those below ``before``. No two keys are equal."""
    best = tl.full([], 0, tl.uint64)
    for base in range(0, count, MERGED):
        index = base + tl.arange(0, MERGED)
        found = tl.load(keys + index, mask=index < count, other=NOBODY, cache_modifier=".cg")
        best = tl.maximum(best, tl.max(tl.where(found < before, found, NOBODY), axis=0))
    return best

"""Rows in tiles of [groups, 64] tokens: loading them, their log-sum-exp, the race over them."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._math import (
    GROUP,
    INFINITY,
    NO_TOKEN,
    SMALLEST,
    Noise,
    any_of,
    clean_probability,
    exp_or_zero,
    first_arrival,
    first_winner,
    group_words,
    key_of,
    key_score,
    later_by,
    log,
    log_probability,
    log_weight,
    probability,
    residual_weight,
    scaled,
    second_words,
    slack,
    words,
)
from specdec_kernels.triton_kernels._trees import NODES, children_at

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

# What a tile holds: logits or probabilities as they came, or weights already clean.
LOGITS = tl.constexpr(0)
PROBS = tl.constexpr(1)
WEIGHTS = tl.constexpr(2)


@triton.jit
def number(pointer, value, offset):
    """A per-request number: from memory, or the same for all."""
    if pointer is None:
        return value
    else:
        return tl.load(pointer + offset)


@triton.jit
def noise_at(seed, seed_value, seed_at, position, position_value, position_at, nonce, nonce_value, nonce_at):
    """The noise of a row, from numbers that may be int32 or int64 in memory."""
    return Noise(
        number(seed, seed_value, seed_at).to(tl.int64), number(position, position_value, position_at).to(tl.uint32),
        number(nonce, nonce_value, nonce_at).to(tl.uint32),
    )  # fmt: skip


@triton.jit
def key_at(record):
    """The 64-bit key in the first two words of an int32 record."""
    return record.to(tl.pointer_type(tl.uint64), bitcast=True)


@triton.jit
def tile_tokens(start, TILE: tl.constexpr):
    """Token ids [TILE / 64, 64] of the tile that begins at ``start``."""
    group = tl.arange(0, TILE // GROUP)
    return start + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def row_at(rows, offset, ALIGNED: tl.constexpr):
    """Pointer to the row at an offset in elements; rounding to 16 tells the compiler that the offset already is."""
    if ALIGNED:
        offset = offset // 16 * 16
    return rows + offset


@triton.jit
def load_tile(row, start, vocab, nothing, TILE: tl.constexpr):
    """A tile of a row; ``nothing`` beyond the vocabulary."""
    tokens = tile_tokens(start, TILE)
    return tl.load(row + tokens, mask=tokens < vocab, other=nothing).to(tl.float32)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def group_tops(x):
    """The largest of each group [groups]; a NaN or +inf shows as NaN or +inf."""
    if INTERPRETED:  # which runs a reduction that it does not know element by element
        return tl.max(tl.where(x == x, x, INFINITY), axis=1)
    else:
        return tl.reduce(x, 1, _max_or_nan)


@triton.jit
def clean(x, inverse, KIND: tl.constexpr):
    """Scaled logits, or weights."""
    if KIND == LOGITS:
        return scaled(x, inverse)
    elif KIND == PROBS:
        return clean_probability(x)
    else:
        return x


@triton.jit
def unclean_groups(x, tops, KIND: tl.constexpr):
    """Which groups hold a value that no law can have."""
    unclean = (tops < INFINITY) == 0
    if KIND == PROBS:
        unclean = unclean | (tl.min(x, axis=1) < 0.0)
    return unclean


@triton.jit
def can_win(bound, a, to_beat):
    """Whether a group with first word ``a`` and log weights up to ``bound`` can win: it arrives at a * 2**-38 or later.

    The approximate exponential and the rounded ``a`` are far inside the slack. Without any weight the exponent is NaN.
    """
    return a.to(tl.float32) <= tl.exp(bound - to_beat + slack(bound, to_beat)) * 2.0**38 + 1.0


@triton.jit
def log_weights(x, KIND: tl.constexpr):
    """Of what ``clean`` returned."""
    return x if KIND == LOGITS else log_weight(x)


@triton.jit
def exchange(key, best):
    """The best key of all programs of a row so far, after telling them ours.

    Memory that other programs write meanwhile is read by atomics alone. A scalar load is done by each warp on its own:
    they could see different values, and part ways at the next branch.
    """
    return tl.maximum(best, tl.atomic_max(key, best, sem="relaxed"))


@triton.jit
def best_key(best, score, token):
    return tl.maximum(best, tl.max(key_of(score, token), axis=0))


@triton.jit
def tile_scores(x, a, b, start, noise, STREAM: tl.constexpr, KIND: tl.constexpr):
    """The score of every token of a tile of clean values."""
    GROUPS: tl.constexpr = x.shape[0]
    first = first_arrival(a, b)[:, None]
    column = tl.arange(0, GROUP)
    four = start // 4 + tl.arange(0, GROUPS)[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
    w0, w1, w2, w3 = words(noise, four.to(tl.uint32), STREAM + 1)
    second = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [GROUPS, GROUP])
    arrival = tl.where(column[None, :] == first_winner(b)[:, None], first, first + later_by(second))
    return log_weights(x, KIND) - log(arrival)


@triton.jit
def open_tile(x, a, b, start, best, key, noise, STREAM: tl.constexpr, KIND: tl.constexpr):
    """The best key after a tile of clean values, most of them unseen.

    Each group offers its first arrival, then its largest weight. What other programs of the row found by then is asked
    for, and groups whose second largest weight could still win are opened one by one.
    """
    GROUPS: tl.constexpr = x.shape[0]
    group = tl.arange(0, GROUPS)
    column = tl.arange(0, GROUP)
    first, winner = first_arrival(a, b), first_winner(b)
    log_first = log(first)
    chosen = tl.sum(tl.where(column[None, :] == winner[:, None], x, 0.0), axis=1)
    best = best_key(best, log_weights(chosen, KIND) - log_first, start + group * GROUP + winner)

    largest = tl.max(x, axis=1)
    at = tl.min(tl.where(x == largest[:, None], column[None, :], GROUP), axis=1)
    token = start + group * GROUP + at
    later = first + later_by(second_words(noise, token, STREAM))
    best = best_key(best, log_weights(largest, KIND) - log(tl.where(at == winner, first, later)), token)

    to_beat = key_score(exchange(key, best))
    NOTHING: tl.constexpr = -INFINITY if KIND == LOGITS else 0.0
    rest = tl.max(tl.where(column[None, :] == at[:, None], NOTHING, x), axis=1)
    ceiling = log_weights(rest, KIND) - log_first
    top = tl.max(ceiling, axis=0)
    while top + slack(top, to_beat) >= to_beat:  # never for -inf: its sum is a NaN
        mine = group == tl.min(tl.where(ceiling == top, group, GROUPS), axis=0)
        row = tl.sum(tl.where(mine[:, None], x, 0.0), axis=0)
        column_token = start + tl.sum(tl.where(mine, group, 0), axis=0) * GROUP + column
        when = tl.sum(tl.where(mine, first, 0.0), axis=0)
        column_later = when + later_by(second_words(noise, column_token, STREAM))
        arrival = tl.where(column == tl.sum(tl.where(mine, winner, 0), axis=0), when, column_later)
        best = best_key(best, log_weights(row, KIND) - log(arrival), column_token)
        ceiling = tl.where(mine, -INFINITY, ceiling)
        top = tl.max(ceiling, axis=0)
        to_beat = tl.maximum(to_beat, key_score(best))
    return best


@triton.jit
def argmax_tile(x, start, best, KIND: tl.constexpr):
    """The best key after a tile of clean values, at temperature 0: scores are the values themselves."""
    if KIND != LOGITS:
        x = tl.where(x >= SMALLEST, x, -INFINITY)
    top = tl.max(tl.max(x, axis=1), axis=0)
    tokens = tile_tokens(start, x.shape[0] * GROUP)
    token = tl.min(tl.min(tl.where(x == top, tokens, NO_TOKEN), axis=1), axis=0)
    return tl.maximum(best, key_of(top, token))


@triton.jit
def without_children(x, start, nothing, children, TILE: tl.constexpr):
    """A tile with ``nothing`` in place of the tokens of ``children``: those of a node of a tree before an index."""
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
def race_tile(x, a, b, start, best, key, greedy, dense, noise, STREAM: tl.constexpr, KIND: tl.constexpr):
    """The best key after a tile of clean values that may hold the winner. All ways give the same winner."""
    if greedy:
        best = argmax_tile(x, start, best, KIND)
    elif dense != 0:  # few programs: latency counts, not work
        best = argmax_tile(tile_scores(x, a, b, start, noise, STREAM, KIND), start, best, LOGITS)
    else:
        best = open_tile(x, a, b, start, best, key, noise, STREAM, KIND)
    return best


@triton.jit
def race_tiles(
    row, vocab, first, last, key, inverse, greedy, dense, noise, excluded, children,
    STREAM: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(best key, bad) of the tiles [first, last) of a row; token ``excluded`` and those of ``children`` have no weight.

    ``key`` points to the best key of all programs of the row. Most tiles cost a maximum of each group, half a Philox
    call a group and one compare.
    """
    NOTHING: tl.constexpr = -INFINITY if KIND == LOGITS else 0.0
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, start, vocab, NOTHING, TILE)
        to_beat = key_score(exchange(key, best))
        if excluded is not None:
            x = tl.where(tile_tokens(start, TILE) == excluded, NOTHING, x)
        if children is not None:
            x = without_children(x, start, NOTHING, children, TILE)
        tops = group_tops(x)
        unclean = unclean_groups(x, tops, KIND)
        tops = clean(tops, inverse, KIND)
        a, b = group_words(noise, start // GROUP, STREAM, x.shape[0])
        wins = tl.where(greedy, tops >= to_beat, can_win(log_weights(tops, KIND), a, to_beat))
        found = tl.max(tl.where(unclean, 2, wins.to(tl.int32)), axis=0)
        if found > 0:
            best = race_tile(clean(x, inverse, KIND), a, b, start, best, key, greedy, dense, noise, STREAM, KIND)
        bad = bad | (found > 1)
    return best, bad


@triton.jit
def race_row(row, vocab, inverse, noise, STREAM: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr):
    """(best key, bad) of a row that one program races alone, every token scored: short code for what is rare."""
    NOTHING: tl.constexpr = -INFINITY if KIND == LOGITS else 0.0
    best = tl.full([], 0, tl.uint64)
    bad = vocab < 0
    for tile in range(0, tl.cdiv(vocab, TILE)):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, start, vocab, NOTHING, TILE)
        bad = bad | (any_of(unclean_groups(x, group_tops(x), KIND)) > 0)
        a, b = group_words(noise, start // GROUP, STREAM, x.shape[0])
        scores = tile_scores(clean(x, inverse, KIND), a, b, start, noise, STREAM, KIND)
        best = argmax_tile(scores, start, best, LOGITS)
    return best, bad


@triton.jit
def residual_tiles(
    target, draft, target_top, target_log_sum, draft_top, draft_log_sum, vocab, draft_vocab, first, last, key,
    inverse, h, dense, noise,
    STREAM: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(best key, bad, whether q has weight) of the race over (p - h q)^+ in the tiles [first, last).

    p bounds it, so few tiles of logits pay for q. Whether q has weight is only looked at in probabilities.
    """
    NOTHING: tl.constexpr = -INFINITY if KIND == LOGITS else 0.0
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    drafted = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(target, start, vocab, NOTHING, TILE)
        to_beat = key_score(exchange(key, best))
        tops = group_tops(x)
        unclean = unclean_groups(x, tops, KIND)
        if KIND == LOGITS:
            bound = log_probability(scaled(tops, inverse), target_top, target_log_sum) + 1e-5
        else:
            bound = log_weight(clean_probability(tops))
            y = load_tile(draft, start, draft_vocab, NOTHING, TILE)
            y_tops = group_tops(y)
            unclean = unclean | unclean_groups(y, y_tops, KIND)
            drafted = drafted | (any_of((y_tops < SMALLEST) == 0) > 0)
        a, b = group_words(noise, start // GROUP, STREAM, x.shape[0])
        wins = can_win(bound, a, to_beat)
        found = tl.max(tl.where(unclean, 2, wins.to(tl.int32)), axis=0)
        if found > 0:
            if KIND == LOGITS:
                raw = load_tile(draft, start, draft_vocab, NOTHING, TILE)
                p = probability(scaled(x, inverse), target_top, target_log_sum)
                q = probability(scaled(raw, inverse), draft_top, draft_log_sum)
            else:
                p = clean_probability(x)
                q = clean_probability(y)
            best = race_tile(
                residual_weight(p, h * q), a, b, start, best, key, False, dense, noise, STREAM, WEIGHTS
            )  # fmt: skip
        bad = bad | (found > 1)
    return best, bad, drafted


@triton.jit
def laws_at(
    token, there, target, draft, p_top, p_log_sum, q_top, q_log_sum, inverse, draft_vocab,
    SPACE: tl.constexpr, HAS_DRAFT: tl.constexpr,
):  # fmt: skip
    """(p, q, whether one of them is no probability) of a token of a pair of rows; q is 1 without draft laws."""
    x = tl.load(target + token, mask=there, other=0.0).to(tl.float32)
    p = clean_probability(x) if SPACE == "probs" else probability(scaled(x, inverse), p_top, p_log_sum)
    bad = there & (((x >= 0.0) & (x < INFINITY)) == 0)
    q = 1.0
    if HAS_DRAFT:
        known = there & (token < draft_vocab)
        y = tl.load(draft + token, mask=known, other=0.0).to(tl.float32)
        q = clean_probability(y) if SPACE == "probs" else probability(scaled(y, inverse), q_top, q_log_sum)
        q = tl.where(known, q, 0.0)
        bad = bad | (known & (((y >= 0.0) & (y < INFINITY)) == 0))
    return p, q, bad


@triton.jit
def lse_tiles(
    row, vocab, first, last, inverse, partials, TILE: tl.constexpr
):  # fmt: skip
    """Stores (largest, sum of exp) of each tile [first, last) of a row of logits; returns whether one was bad.

    Partial sums are kept by tile, not by program, so that no result depends on how a row was split. The approximate
    exponential is good to a few ulp where terms are large.
    """
    bad = first < 0
    for tile in range(first, last):
        raw = load_tile(row, tl.cast(tile, tl.int32) * TILE, vocab, -INFINITY, TILE)
        tops = group_tops(raw)
        tile_bad = any_of(unclean_groups(raw, tops, LOGITS)) > 0
        x = scaled(raw, inverse)
        top = tl.max(scaled(tops, inverse), axis=0)
        if tile_bad:
            top = tl.max(tl.max(x, axis=1), axis=0)
        terms = tl.exp(x - tl.where(top > -INFINITY, top, 0.0))
        tl.store(partials + 2 * tile, top)
        tl.store(partials + 2 * tile + 1, tl.sum(tl.sum(terms, axis=1), axis=0))
        bad = bad | tile_bad
    return bad


@triton.jit
def finish_lse(partials, tiles, TILES: tl.constexpr):
    """(largest, log of the sum, status) from the partial sums of all tiles."""
    tile = tl.arange(0, TILES)
    tops = tl.load(partials + 2 * tile, mask=tile < tiles, other=-INFINITY, cache_modifier=".cg")
    sums = tl.load(partials + 2 * tile + 1, mask=tile < tiles, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * exp_or_zero(tops - top), axis=0)
    some = top > -INFINITY
    return tl.where(some, top, 0.0), tl.where(some, log(total), INFINITY), top == -INFINITY


@triton.jit
def is_last(ticket, programs):
    """Whether this program is the last of ``programs`` to come here; what the others wrote before is then visible."""
    tl.debug_barrier()  # all threads of this program have written
    return tl.atomic_add(ticket, 1, sem="acq_rel") == programs - 1

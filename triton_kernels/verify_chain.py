"""Verification of chains: one launch for the race, two for rejection, three for block.

The first, stage ``scan``, races rows where the winner alone decides (method race, temperature 0), else it stores their
``RowStats``. A program takes its rows in order. The last program of a row stores the end of the walk if it is there, so
that later rows are not read. The second, ``emit``, accepts a block of drafts at a time and samples a token from one
row. It is the only launch where no ``RowStats`` are needed. In block a launch between them, ``walk``, decides how many
drafts are accepted, for which all rows are scanned.

Counters are int32, zero before and after a call. Row r has 4 words from 4 r on: the best key (two words), programs
done, status. Request b has 8 words from 4 rows + 8 b on: the best key, programs done, status, the end of the walk
(block: how many drafts are accepted), T of walk.h there as the bits of a float, and whether a draft was tried there.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _cuts,
    _edits,
    _filtered_races,
    _filters,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
    _traversal,
    _trees,
    _verdict,
)

CHUNK = tl.constexpr(32)  # drafts of a step
# Words of a request's record: the end of the walk, and in block T of walk.h there and whether a draft was tried.
END, SUBTRACTED, TRIED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


class Drafts(NamedTuple):
    """The drafts of a call."""

    tokens: _arguments.Steps  # [B, most], or packed [D]
    packing: _arguments.Packing
    most: int
    prob: _arguments.Number  # h [B, most]: the factor of q in p - h q
    bonus: _arguments.Steps  # [B]: tokens after all drafts, if they are given
    map: tl.tensor  # [V]: the token of each column of a draft row, or None


class Memory(NamedTuple):
    """Memory of a call with ``count`` rows."""

    counters: tl.tensor  # int32 [4 count + 8 B]
    count: int
    pair_stats: tl.tensor  # float32 [count, 4]
    items: tl.tensor  # float32 [count, 2 mass_items_of(V)]
    node_state: tl.tensor  # float32 [count, NODE_WORDS]: of the walk of block
    target_cuts: tl.tensor  # float32 [count, CUT], or None
    draft_cuts: tl.tensor  # float32 [count, CUT], or None


class Plan(NamedTuple):
    """What is compiled in."""

    METHOD: tl.constexpr
    TARGET: tl.constexpr  # space of the target's rows
    DRAFT: tl.constexpr
    SEPARATE_LAW: tl.constexpr  # the draft has its own temperature
    NEEDS_STATS: tl.constexpr  # ``scan`` stores ``RowStats``
    SCANS: tl.constexpr  # there is a launch ``scan``
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


class Request(NamedTuple):
    """One request."""

    b: tl.tensor
    entry: tl.tensor
    live: tl.tensor  # whether it has an entry
    idle: tl.tensor
    readable: tl.tensor  # whether it has an entry, and bounds that make sense
    num_drafts: tl.tensor
    first_draft: tl.tensor  # index among packed drafts
    first_row: tl.tensor
    first_token: tl.tensor
    flags: tl.tensor  # status bits
    noise: _math.Noise


class Chain(NamedTuple):
    """The drafts of a request. The last three fields are None if no bonus tokens are given."""

    num_drafts: tl.tensor
    tokens: tl.tensor  # [num_drafts], ``tokens_step`` elements apart
    tokens_step: tl.tensor
    prob: _arguments.Number
    prob_at: tl.tensor  # offset of the first h in ``prob``
    bonus_index: tl.tensor  # the index that has ``bonus_token`` and no row
    bonus_token: tl.tensor
    bad_bonus: tl.tensor  # status of that token


@triton.jit
def load_request(drafts, index, noise, inputs, b):
    entry, live, idle = _arguments.load_entry(index, b)
    packed = _arguments.locate_request(drafts.packing, b, tl.cast(drafts.most, tl.int32))
    readable, num_drafts, flags = packed.readable, packed.drafts, packed.flags
    if index.data is not None:
        readable = readable & live
        num_drafts = tl.where(live, num_drafts, tl.where(idle, -1, 0))
        flags |= tl.where(live, 0, _math.PARAMETER)
    request_noise = _arguments.load_noise(noise, entry, 0, live)
    row = packed.first_row if drafts.packing.cu_drafts is not None else 0
    request_noise = _arguments.noise_at_input(request_noise, inputs, b, row, readable & live)
    return Request(
        b, entry, live, idle, readable, num_drafts, packed.first_draft, packed.first_row, packed.first_token, flags,
        request_noise,
    )  # fmt: skip


@triton.jit
def from_end(draft_index):
    """Counts indices down, so that the lowest is a maximum and 0 is behind all. The function inverts itself."""
    return -draft_index + _math.NO_TOKEN


@triton.jit
def token_at(chain, draft_index):
    """The draft token at an index or a block of them; -1 behind the last."""
    at = chain.tokens + draft_index * chain.tokens_step
    return tl.load(at, mask=draft_index < chain.num_drafts, other=-1).to(tl.int64)


@triton.jit
def tokens_of(drafts, request):
    """Pointer to the draft tokens of a request."""
    if drafts.packing.cu_drafts is None:
        return _arguments.at(drafts.tokens, request.b, 0)
    else:
        return drafts.tokens.data + request.first_token * drafts.tokens.inner


@triton.jit
def load_bonus(drafts, request, vocab):
    """(the index behind all drafts, which has a token and no row; that token, 0 if it is out of range; its status)."""
    # A request whose drafts are more than are verified has a row behind them, so no index has the token.
    whole = request.readable
    if drafts.packing.cu_drafts is not None:
        cu_drafts = drafts.packing.cu_drafts + request.b
        whole = whole & (tl.load(cu_drafts + 1) - tl.load(cu_drafts) == request.num_drafts)
    token = tl.load(_arguments.at(drafts.bonus, request.b, 0)).to(tl.int64)
    good = (token >= 0) & (token < vocab)
    at = tl.where(whole, request.num_drafts, _math.NO_TOKEN)
    return at, tl.where(good, token, 0), tl.where(good, 0, _math.PARAMETER)


@triton.jit
def count_rows(chain):
    """How many rows of the target a request has."""
    if chain.bonus_index is None:
        return chain.num_drafts + 1
    else:
        return chain.num_drafts + tl.where(chain.bonus_index == chain.num_drafts, 0, 1)


@triton.jit
def load_draft_prob(chain, draft_index):
    """(h at an index or a block of them, status)."""
    if chain.prob.data is None:
        return _math.draft_prob_of(tl.where(draft_index >= 0, chain.prob.value, 1.0))
    else:
        at = chain.prob.data + chain.prob_at + draft_index * chain.prob.inner
        return _math.draft_prob_of(tl.load(at, mask=draft_index < chain.num_drafts, other=1.0))


@triton.jit
def accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise):
    """(whether the draft is accepted, whether a probability is bad) at an index or a block of them."""
    x = _rows.value_at(p_row, token, in_range)
    p = tl.where(in_range, _laws.probabilities(x, token, p_row.law, p_row.stats), 0.0)
    bad = in_range & _laws.unlike(x, p_row.law)
    epsilon = _laws.epsilon_at(epsilon, x, in_range, p_row.law)
    q = 1.0
    if q_row.at is not None:
        q, bad_draft = _rows.probability_at(q_row, token, in_range)
        bad |= bad_draft
    uniform = _math.accept_uniform(_math.later(noise, draft_index), draft_index)
    return in_range & _math.accepts(uniform, p, h * q, epsilon), bad


@triton.jit
def race_row(row, noise, draft_index, token, alone, record, request, split, splits, TILE: tl.constexpr):
    """Races one program's tiles of a row; the last program stores the end of the walk if it is there."""
    # If each program has one row (``alone``) no program reads that end, so none takes a ticket.
    _filtered_races.race_slice(row, record, noise, split, splits, TILE)
    if alone == 0:  # noqa: SIM102  `and` would always take a ticket
        if _rows.is_last(record + _rows.DONE, splits):  # noqa: SIM102  `and` would load early
            if _math.key_token(tl.load(_rows.key_at(record), cache_modifier=".cg")) != token:
                tl.atomic_max(request + END, from_end(draft_index), sem="relaxed")


@triton.jit
def scan_draft(p, q, h, epsilon, noise, draft_index, token, record, request, pair_stats, items, split, splits, plan):
    """Scans one program's tiles of a pair of rows; in rejection the last stores the end of the walk if it is there."""
    last, p_stats, q_stats = _rows.scan_pair(
        p, None, q, record, items, pair_stats, split, splits, plan.TILE, plan.TILES
    )
    if (plan.METHOD == "rejection") and last:
        in_range = (token >= 0) & (token < p.columns)
        p_row = _laws.Row(p.at, p.columns, p.law, None, p_stats)
        q_row = _laws.Row(q.at, q.columns, q.law, q.map, q_stats)
        accepted, _ = accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise)
        if accepted == 0:
            tl.atomic_max(request + END, from_end(draft_index), sem="relaxed")


@triton.jit
def clear_counters(chain, readable, records, request, END: tl.constexpr):
    """Sets the counters of a request's rows back to zero, and words [2, END) of its own record."""
    _rows.clear(records, tl.where(readable, 4 * (chain.num_drafts + 1), 0))
    for word in tl.static_range(2, END):
        tl.store(request + word, 0)


@triton.jit
def put_tokens(writer, draft_index, n, width, tokens):
    """Writes the tokens at indices up to n, and clears those behind. Returns status bits."""
    there, behind = (draft_index < width) & (draft_index <= n), (draft_index < width) & (draft_index > n)
    _verdict.put_token(writer, draft_index, draft_index, tokens, there)
    reported = tl.max(_verdict.put_node(writer, draft_index, draft_index, there), axis=0)
    _verdict.clear_columns(writer, draft_index, behind)
    _verdict.clear_nodes(writer, draft_index, behind)
    return reported


@triton.jit
def finish_race(chain, readable, flags, vocab, records, pair_stats, request, writer, width):
    """Writes the verdict of a request whose rows were all raced, and sets its counters back to zero."""
    # If the launch that cuts rows found their argmax ``pair_stats`` has it; else it is None.
    n = chain.num_drafts
    for base in range(0, width, CHUNK):
        draft_index = base + tl.arange(0, CHUNK)
        held = draft_index <= tl.where(readable, chain.num_drafts, -1)
        record = records + 4 * draft_index
        if pair_stats is None:
            keys = tl.load(_rows.key_at(record), mask=held, other=_math.NO_CANDIDATE, cache_modifier=".cg")
        else:
            top = tl.load(pair_stats + 4 * draft_index, mask=held, other=0.0, cache_modifier=".cg")
            top = top.to(tl.int32, bitcast=True)
            keys = _math.key_of(tl.where(top >= 0, 0.0, -_math.INFINITY), top)
        row_status = tl.load(record + _rows.FLAGS, mask=held, other=0, cache_modifier=".cg")
        token, winner, unknown = token_at(chain, draft_index), _math.key_token(keys), keys == _math.NO_CANDIDATE
        if chain.bonus_index is not None:
            winner = tl.where(draft_index == chain.bonus_index, chain.bonus_token, winner)
            unknown = unknown & (draft_index != chain.bonus_index)
        bad = (row_status & _math.NON_FINITE != 0) | unknown
        token = tl.where(unknown, -1, token)  # a row without weight ends the chain
        ends = held & (unknown | (winner != token))
        n = tl.minimum(n, tl.min(tl.where(ends, draft_index, _math.NO_TOKEN), axis=0))
        reached = held & (draft_index <= n)
        flags |= _math.any_of(reached & bad) * _math.NON_FINITE
        flags |= _math.any_of(reached & (row_status & _math.PARAMETER != 0)) * _math.PARAMETER
        flags |= _math.any_of(reached & ((token < -1) | (token >= vocab))) * _math.TOKEN_RANGE
        flags |= put_tokens(writer, draft_index, n, width, winner)
    if chain.bonus_index is not None:
        flags |= tl.where(n == chain.bonus_index, chain.bad_bonus, 0)
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    clear_counters(chain, readable, records, request, 5)


@triton.jit
def walk(
    chain, edits, target, draft, epsilon, noise, records, pair_stats, SCANNED: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(accepted drafts n, the token refused at index n or -1, h there, status) from the ``RowStats`` of all rows."""
    # Drafts with edited rows go one by one, for each row has different lists.
    DRAFTS: tl.constexpr = CHUNK if edits.edits.by_row is None else 1
    n = chain.num_drafts
    refused = tl.full([], -1, tl.int64)
    refused_prob = 1.0
    flags = 0
    base = chain.num_drafts * 0
    while base < tl.minimum(chain.num_drafts, n + 1):
        draft_index = base + tl.arange(0, DRAFTS)
        inside = draft_index < chain.num_drafts
        token = token_at(chain, draft_index)
        draft_stats = pair_stats + 4 * draft_index
        h = tl.full([DRAFTS], 1.0, tl.float32)
        bad_h = tl.zeros([DRAFTS], tl.int32)
        row_edits, bad_bias = _edits.load_node_edits(edits, base, edits.live, target.columns)
        flags |= bad_bias
        row, by_row = target.row + draft_index, edits.edits.by_row
        p_law = _laws.Law(target.inverse, None, target.cuts, row, by_row, row_edits, edits.edits)
        p_stats = _laws.load_row_stats(draft_stats, p_law, inside)
        p_row = _laws.Row(_rows.side_row(target, draft_index, ALIGNED), target.columns, p_law, None, p_stats)
        if target.inverse is not None:  # a row without weight ends the chain
            token = tl.where(p_stats.log_sum == _math.INFINITY, -1, token)
        elif epsilon > 0.0:
            token = without_ended(chain, draft_index, token, target, p_row, ALIGNED, TILE)
        in_range = (token >= 0) & (token < target.columns)
        q_row = _laws.Row(None)
        if draft.at is not None:
            h, bad_h = load_draft_prob(chain, draft_index)
            q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + draft_index)
            q_stats = _laws.load_row_stats(draft_stats + 2, q_law, inside)
            q_row = _laws.Row(_rows.side_row(draft, draft_index, ALIGNED), draft.columns, q_law, draft.map, q_stats)
        accepted, bad = accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise)
        n = tl.minimum(n, tl.min(tl.where(inside & (accepted == 0), draft_index, _math.NO_TOKEN), axis=0))
        reached = inside & (draft_index <= n)
        if SCANNED:  # a bad value that an earlier launch found counts where a draft or its law is used
            row_status = tl.load(records + 4 * draft_index + _rows.FLAGS, mask=inside, other=0) != 0
            bad |= row_status & ((token != -1) | (h < 1.0))
        flags |= _math.any_of(reached & bad) * _math.NON_FINITE
        flags |= _math.any_of(reached & (token != -1) & (in_range == 0)) * _math.TOKEN_RANGE
        flags |= tl.max(tl.where(reached, bad_h, 0), axis=0)
        refused += tl.sum(tl.where(inside & (draft_index == n), token + 1, 0), axis=0)
        refused_prob += tl.sum(tl.where(inside & (draft_index == n), h - 1.0, 0.0), axis=0)
        base += DRAFTS
    return n, refused, refused_prob, flags


@triton.jit
def without_ended(chain, draft_index, token, target, p_row, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """The draft tokens of a block, -1 where the row of probabilities has no weight."""
    # Over-acceptance accepts tokens of probability 0, but none of a row without weight. Rows are read only where the
    # token has no probability; elsewhere it has weight itself.
    in_range = (token >= 0) & (token < target.columns)
    left = in_range & ((_rows.value_at(p_row, token, in_range) >= _math.SMALLEST) == 0)
    at = tl.min(tl.where(left, draft_index, _math.NO_TOKEN), axis=0)
    while at < _math.NO_TOKEN:
        row = _laws.Row(_rows.side_row(target, at, ALIGNED), target.columns, _laws.Law(None))
        token = tl.where((draft_index == at) & _rows.is_empty(row, TILE), -1, token)
        left = left & (draft_index > at)
        at = tl.min(tl.where(left, draft_index, _math.NO_TOKEN), axis=0)
    return token


@triton.jit
def count_passing(chain, readable, n, target, draft, noise, passed, output_format, ALIGNED: tl.constexpr):
    """Writes how many drafts pass the test of their row: n, and those behind the refused one, before the first -1."""
    end = chain.num_drafts
    for base in range(0, chain.num_drafts, CHUNK):
        draft_index = base + tl.arange(0, CHUNK)
        ends = (draft_index >= n) & (draft_index < end) & (token_at(chain, draft_index) == -1)
        end = tl.minimum(end, tl.min(tl.where(ends, draft_index, _math.NO_TOKEN), axis=0))
    count = tl.maximum(n, 0)
    stats = _laws.RowStats(0.0, 0.0)
    for base in range(0, end, CHUNK):
        draft_index = base + tl.arange(0, CHUNK)
        token = token_at(chain, draft_index)
        there = _math.both((draft_index > n) & (draft_index < end) & (token >= 0) & (token < draft.columns), readable)
        p_law = _laws.Law(target.inverse, None, target.cuts, target.row)
        q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row)
        p_row = _laws.Row(_rows.side_row(target, draft_index, ALIGNED), target.columns, p_law, None, stats)
        q_row = _laws.Row(_rows.side_row(draft, draft_index, ALIGNED), draft.columns, q_law, draft.map, stats)
        p, _ = _rows.probability_at(p_row, token, there)
        q, _ = _rows.probability_at(q_row, token, there)
        passes = there & _math.accepts(_math.accept_uniform(_math.later(noise, draft_index), draft_index), p, q, 0.0)
        count += tl.sum(passes.to(tl.int32), axis=0)
    before = tl.load(passed, mask=(output_format & _verdict.ADDED) != 0, other=0)
    tl.store(passed, before + count)


@triton.jit
def finish_draw(chain, readable, n, last_token, flags, records, request, writer, width):
    """Writes the verdict of a request whose last token was sampled, or given, and sets its counters back to zero."""
    if chain.bonus_index is not None:
        last_token = tl.where(n == chain.bonus_index, chain.bonus_token, last_token)
        flags |= tl.where(n == chain.bonus_index, chain.bad_bonus, 0)
    for base in range(0, width, CHUNK):
        draft_index = base + tl.arange(0, CHUNK)
        tokens = tl.where(draft_index == n, last_token, token_at(chain, draft_index))
        flags |= put_tokens(writer, draft_index, n, width, tokens)
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    clear_counters(chain, readable, records, request, 7)


@_launch.kernel
def verify_chain_kernel(
    drafts: Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, num_passed, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan, STAGE: tl.constexpr,
):  # fmt: skip
    r = load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    most = tl.cast(drafts.most, tl.int32)
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    NEEDS_STATS: tl.constexpr = plan.NEEDS_STATS
    ALIGNED: tl.constexpr = plan.ALIGNED
    inverse, greedy, bad_temperature = _arguments.load_temperature(target_temperature, r.entry, 0, r.live)
    max_epsilon, bad_epsilon = _math.epsilon_of(_arguments.number(epsilon, r.entry, 0, r.live))
    flags |= bad_temperature | bad_epsilon
    q_inverse, q_greedy = inverse, None
    if plan.SEPARATE_LAW:
        q_inverse, q_greedy, bad_temperature = _arguments.load_temperature(draft_temperature, r.entry, 0, r.live)
        flags |= bad_temperature
    if index.data is not None:
        flags = tl.where(r.idle, 0, flags)
    first_row = row if drafts.bonus.data is None else row - b  # `row` counts records, which have one more a request
    bonus_index, bonus_token, bad_bonus = None, None, None
    if drafts.bonus.data is not None:
        bonus_index, bonus_token, bad_bonus = load_bonus(drafts, r, vocab)
    prob_at = r.entry * drafts.prob.outer + (r.first_draft * drafts.prob.inner if RAGGED else 0)
    chain = Chain(
        r.num_drafts, tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, prob_at, bonus_index, bonus_token,
        bad_bonus,
    )  # fmt: skip
    request_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, bonus_index
    )  # fmt: skip
    p_start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, ALIGNED)
    p_inverse = inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, row)
    q_side = _rows.Side(None)
    if draft.rows is not None:
        PACKED: tl.constexpr = RAGGED and index.data is None
        q_start = _rows.row_at(draft.rows, r.first_draft * draft.inner if PACKED else r.entry * draft.outer, ALIGNED)
        q_side = _rows.Side(
            q_start, draft.inner, draft.vocab, q_inverse if plan.DRAFT == "logits" else None, q_greedy,
            memory.draft_cuts, row, drafts.map,
        )  # fmt: skip
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    pair_stats = memory.pair_stats + 4 * row
    FILTERED: tl.constexpr = memory.target_cuts is not None or memory.draft_cuts is not None
    if FILTERED:
        reads_flags = tl.full([], 1, tl.int1)
        if STAGE == "emit":  # at temperature 0 one program reads the flags, and resets them
            reads_flags = (greedy == 0) | (tl.program_id(1) == 0)
        flags |= tl.load(request + _rows.FLAGS, mask=reads_flags, other=0) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)

    if STAGE == "scan":
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        split, splits = tl.program_id(2), tl.num_programs(2)
        if plan.METHOD == "race":
            racing = b >= 0
        else:
            racing = greedy
        draft_index = chunk
        rows_read = tl.where(racing, count_rows(chain), chain.num_drafts if NEEDS_STATS else 0)
        walking = readable & (draft_index < rows_read)
        while walking:
            record = records + 4 * draft_index
            token = token_at(chain, draft_index)
            start = _rows.side_row(p_side, draft_index, ALIGNED)
            row_edits, bad_bias = _edits.load_node_edits(request_edits, draft_index, r.live, vocab)
            if racing:
                if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
                    if bad_bias != 0:
                        tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
                law = _laws.Law(
                    p_inverse, greedy, memory.target_cuts, row + draft_index, edits.by_row, row_edits, edits
                )  # fmt: skip
                race_row(
                    _laws.Row(start, vocab, law), _arguments.race_noise(r.noise, inputs, b, draft_index, draft_index),
                    draft_index, token, chunks > most, record, request, split, splits, plan.TILE,
                )  # fmt: skip
            elif NEEDS_STATS:
                h, q_row = 1.0, _laws.Row(None)
                if draft.rows is not None:
                    h, _ = load_draft_prob(chain, draft_index)
                    q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row + draft_index)
                    q_row = _laws.Row(_rows.side_row(q_side, draft_index, ALIGNED), q_side.columns, q_law, q_side.map)
                walking = (token != -1) | (h < 1.0)
                if walking:
                    law = _laws.Law(
                        p_inverse, None, memory.target_cuts, row + draft_index, edits.by_row, row_edits, edits
                    )  # fmt: skip
                    scan_draft(
                        _laws.Row(start, vocab, law), q_row, h, max_epsilon, r.noise, draft_index, token, record,
                        request, pair_stats + 4 * draft_index,
                        memory.items + 2 * _rows.mass_items_of(vocab) * (row + draft_index), split, splits, plan,
                    )  # fmt: skip
                walking = walking & (token != -1)
            draft_index += chunks
            walking = walking & (draft_index < rows_read)
            if walking:
                walking = draft_index <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
        if racing:  # noqa: SIM102  `and` would always take a ticket
            if _rows.is_last(request + _rows.DONE, splits * chunks):
                flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
                finish_race(chain, readable, flags, vocab, records, None, request, writer, most + 1)
    elif STAGE == "walk":
        if greedy:
            return
        tree = _trees.Tree(None, 0, chain.tokens - chain.tokens_step, chain.tokens_step)
        walked = _traversal.traverse(
            tree, tl.where(readable, chain.num_drafts + 1, 0), chain.num_drafts, p_side, q_side, request_edits,
            _rows.Memory(records, pair_stats, memory.node_state + _traversal.NODE_WORDS * row), r.noise, 4, False,
            ALIGNED, plan.TILE,
        )  # fmt: skip
        tl.store(request + END, walked.node)
        tl.store(request + SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
        tl.store(request + TRIED, walked.tried.to(tl.int32))
        _verdict.put_status(writer, walked.flags)
    else:
        split, splits = tl.program_id(1), tl.num_programs(1)
        if greedy == 0:
            if plan.METHOD == "block":
                n, reported = tl.minimum(tl.load(request + END), chain.num_drafts), _verdict.load_status(writer)
                h = tl.load(request + SUBTRACTED).to(tl.float32, bitcast=True)
                from_residual = tl.load(request + TRIED) != 0
                refused = tl.where(from_residual, token_at(chain, n), -1)
            else:
                n, refused, h, reported = walk(
                    chain,
                    request_edits,
                    p_side,
                    q_side,
                    max_epsilon,
                    r.noise,
                    records,
                    pair_stats,
                    NEEDS_STATS or FILTERED,
                    ALIGNED,
                    plan.TILE,
                )
                from_residual = (refused != -1) | (h < 1.0)
            q_row, excluded = _laws.Row(None), None
            if draft.rows is None:
                excluded = tl.where(refused < vocab, refused, -1)
            else:
                q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row + n)
                q_row = _laws.Row(_rows.side_row(q_side, n, ALIGNED), q_side.columns, q_law, q_side.map)
            row_edits, bad_bias = _edits.load_node_edits(request_edits, n, r.live, vocab)
            p_law = _laws.Law(p_inverse, None, memory.target_cuts, row + n, edits.by_row, row_edits, edits)
            if FILTERED:
                reported |= tl.load(records + 4 * n + _rows.FLAGS, mask=readable, other=0) & _math.NON_FINITE
            p_row = _laws.Row(_rows.side_row(p_side, n, ALIGNED), vocab, p_law)
            last_noise, draws = _math.later(r.noise, n), readable
            if drafts.bonus.data is not None:
                draws = readable & (n != bonus_index)
            if _races.sample_slice(
                p_row, q_row, pair_stats + 4 * n, h, from_residual, draws, excluded, None, request, last_noise, split,
                splits, plan.TILE,
            ):  # fmt: skip
                token, sample_flags, empty = _races.finish_sample(
                    p_row, q_row, from_residual, draws, request, last_noise, plan.TILE
                )  # fmt: skip
                if plan.METHOD == "rejection":  # the draft refused at a row without weight counts as absent
                    reported = tl.where(empty, reported & _math.PARAMETER, reported)
                reported |= bad_bias | _edits.request_status(edits, r.entry, 0, r.live, vocab)
                flags |= reported | sample_flags
                if num_passed is not None:
                    passed = num_passed + b
                    count_passing(chain, readable, n, p_side, q_side, r.noise, passed, verdict.output_format, ALIGNED)
                finish_draw(chain, readable, n, token, flags, records, request, writer, most + 1)
        elif not plan.SCANS:  # noqa: SIM102  the launch for cuts has found each argmax
            if split == 0:
                flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
                finish_race(chain, readable, flags, vocab, records, pair_stats, request, writer, most + 1)


verify_chain_kernel.most_registers = _races.most_registers


@_launch.kernel
def filtered_chain_kernel(
    drafts: Drafts, target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, memory: Memory,
    search: _cuts.Search, edits: _edits.LogitEdits, tiling: _cuts.Tiling,
):  # fmt: skip
    """Races rows with filters. A group of programs has memory for one row, so it takes several rows only if it is one
    program."""
    r = load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    inverse, greedy, bad_temperature = _arguments.load_temperature(law.temperature, r.entry, 0, r.live)
    filter, bad_filter = _filters.load_filter(law, r.entry, 0, r.live, vocab, greedy)
    _, bad_epsilon = _math.epsilon_of(_arguments.number(epsilon, r.entry, 0, r.live))
    flags |= bad_temperature | bad_epsilon | tl.where(r.live, bad_filter, 0)
    if index.data is not None:
        flags = tl.where(r.idle, 0, flags)
    first_row = row if drafts.bonus.data is None else row - b  # records have one more a request
    bonus_index, bonus_token, bad_bonus = None, None, None
    if drafts.bonus.data is not None:
        bonus_index, bonus_token, bad_bonus = load_bonus(drafts, r, vocab)
    chain = Chain(
        r.num_drafts, tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, 0, bonus_index, bonus_token, bad_bonus
    )
    request_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, bonus_index
    )  # fmt: skip
    start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, tiling.ALIGNED)
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.row_words * (b * chunks + chunk)
    draft_index = chunk
    walking = readable & (draft_index < count_rows(chain))
    while walking:
        record = records + 4 * draft_index
        row_edits, bad_bias = _edits.load_node_edits(request_edits, draft_index, r.live, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        p_law = _laws.Law(inverse, greedy, None, row + draft_index, edits.by_row, row_edits, edits)
        p_row = _laws.Row(_rows.row_at(start, draft_index * target.inner, tiling.ALIGNED), vocab, p_law)
        row_noise = _arguments.race_noise(r.noise, inputs, b, draft_index, draft_index)
        _filtered_races.begin_row(p_row, filter, record, scratch, row_noise, split, splits, tiling)
        if _rows.is_last(record + _rows.DONE, splits):
            _filtered_races.end_row(p_row, filter, record, scratch, search.cuts, row_noise, tiling)
            best = tl.atomic_max(_rows.key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            if _math.key_token(best) != token_at(chain, draft_index):
                tl.atomic_max(request + END, from_end(draft_index), sem="relaxed")
        draft_index += chunks
        walking = draft_index < count_rows(chain)
        if walking:
            walking = draft_index <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
    if _rows.is_last(request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
        writer, width = _verdict.Writer(verdict, b), tl.cast(drafts.most, tl.int32) + 1
        finish_race(chain, readable, flags, vocab, records, None, request, writer, width)


filtered_chain_kernel.most_registers = _cuts.most_registers


def shared_of(call, requests, width, edits, draft=None):
    """The arguments that both kernels have."""
    return dict(
        drafts=Drafts(_arguments.row_steps(call.draft_tokens), _arguments.packing_of(call, requests),
        width - 1, _arguments.number_of(call.draft_prob), _arguments.steps_or_none(call.bonus),
        None if draft is None else call.draft_map), target=_arguments.rows_of(call.target),
        epsilon=_arguments.number_of(call.epsilon), noise=_arguments.noise_numbers(call.noise),
        verdict=_verdict.verdict_of(call),
        inputs=_arguments.inputs_of(call, _arguments.row_steps(call.input_positions), call.input_nonces),
        **edits,
    )  # fmt: skip


def filtered_race(call, requests, width, rows):
    """Races all rows under filters, in one launch."""
    target, law = call.target, call.target_law
    vocab, device = target.shape[-1], target.device
    edits = _edits.arguments(call, call.draft_tokens, ragged=call.cu_drafts is not None)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    chunks = max(1, min(width, _cuts.groups_of(requests * width, device) // requests))
    splits = _launch.splits_of(requests * width, tiles, device) if chunks == width else 1
    row_words, cuts = _cuts.count_search_words(vocab), _laws.CUT.value * rows
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 4 * rows + 8 * requests, cuts + row_words * requests * chunks)
        arguments = shared_of(call, requests, width, edits) | dict(
            memory=Memory(counters, rows, None, None, None, None, None), law=_arguments.law_of(law),
            search=_cuts.Search(scratch, scratch[cuts:], row_words),
            tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(target)), index=_arguments.index_of(call.request_index,
            *_launch.numbers_of(law), call.epsilon, *call.noise, edit=call.edits),
        )  # fmt: skip
        _launch.launch(filtered_chain_kernel, (requests, chunks, splits), warps, arguments)


def verify_chain(call):
    """Writes the verdicts of ``specdec_kernels.verify_chain``."""
    requests, width = _verdict.shape_of(call)
    if requests == 0:
        return
    target, law, ragged = call.target, call.target_law, call.cu_drafts is not None
    vocab = target.shape[-1]
    rows = call.draft_tokens.shape[0] + requests * (1 - call.tokens_by_row) if ragged else requests * width
    edits = _edits.arguments(call, call.draft_tokens, ragged=ragged)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # If all requests are greedy rejection is a race.
    race = call.method == "race" or _launch.is_greedy(law)
    if race and _launch.is_filtered(law) and _launch.TICKETS_ORDER_STORES:
        return filtered_race(call, requests, width, rows)
    block = call.method == "block" and not race
    draft, packed = None if race else call.draft, ragged and call.request_index is None
    has_draft = call.draft is not None and call.draft.numel() > 0
    separate_law = has_draft and _launch.has_separate_temperature(call.draft_law, law)
    scanned = _launch.scanned_sides(call, draft)
    needs_stats = not race and _launch.needs_stats(call, draft, separate_law, scanned)
    cut_words = _cuts.count_scratch_words(vocab, rows, target.device, scanned)
    # Requests at temperature 0 race in ``scan``, unless the launch that cuts rows has found each argmax.
    scans = race or needs_stats or (isinstance(law.temperature, torch.Tensor) and not scanned[0])
    index = _arguments.index_of(
        call.request_index, None if packed else call.draft, *_launch.numbers_of(law),
        *_launch.numbers_of(call.draft_law), call.draft_prob, call.epsilon, *call.noise, edit=call.edits,
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        stats_words = (4 * (needs_stats or cut_words > 0) + _launch.mass_items_of(vocab) * needs_stats) * rows
        saved = stats_words + cut_words
        counters, scratch = _launch.workspace(
            target, 4 * rows + 8 * requests, saved + _traversal.NODE_WORDS.value * rows * block
        )  # fmt: skip
        cuts = None, None
        if cut_words:
            flags = _arguments.Steps(counters[4 * rows + _rows.FLAGS.value :], 8, 0)
            stored = _cuts.Stored(width, 4, counters, 4, flags, int(call.bonus is not None))
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, stored, scratch[stats_words:], requests, width
            )  # fmt: skip
        plan = (
            "race" if race else call.method, law.space, None if draft is None else call.draft_law.space, separate_law,
            needs_stats, scans, _launch.aligned(target, draft), tile, _launch.power_of_2(tiles),
        )  # fmt: skip
        items, node_state = scratch[4 * rows :] if needs_stats else scratch, scratch[saved:] if block else None
        arguments = shared_of(call, requests, width, edits, draft) | dict(
            draft=_arguments.rows_of(draft), index=index, target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if separate_law else None),
            num_passed=call.num_passed, memory=Memory(counters, rows, scratch, items, node_state, *cuts),
            plan=_launch.constants(Plan, *plan),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        if scans:
            chunks = _launch.chunks_of(requests, splits, width, target.device)
            _launch.launch(verify_chain_kernel, (requests, chunks, splits), warps, arguments | {"STAGE": "scan"})
        if block:
            _launch.launch(
                verify_chain_kernel, (requests,), _traversal.MORE_WARPS * warps, arguments | {"STAGE": "walk"}
            )  # fmt: skip
        if not race:
            _launch.launch(verify_chain_kernel, (requests, splits), warps, arguments | {"STAGE": "emit"})

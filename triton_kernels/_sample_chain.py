"""The last launch of rejection and block over chains: accepts drafts, and samples a token from one row.

Where no ``RowStats`` are needed it is the only one. In block the drafts are accepted already (``_block_chain``).
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _chains,
    _edits,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
    _verdict,
)


@triton.jit
def accept(
    chain, edits, target, draft, epsilon, noise, records, pair_stats, SCANNED: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(accepted drafts n, the token refused at index n or -1, h there, status) from the ``RowStats`` of all rows."""
    # Drafts with edited rows go one by one, for each row has different lists.
    DRAFTS: tl.constexpr = _chains.CHUNK if edits.edits.by_row is None else 1
    n = chain.num_drafts
    refused = tl.full([], -1, tl.int64)
    refused_prob = 1.0
    flags = 0
    base = chain.num_drafts * 0
    while base < tl.minimum(chain.num_drafts, n + 1):
        draft_index = base + tl.arange(0, DRAFTS)
        inside = draft_index < chain.num_drafts
        token = _chains.token_at(chain, draft_index)
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
            h, bad_h = _chains.load_draft_prob(chain, draft_index)
            q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + draft_index)
            q_stats = _laws.load_row_stats(draft_stats + 2, q_law, inside)
            q_row = _laws.Row(_rows.side_row(draft, draft_index, ALIGNED), draft.columns, q_law, draft.map, q_stats)
        accepted, bad = _chains.accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise)
        n = tl.minimum(n, tl.min(tl.where(inside & (accepted == 0), draft_index, _math.NO_TOKEN), axis=0))
        reached = inside & (draft_index <= n)
        if SCANNED:  # a bad value of an earlier launch counts where a draft or its law is used
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
    for base in range(0, chain.num_drafts, _chains.CHUNK):
        draft_index = base + tl.arange(0, _chains.CHUNK)
        ends = (draft_index >= n) & (draft_index < end) & (_chains.token_at(chain, draft_index) == -1)
        end = tl.minimum(end, tl.min(tl.where(ends, draft_index, _math.NO_TOKEN), axis=0))
    count = tl.maximum(n, 0)
    stats = _laws.RowStats(0.0, 0.0)
    for base in range(0, end, _chains.CHUNK):
        draft_index = base + tl.arange(0, _chains.CHUNK)
        token = _chains.token_at(chain, draft_index)
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
    for base in range(0, width, _chains.CHUNK):
        draft_index = base + tl.arange(0, _chains.CHUNK)
        tokens = tl.where(draft_index == n, last_token, _chains.token_at(chain, draft_index))
        flags |= _chains.put_tokens(writer, draft_index, n, width, tokens)
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    _chains.clear_counters(chain, readable, records, request, 7)


@_launch.kernel
def sample_chain_kernel(
    drafts: _chains.Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, num_passed,
    memory: _chains.Memory, edits: _edits.LogitEdits, plan: _chains.Plan,
):  # fmt: skip
    """Grid: requests, splits of a row. Accepts drafts, unless block has done so, and samples one token."""
    r = _chains.load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    ALIGNED: tl.constexpr = plan.ALIGNED
    most = tl.cast(drafts.most, tl.int32)
    split, splits = tl.program_id(1), tl.num_programs(1)
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
        bonus_index, bonus_token, bad_bonus = _chains.load_bonus(drafts, r, vocab)
    prob_at = r.entry * drafts.prob.outer + (r.first_draft * drafts.prob.inner if RAGGED else 0)
    chain = _chains.Chain(
        r.num_drafts, _chains.tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, prob_at, bonus_index,
        bonus_token, bad_bonus,
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
    if FILTERED:  # at temperature 0 one program reads the flags, and resets them
        flags |= tl.load(request + _rows.FLAGS, mask=(greedy == 0) | (split == 0), other=0) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)
    if greedy == 0:
        if plan.METHOD == "block":
            n, reported = tl.minimum(tl.load(request + _chains.END), chain.num_drafts), _verdict.load_status(writer)
            h = tl.load(request + _chains.SUBTRACTED).to(tl.float32, bitcast=True)
            from_residual = tl.load(request + _chains.TRIED) != 0
            refused = tl.where(from_residual, _chains.token_at(chain, n), -1)
        else:
            n, refused, h, reported = accept(
                chain, request_edits, p_side, q_side, max_epsilon, r.noise, records, pair_stats,
                plan.NEEDS_STATS or FILTERED, ALIGNED, plan.TILE,
            )  # fmt: skip
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
    elif not plan.SCANS:  # noqa: SIM102  the launch for cuts has stored each argmax
        if split == 0:
            flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
            _chains.finish_race(chain, readable, flags, vocab, records, pair_stats, request, writer, most + 1)


sample_chain_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "sample")

"""The first launch of rejection and block over chains: the ``RowStats`` of each row, and races at temperature 0.

A program takes its rows in order. In rejection the last program of a row decides on its draft and stores the end of the
walk if it is there, so that later rows are not read. Block needs all rows.
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
    _race_chain,
    _races,
    _rows,
    _verdict,
)


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
        accepted, _ = _chains.accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise)
        if accepted == 0:
            tl.atomic_max(request + _chains.END, _chains.from_end(draft_index), sem="relaxed")


@_launch.kernel
def scan_chain_kernel(
    drafts: _chains.Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, num_passed,
    memory: _chains.Memory, edits: _edits.LogitEdits, plan: _chains.Plan,
):  # fmt: skip
    """Grid: requests, chunks of rows, splits of a row. Stores ``RowStats``; races requests at temperature 0."""
    r = _chains.load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    ALIGNED: tl.constexpr = plan.ALIGNED
    NEEDS_STATS: tl.constexpr = plan.NEEDS_STATS
    most = tl.cast(drafts.most, tl.int32)
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
    if memory.target_cuts is not None or memory.draft_cuts is not None:
        flags |= tl.load(request + _rows.FLAGS) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    draft_index = chunk
    num_rows = tl.where(greedy, _chains.count_rows(chain), chain.num_drafts if NEEDS_STATS else 0)
    walking = readable & (draft_index < num_rows)
    while walking:
        record = records + 4 * draft_index
        token = _chains.token_at(chain, draft_index)
        start = _rows.side_row(p_side, draft_index, ALIGNED)
        row_edits, bad_bias = _edits.load_node_edits(request_edits, draft_index, r.live, vocab)
        if greedy:
            if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
                if bad_bias != 0:
                    tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
            law = _laws.Law(p_inverse, greedy, memory.target_cuts, row + draft_index, edits.by_row, row_edits, edits)
            _race_chain.race_row(
                _laws.Row(start, vocab, law), _arguments.race_noise(r.noise, inputs, b, draft_index, draft_index),
                draft_index, token, chunks > most, record, request, split, splits, plan.TILE,
            )  # fmt: skip
        elif NEEDS_STATS:
            h, q_row = 1.0, _laws.Row(None)
            if draft.rows is not None:
                h, _ = _chains.load_draft_prob(chain, draft_index)
                q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row + draft_index)
                q_row = _laws.Row(_rows.side_row(q_side, draft_index, ALIGNED), q_side.columns, q_law, q_side.map)
            walking = (token != -1) | (h < 1.0)
            if walking:
                law = _laws.Law(p_inverse, None, memory.target_cuts, row + draft_index, edits.by_row, row_edits, edits)
                scan_draft(
                    _laws.Row(start, vocab, law), q_row, h, max_epsilon, r.noise, draft_index, token, record, request,
                    pair_stats + 4 * draft_index, memory.items + 2 * _rows.mass_items_of(vocab) * (row + draft_index),
                    split, splits, plan,
                )  # fmt: skip
            walking = walking & (token != -1)
        draft_index += chunks
        walking = walking & (draft_index < num_rows)
        if walking:
            walking = draft_index <= _chains.from_end(tl.atomic_max(request + _chains.END, 0, sem="relaxed"))
    if greedy:  # noqa: SIM102  `and` would always take a ticket
        if _rows.is_last(request + _rows.DONE, splits * chunks):
            flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
            _chains.finish_race(chain, readable, flags, vocab, records, None, request, writer, most + 1)


scan_chain_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "scan")

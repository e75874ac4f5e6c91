"""The launch between the two of a chain by block verification: one program a request decides how many drafts stay."""

import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _chains,
    _edits,
    _launch,
    _races,
    _rows,
    _traversal,
    _trees,
    _verdict,
)


@_launch.kernel
def accept_block_kernel(
    drafts: _chains.Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, num_passed,
    memory: _chains.Memory, edits: _edits.LogitEdits, plan: _chains.Plan,
):  # fmt: skip
    """Grid: requests. From the ``RowStats`` of all rows; stores the end of the walk and T of walk.h there."""
    r = _chains.load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, vocab = r.b, r.readable, r.first_row, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    ALIGNED: tl.constexpr = plan.ALIGNED
    inverse, greedy, _reported = _arguments.load_temperature(target_temperature, r.entry, 0, r.live)
    if greedy:  # its rows are raced
        return
    q_inverse, q_greedy = inverse, None
    if plan.SEPARATE_LAW:
        q_inverse, q_greedy, _reported = _arguments.load_temperature(draft_temperature, r.entry, 0, r.live)
    first_row = row if drafts.bonus.data is None else row - b  # `row` counts records, which have one more a request
    bonus_index = None
    if drafts.bonus.data is not None:
        bonus_index, _token, _bad_token = _chains.load_bonus(drafts, r, vocab)
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
    tokens = _chains.tokens_of(drafts, r)
    tree = _trees.Tree(None, 0, tokens - drafts.tokens.inner, drafts.tokens.inner)  # node 0 is the text's last token
    walked = _traversal.traverse(
        tree, tl.where(readable, r.num_drafts + 1, 0), r.num_drafts, p_side, q_side, request_edits,
        _rows.Memory(records, pair_stats, memory.node_state + _traversal.NODE_WORDS * row), r.noise, 4, False,
        ALIGNED, plan.TILE,
    )  # fmt: skip
    tl.store(request + _chains.END, walked.node)
    tl.store(request + _chains.SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
    tl.store(request + _chains.TRIED, walked.tried.to(tl.int32))
    _verdict.put_status(_verdict.Writer(verdict, b), walked.flags)


accept_block_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "accept")

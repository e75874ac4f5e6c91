"""Races over the rows of chains, in one launch, without filters or with them.

A program takes its rows in order. The last program of a row compares the row's winner with the draft and stores the end
of the walk if they differ, so that later rows are not read. The last program of a request writes its verdict.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _chains,
    _cuts,
    _edits,
    _filtered_races,
    _filters,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
    _verdict,
)


@triton.jit
def race_row(row, noise, draft_index, token, alone, record, request, split, splits, TILE: tl.constexpr):
    """Races one program's tiles of a row; the last program stores the end of the walk if it is there."""
    # If each program has one row (``alone``) no program reads that end, so none takes a ticket.
    _filtered_races.race_slice(row, record, noise, split, splits, TILE)
    if alone == 0:  # noqa: SIM102  `and` would always take a ticket
        if _rows.is_last(record + _rows.DONE, splits):  # noqa: SIM102  `and` would load early
            if _math.key_token(tl.load(_rows.key_at(record), cache_modifier=".cg")) != token:
                tl.atomic_max(request + _chains.END, _chains.from_end(draft_index), sem="relaxed")


@_launch.kernel
def race_chain_kernel(
    drafts: _chains.Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, num_passed,
    memory: _chains.Memory, edits: _edits.LogitEdits, plan: _chains.Plan,
):  # fmt: skip
    """Grid: requests, chunks of rows, splits of a row. The draft's rows are not read; its temperature is checked."""
    r = _chains.load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    ALIGNED: tl.constexpr = plan.ALIGNED
    most = tl.cast(drafts.most, tl.int32)
    inverse, greedy, bad_temperature = _arguments.load_temperature(target_temperature, r.entry, 0, r.live)
    _max_epsilon, bad_epsilon = _math.epsilon_of(_arguments.number(epsilon, r.entry, 0, r.live))
    flags |= bad_temperature | bad_epsilon
    if plan.SEPARATE_LAW:
        _inverse, _greedy, bad_temperature = _arguments.load_temperature(draft_temperature, r.entry, 0, r.live)
        flags |= bad_temperature
    if index.data is not None:
        flags = tl.where(r.idle, 0, flags)
    first_row = row if drafts.bonus.data is None else row - b  # `row` counts records, which have one more a request
    bonus_index, bonus_token, bad_bonus = None, None, None
    if drafts.bonus.data is not None:
        bonus_index, bonus_token, bad_bonus = _chains.load_bonus(drafts, r, vocab)
    chain = _chains.Chain(
        r.num_drafts, _chains.tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, 0, bonus_index, bonus_token,
        bad_bonus,
    )  # fmt: skip
    request_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, bonus_index
    )  # fmt: skip
    start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, ALIGNED)
    p_inverse = inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(start, target.inner, vocab, p_inverse, None, memory.target_cuts, row)
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    if memory.target_cuts is not None or memory.draft_cuts is not None:
        flags |= tl.load(request + _rows.FLAGS) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    draft_index = chunk
    num_rows = _chains.count_rows(chain)
    walking = readable & (draft_index < num_rows)
    while walking:
        record = records + 4 * draft_index
        token = _chains.token_at(chain, draft_index)
        start = _rows.side_row(p_side, draft_index, ALIGNED)
        row_edits, bad_bias = _edits.load_node_edits(request_edits, draft_index, r.live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
            if bad_bias != 0:
                tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        law = _laws.Law(p_inverse, greedy, memory.target_cuts, row + draft_index, edits.by_row, row_edits, edits)
        race_row(
            _laws.Row(start, vocab, law), _arguments.race_noise(r.noise, inputs, b, draft_index, draft_index),
            draft_index, token, chunks > most, record, request, split, splits, plan.TILE,
        )  # fmt: skip
        draft_index += chunks
        walking = draft_index < num_rows
        if walking:
            walking = draft_index <= _chains.from_end(tl.atomic_max(request + _chains.END, 0, sem="relaxed"))
    if _rows.is_last(request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
        _chains.finish_race(chain, readable, flags, vocab, records, None, request, writer, most + 1)


race_chain_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "race")


@_launch.kernel
def filtered_chain_kernel(
    drafts: _chains.Drafts, target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law,
    epsilon: _arguments.Number, noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict,
    memory: _chains.Memory, search: _cuts.Search, edits: _edits.LogitEdits, tiling: _cuts.Tiling,
):  # fmt: skip
    """Races rows with filters. A group of programs has memory for one row, so it takes several rows only if it is one
    program."""
    r = _chains.load_request(drafts, index, noise, inputs, tl.program_id(0).to(tl.int64))
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
        bonus_index, bonus_token, bad_bonus = _chains.load_bonus(drafts, r, vocab)
    chain = _chains.Chain(
        r.num_drafts, _chains.tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, 0, bonus_index, bonus_token,
        bad_bonus,
    )  # fmt: skip
    request_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, bonus_index
    )  # fmt: skip
    start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, tiling.ALIGNED)
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.row_words * (b * chunks + chunk)
    draft_index = chunk
    walking = readable & (draft_index < _chains.count_rows(chain))
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
            if _math.key_token(best) != _chains.token_at(chain, draft_index):
                tl.atomic_max(request + _chains.END, _chains.from_end(draft_index), sem="relaxed")
        draft_index += chunks
        walking = draft_index < _chains.count_rows(chain)
        if walking:
            walking = draft_index <= _chains.from_end(tl.atomic_max(request + _chains.END, 0, sem="relaxed"))
    if _rows.is_last(request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
        writer, width = _verdict.Writer(verdict, b), tl.cast(drafts.most, tl.int32) + 1
        _chains.finish_race(chain, readable, flags, vocab, records, None, request, writer, width)


filtered_chain_kernel.most_registers = _cuts.most_registers


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
        arguments = _chains.shared_of(call, requests, width, edits) | dict(
            memory=_chains.Memory(counters, rows, None, None, None, None, None), law=_arguments.law_of(law),
            search=_cuts.Search(scratch, scratch[cuts:], row_words),
            tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(target)), index=_arguments.index_of(call.request_index,
            *_launch.numbers_of(law), call.epsilon, *call.noise, edit=call.edits),
        )  # fmt: skip
        _launch.launch(filtered_chain_kernel, (requests, chunks, splits), warps, arguments)

"""Verification of chains: one launch for the race, two for rejection, three for block.

| launch | file | for |
|---|---|---|
| ``race_chain``, or ``filtered_chain`` | ``_race_chain`` | race, and rejection where all requests are greedy |
| ``scan_chain`` | ``_scan_chain`` | rejection and block, unless no ``RowStats`` are needed |
| ``accept_block`` | ``_block_chain`` | block |
| ``sample_chain`` | ``_sample_chain`` | rejection and block |

``_chains`` has what they share, and the counters by which they work together.
"""

import torch
from specdec_kernels.triton_kernels import (
    _arguments,
    _block_chain,
    _chains,
    _cuts,
    _edits,
    _launch,
    _race_chain,
    _rows,
    _sample_chain,
    _scan_chain,
    _traversal,
    _verdict,
)


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
        return _race_chain.filtered_race(call, requests, width, rows)
    block = call.method == "block" and not race
    draft, packed = None if race else call.draft, ragged and call.request_index is None
    has_draft = call.draft is not None and call.draft.numel() > 0
    separate_law = has_draft and _launch.has_separate_temperature(call.draft_law, law)
    scanned = _launch.scanned_sides(call, draft)
    needs_stats = not race and _launch.needs_stats(call, draft, separate_law, scanned)
    cut_words = _cuts.count_scratch_words(vocab, rows, target.device, scanned)
    # Requests at temperature 0 race in ``scan_chain``, unless the launch that cuts rows has stored each argmax.
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
        arguments = _chains.shared_of(call, requests, width, edits, draft) | dict(
            draft=_arguments.rows_of(draft), index=index, target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if separate_law else None),
            num_passed=call.num_passed, memory=_chains.Memory(counters, rows, scratch, items, node_state, *cuts),
            plan=_launch.constants(_chains.Plan, *plan),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        if scans:
            chunks = _launch.chunks_of(requests, splits, width, target.device)
            scan = _race_chain.race_chain_kernel if race else _scan_chain.scan_chain_kernel
            _launch.launch(scan, (requests, chunks, splits), warps, arguments)
        if block:
            _launch.launch(
                _block_chain.accept_block_kernel, (requests,), _traversal.MORE_WARPS * warps, arguments
            )  # fmt: skip
        if not race:
            _launch.launch(_sample_chain.sample_chain_kernel, (requests, splits), warps, arguments)

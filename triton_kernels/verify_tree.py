"""Verification of trees: one launch for the race, two for rejection, three for traversal and paths.

| launch | file | for |
|---|---|---|
| ``race_tree`` | ``_scan_tree`` | race, and where all requests are greedy |
| ``scan_tree`` | ``_scan_tree`` | rejection, which decides here; traversal and paths, if they need ``RowStats`` |
| ``accept_tree`` | ``_sample_tree`` | traversal and paths |
| ``sample_tree`` | ``_sample_tree`` | all but the race; only it reads rows of leaves |

Filters have another first launch (``_filtered_trees``).
"""

import torch
from specdec_kernels.triton_kernels import (
    _arguments,
    _cuts,
    _edits,
    _filtered_trees,
    _launch,
    _laws,
    _paths,
    _rows,
    _sample_tree,
    _scan_tree,
    _traversal,
    _verdict,
)


def verify_tree(call):
    """Writes the verdicts of ``specdec_kernels.verify_tree``."""
    target, law = call.target, call.target_law
    (requests, width), (_, nodes, vocab) = _verdict.shape_of(call), target.shape
    if requests == 0:
        return
    rows = requests * nodes
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # If all requests are greedy rejection is a race.
    race = call.method == "race" or _launch.is_greedy(law)
    if race and _launch.is_filtered(law) and _launch.TICKETS_ORDER_STORES:
        return _filtered_trees.race(call, requests, width)
    paths = call.method == "paths" and not race
    traversal = paths or (call.method == "traversal" and not race)
    draft = None if race else call.draft
    separate_law = call.draft is not None and _launch.has_separate_temperature(call.draft_law, law)
    scanned = [False, False] if race else _filtered_trees.scanned_sides(call, draft, separate_law)
    together = any(scanned)  # one launch cuts rows and decides
    if not together:
        scanned = _launch.scanned_sides(call, draft, both=False)
    needs_stats = not race and _launch.needs_stats(call, draft, separate_law, scanned)
    index = _arguments.index_of(
        call.request_index, call.draft, *_launch.numbers_of(law), *_launch.numbers_of(call.draft_law), *call.noise,
        edit=call.edits,
    )  # fmt: skip
    shared = _filtered_trees.shared_of(call, width, edits, index)
    search = _filtered_trees.search_of(call, requests, edits, sum(scanned)) if together else None
    cut_words = _laws.CUT.value * rows * sum(scanned) + search.scratch_words if together else _cuts.count_scratch_words(
        vocab, rows, target.device, scanned
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        stats_words = (4 * (needs_stats or cut_words > 0) + _launch.mass_items_of(vocab) * needs_stats) * rows
        saved, of_node = stats_words + cut_words, (_paths if paths else _traversal).NODE_WORDS.value
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, saved + of_node * rows * traversal)
        if together:
            cuts = _filtered_trees.cut(
                call, draft, scanned, search, shared, counters, scratch[: 4 * rows], scratch[stats_words:]
            )  # fmt: skip
        else:
            flags = _arguments.Steps(counters[6 * rows + _rows.FLAGS.value :], 8, 0)
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, _cuts.Stored(nodes, 4, counters, 6, flags, 0),
                scratch[stats_words:], requests, nodes,
            )  # fmt: skip
        method = "race" if race else "traversal" if paths else call.method
        plan = (
            method, call.replacement and draft is not None, law.space, None if draft is None else call.draft_law.space,
            separate_law, needs_stats, any(cut_words is not None for cut_words in cuts), _launch.aligned(target, draft),
            tile, _launch.power_of_2(tiles),
        )  # fmt: skip
        node_state = scratch[saved:] if traversal else None
        arguments = shared | dict(
            draft=_arguments.rows_of(draft), draft_map=None if draft is None else call.draft_map,
            target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if separate_law else None),
            leaves=_paths.chains_of(call.leaves if paths else None), plan=_launch.constants(_scan_tree.Plan, *plan),
            memory=_scan_tree.Memory(counters, scratch, scratch[4 * rows :], node_state, *cuts),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        split = race or needs_stats or isinstance(law.temperature, torch.Tensor)
        scan_splits = splits if split else 1
        chunks = _launch.chunks_of(requests, scan_splits, nodes, target.device)
        if not together and (split or not traversal):
            scan = _scan_tree.race_tree_kernel if race else _scan_tree.scan_tree_kernel
            _launch.launch(scan, (requests, chunks, scan_splits), warps, arguments)
        if traversal:
            _launch.launch(
                _sample_tree.accept_tree_kernel, (requests,), _traversal.MORE_WARPS * warps, arguments
            )  # fmt: skip
        if not race:
            _launch.launch(_sample_tree.sample_tree_kernel, (requests, splits), warps, arguments)

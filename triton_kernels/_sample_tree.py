"""The later launches over trees: ``accept_tree`` follows traversal's rule or that of paths, ``sample_tree`` samples."""

import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _edits,
    _launch,
    _laws,
    _math,
    _paths,
    _races,
    _rows,
    _scan_tree,
    _traversal,
    _tree_walk,
    _trees,
    _verdict,
)


@_launch.kernel
def accept_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    inputs: _arguments.Inputs, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: _scan_tree.Memory,
    edits: _edits.LogitEdits, plan: _scan_tree.Plan,
):  # fmt: skip
    """Grid: requests. Follows the rule of traversal or paths from the ``RowStats`` of all rows with children."""
    b = tl.program_id(0).to(tl.int64)
    ALIGNED: tl.constexpr = plan.ALIGNED
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    inverse, greedy, flags = _arguments.load_temperature(target_temperature, entry, 0, live)
    q_inverse, q_greedy = inverse, None
    if plan.SEPARATE_LAW:
        q_inverse, q_greedy, bad_temperature = _arguments.load_temperature(draft_temperature, entry, 0, live)
        flags |= bad_temperature
    if greedy:  # ``scan_tree`` wrote its verdict
        return
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    first_row = nodes * b
    p_start, p_inverse = _rows.start_of(target, b, 0, ALIGNED), inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, first_row)
    q_side = _rows.Side(None)
    if draft.rows is not None:
        q_side = _rows.Side(
            _rows.start_of(draft, entry, 0, ALIGNED), draft.inner, draft.vocab,
            q_inverse if plan.DRAFT == "logits" else None, q_greedy, memory.draft_cuts, first_row, draft_map,
        )  # fmt: skip
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, memory.counters, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    request, pair_stats = walk.request, memory.pair_stats + 4 * first_row
    if plan.FILTERED:
        flags |= tl.load(request + _rows.FLAGS) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)
    end = tl.where(live, nodes, 0)
    if leaves.nodes.data is None:
        node_state = _rows.Memory(walk.records, pair_stats, memory.node_state + _traversal.NODE_WORDS * first_row)
        walked = _traversal.traverse(
            tree, end, max_depth, p_side, q_side, request_edits, node_state, request_noise, _tree_walk.ROW,
            plan.REPLACEMENT, ALIGNED, plan.TILE,
        )  # fmt: skip
    else:
        node_state = _rows.Memory(walk.records, pair_stats, memory.node_state + _paths.NODE_WORDS * first_row)
        chains = _paths.Leaves(
            _arguments.at(leaves.nodes, b, 0), leaves.nodes.inner, tl.cast(leaves.count, tl.int32)
        )  # fmt: skip
        walked = _paths.walk_paths(
            tree, chains, end, max_depth, p_side, q_side, request_edits, node_state, request_noise, _tree_walk.ROW,
            ALIGNED, plan.TILE,
        )  # fmt: skip
    flags |= walked.flags | _trees.check_parents(tree.parents, tree.parents_node, nodes)
    flags |= _edits.request_status(edits, entry, 0, live, vocab)
    tl.store(request + _tree_walk.NODE, walked.node)
    tl.store(request + _tree_walk.NODE_SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
    tl.store(request + _tree_walk.TRIED, walked.tried.to(tl.int32))
    flags |= _tree_walk.finish_path(tree, walked.node, tl.where(live, walked.depth, -1), writer)
    depth = tl.where(idle, -1, walked.depth)
    _tree_walk.finish(walk, depth, flags, depth, writer)


accept_tree_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "accept")


@_launch.kernel
def sample_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    inputs: _arguments.Inputs, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: _scan_tree.Memory,
    edits: _edits.LogitEdits, plan: _scan_tree.Plan,
):  # fmt: skip
    """Grid: requests, splits of a row. Samples a token from the row at the end of the path."""
    b = tl.program_id(0).to(tl.int64)
    ALIGNED: tl.constexpr = plan.ALIGNED
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    inverse, greedy, _reported = _arguments.load_temperature(target_temperature, entry, 0, live)
    q_inverse, q_greedy = inverse, None
    if plan.SEPARATE_LAW:
        q_inverse, q_greedy, _reported = _arguments.load_temperature(draft_temperature, entry, 0, live)
    if greedy:  # ``scan_tree`` wrote its verdict
        return
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    first_row = nodes * b
    p_start, p_inverse = _rows.start_of(target, b, 0, ALIGNED), inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, first_row)
    q_side = _rows.Side(None)
    if draft.rows is not None:
        q_side = _rows.Side(
            _rows.start_of(draft, entry, 0, ALIGNED), draft.inner, draft.vocab,
            q_inverse if plan.DRAFT == "logits" else None, q_greedy, memory.draft_cuts, first_row, draft_map,
        )  # fmt: skip
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, memory.counters, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    request, pair_stats = walk.request, memory.pair_stats + 4 * first_row
    writer = _verdict.Writer(verdict, b)
    split, splits = tl.program_id(1), tl.num_programs(1)
    node, tried = tl.load(request + _tree_walk.NODE), tl.load(request + _tree_walk.TRIED) != 0
    depth = tl.load(request + _tree_walk.FRONT)
    q_row, children = _laws.Row(None), None
    if draft.rows is None:
        children = _trees.Children(tree, node, tl.where(tried, nodes, 0))
    else:
        q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, first_row + node)
        q_row = _laws.Row(_rows.side_row(q_side, node, ALIGNED), q_side.columns, q_law, q_side.map)
    row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
    law = _laws.Law(p_inverse, None, memory.target_cuts, first_row + node, edits.by_row, row_edits, edits)
    p_row = _laws.Row(_rows.side_row(p_side, node, ALIGNED), vocab, law)
    subtracted = tl.load(request + _tree_walk.NODE_SUBTRACTED).to(tl.float32, bitcast=True)
    request_noise = _math.later(request_noise, depth)
    bucket_scales, by_bucket = None, 0.0
    if leaves.nodes.data is not None:
        node_state = memory.node_state + _paths.NODE_WORDS * (first_row + node)
        bucket_scales, by_bucket = node_state + _paths.BUCKET_SCALES, tl.load(node_state + _paths.BY_BUCKET)
    if _races.sample_slice(
        p_row, q_row, pair_stats + 4 * node, subtracted, tried, live, None, children, request, request_noise, split,
        splits, plan.TILE, bucket_scales, by_bucket,
    ):  # fmt: skip
        token, reported, _ = _races.finish_sample(p_row, q_row, tried, live, request, request_noise, plan.TILE)
        flags = _verdict.load_status(writer) | reported | bad_bias
        _rows.barrier()  # all warps have read it
        _verdict.put_token(writer, depth, node, token, live)
        _verdict.put_status(writer, flags)
        for word in tl.static_range(2, 8):
            tl.store(request + word, 0)


sample_tree_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "sample")

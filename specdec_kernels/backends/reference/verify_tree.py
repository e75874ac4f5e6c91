"""Verification of trees of draft tokens: ``walk``, ``traversal`` and ``paths`` have the rules."""

import torch

from specdec_kernels.backends.reference import laws, noise, output_format, paths, requests, traversal, walk
from specdec_kernels.backends.reference.edits import LogitEdits
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def verify_tree(call: "typed.VerifyTree"):
    """Make the drafts of the live requests trees, and walk them by the method's rule."""
    (batch, width), nodes, device = output_format.shape_of(call), call.target.shape[1], call.target.device
    active = requests.of(call, batch, device)
    target_law, bad_temperature = laws.decoded(call.target_law, active)
    draft_law, bad_draft_temperature = laws.decoded(call.draft_law, active)
    counters = active.noise(call.noise)
    if call.input_positions is not None:
        counters = counters._replace(position=call.input_positions[active.rows, 0].long() + 1)
    if call.row_seeds is not None:
        counters = noise.by_node(call, active)
    parents = call.parents.expand(batch, nodes)[active.rows].long()
    node = torch.arange(nodes, device=device, dtype=torch.int64)
    stray = (parents < -1) | (parents >= node)
    drafts = traversal.Trees(
        torch.where(stray, -1, parents), call.draft_tokens[active.rows].long(), call.target[active.rows],
        active.rows.unsqueeze(-1) * nodes + node, None if call.draft is None else call.draft[active.entry],
        call.draft_map,
        call.replacement, width,
    )  # fmt: skip
    edits = LogitEdits(call, active, call.target)
    bad = bad_temperature | stray.any(dim=1) | edits.bad
    if call.draft is not None:
        bad |= bad_draft_temperature
    if call.method in ("traversal", "paths"):
        rule = None if call.leaves is None else paths.Walk(call.leaves[active.rows].long(), counters, width)
        verdict = traversal.decide(drafts, target_law, draft_law, edits, counters, rule)
    else:
        verdict = walk.decide(drafts, target_law, draft_law, edits, counters, call.method == "race")
    tokens, path, num_accepted, status = verdict
    output_format.write(call, active, tokens, path, num_accepted, status | bad.int() * Status.PARAMETER)

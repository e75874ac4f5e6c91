"""Verification of trees of draft tokens: ``walk``, ``traversal`` and ``paths`` have the rules."""

import torch

from specdec_kernels.backends.reference import laws, noise, output_format, paths, requests, traversal, walk
from specdec_kernels.backends.reference.edits import LogitEdits
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def verify_tree(call: "typed.VerifyTree"):
    """Make the drafts of the live requests trees, and have the method's rule decide."""
    (batch, width), nodes, device = output_format.shape_of(call), call.target.shape[1], call.target.device
    who = requests.of(call, batch, device)
    target_law, bad_temperature = laws.decoded(call.target_law, who)
    draft_law, bad_draft_temperature = laws.decoded(call.draft_law, who)
    whose = who.noise(call.noise)
    if call.input_positions is not None:
        whose = whose._replace(position=call.input_positions[who.live, 0].long() + 1)
    if call.row_seeds is not None:
        whose = noise.by_node(call, who)
    parents = call.parents.expand(batch, nodes)[who.live].long()
    node = torch.arange(nodes, device=device, dtype=torch.int64)
    stray = (parents < -1) | (parents >= node)
    drafts = traversal.Trees(
        torch.where(stray, -1, parents), call.draft_tokens[who.live].long(), call.target[who.live],
        who.live.unsqueeze(-1) * nodes + node, None if call.draft is None else call.draft[who.entry], call.draft_map,
        call.replacement, width,
    )  # fmt: skip
    edits = LogitEdits(call, who, call.target)
    bad = bad_temperature | stray.any(dim=1) | edits.bad
    if call.draft is not None:
        bad |= bad_draft_temperature
    if call.method in ("traversal", "paths"):
        rule = None if call.leaves is None else paths.Walk(call.leaves[who.live].long(), whose, width)
        verdict = traversal.decide(drafts, target_law, draft_law, edits, whose, rule)
    else:
        verdict = walk.decide(drafts, target_law, draft_law, edits, whose, call.method == "race")
    tokens, path, num_accepted, status = verdict
    output_format.write(call, who, tokens, path, num_accepted, status | bad.int() * Status.PARAMETER)

"""The law of the token that replaces a rejected one, and how often that happens."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.edits import LogitEdits
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def sides(call):
    """(requests, rows [n, R, V] and law of the target, those of the draft, status) of pairs of rows."""
    batch, inner, _ = call.target.shape
    active = requests.of(call, batch, call.target.device, inner=(inner,))
    target_law, bad_target = laws.decoded(call.target_law, active)
    draft_law, bad_draft = laws.decoded(call.draft_law, active)
    edits = LogitEdits(call, active, call.target)
    target, draft = edits.rows(call.target[active.rows]), call.draft[active.entry]
    unfit = laws.unfit(target, target_law.space) | laws.unfit(draft, draft_law.space)
    bad = bad_target | bad_draft | edits.bad
    status = unfit.int() * Status.NON_FINITE | bad.int() * Status.PARAMETER
    return active, (target, target_law), (draft, draft_law), status


def residual(call: "typed.Residual"):
    """norm((p - a q)+), and the mass sum (p - a q)+: the probability that a token is drawn from it."""
    # An empty residual gives p and 0.
    active, target, draft, status = sides(call)
    p = laws.probabilities(*target)
    q = laws.widened(laws.probabilities(*draft), call.target.shape[-1], call.draft_map)
    draft_prob, bad_draft_prob = laws.draft_probs(active.numbers(call.draft_prob, torch.float32))
    excess = laws.residual_weights(p, q, draft_prob)
    total = excess.sum(dim=-1, keepdim=True)
    active.write(call.probs, torch.where(total > 0, excess / total, p))
    active.write(call.mass, total.squeeze(-1))
    empty = (total == 0).squeeze(-1).int() * Status.EMPTY_RESIDUAL
    active.report(call.status, status | empty | bad_draft_prob.int() * Status.PARAMETER)

"""The law of the token that replaces a rejected one, and how often that happens."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.status import Status


def pair(call):
    """(requests, p and q [n, R, V] of pairs of rows, the tokens that p's filters and edits keep, status)."""
    batch, inner, vocabulary = call.target.shape
    who = requests.of(call, batch, call.target.device, inner=(inner,))
    target_law, bad_target = laws.decoded(call.target_law, who)
    draft_law, bad_draft = laws.decoded(call.draft_law, who)
    edits = Edits(call, who, call.target)
    target, draft = edits.rows(call.target[who.live]), call.draft[who.entry]
    p = laws.probabilities(target, target_law)
    q = laws.widened(laws.probabilities(draft, draft_law), vocabulary, call.draft_map)
    unfit = laws.unfit(target, target_law.space) | laws.unfit(draft, draft_law.space)
    kept = laws.kept(target, target_law, edits.on)
    bad = bad_target | bad_draft | edits.bad
    return who, p, q, kept, unfit.int() * Status.NON_FINITE | bad.int() * Status.PARAMETER


def residual(call):
    """norm((p - a q)+), and the probability (1 - a) + sum (a q - p - eps)+ that a token is drawn from it.

    If nothing is left: p and 0. eps is 0 for tokens that filters drop or edits forbid.
    """
    who, p, q, kept, status = pair(call)
    draft_prob, bad_draft_prob = laws.draft_probs(who.numbers(call.draft_prob, torch.float32))
    epsilon, bad_epsilon = laws.epsilons(who.numbers(call.epsilon, torch.float32))
    excess = laws.residual_weights(p, q, draft_prob)
    total = excess.sum(dim=-1, keepdim=True)
    who.write(call.probs, torch.where(total > 0, excess / total, p))

    draft_prob, epsilon = draft_prob.unsqueeze(-1), torch.where(kept, epsilon.unsqueeze(-1), 0.0)
    rejected = (draft_prob * q - p - epsilon).clamp(min=0.0).sum(dim=-1, keepdim=True)
    who.write(call.mass, torch.where(total > 0, 1 - draft_prob + rejected, 0.0).squeeze(-1))
    if call.status is not None:
        status |= (bad_draft_prob | bad_epsilon).int() * Status.PARAMETER
        status |= (total == 0).squeeze(-1).int() * Status.EMPTY_RESIDUAL
        who.write(call.status, status, outside=Status.PARAMETER)

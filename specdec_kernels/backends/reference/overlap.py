"""The overlap of a draft law with a target law."""

import torch

from specdec_kernels._constants import LEAST_LOG_PROB
from specdec_kernels.backends.reference import laws
from specdec_kernels.backends.reference.residual import sides
from specdec_kernels.calls import typed


def overlap(call: "typed.Overlap"):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q) of each pair of rows."""
    active, target, draft, status = sides(call)
    p, log_p = laws.probabilities(*target), laws.log_probabilities(*target)
    q, log_q = (
        laws.widened(of_draft, call.target.shape[-1], call.draft_map, nothing)
        for of_draft, nothing in ((laws.probabilities(*draft), 0.0), (laws.log_probabilities(*draft), -torch.inf))
    )
    log_q = torch.where(log_q > -torch.inf, log_q.clamp(min=LEAST_LOG_PROB), log_q)
    active.write(call.accept, torch.minimum(p, q).sum(dim=-1))
    active.write(call.tv, (p - q).abs().sum(dim=-1) / 2)
    active.write(call.kl, torch.where(p > 0, p * (log_p - log_q), 0.0).sum(dim=-1))
    active.write(call.harmonic, torch.where(p * q > 0, p * q / (p + q), 0.0).sum(dim=-1))
    active.report(call.status, status)

"""Log-probabilities and ranks of tokens."""

import torch

from specdec_kernels.backends.reference import laws
from specdec_kernels.backends.reference.edits import edited_rows
from specdec_kernels.backends.reference.tree_mask import packed
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def logprobs(call: "typed.Logprobs"):
    """log softmax over the support, how many of its tokens are as large, and the largest of all."""
    active, rows, law, bad = edited_rows(call)
    token, vocabulary = call.tokens[active.rows].long(), rows.shape[-1]
    greedy = (law.temperature == 0).unsqueeze(-1)
    logs = laws.log_weights(rows, law)
    normalised = laws.log_probabilities(rows, law)
    best = torch.zeros_like(logs, dtype=torch.bool).scatter(-1, logs.argmax(dim=-1, keepdim=True), True)
    best &= logs > -torch.inf

    valid = (token >= 0) & (token < vocabulary)
    at = torch.where(valid, token, 0).unsqueeze(-1)
    token_logit = logs.gather(-1, at)
    rank = torch.where(token_logit > -torch.inf, (logs >= token_logit).sum(dim=-1, keepdim=True), 0)
    rank = torch.where(greedy & best.gather(-1, at), 1, rank).squeeze(-1)
    active.write(call.logprob, torch.where(valid, normalised.gather(-1, at).squeeze(-1), -torch.inf), *[-torch.inf] * 2)
    active.write(call.rank, torch.where(valid, rank, 0))

    top = call.top_tokens.shape[-1]
    ordered, order = torch.where(greedy & ~best, -torch.inf, logs).sort(dim=-1, descending=True, stable=True)
    order = torch.where(ordered > -torch.inf, order, -1)[..., :top]
    top_logprobs = normalised.gather(-1, order.clamp(min=0))
    active.write(call.top_tokens, order, idle=-1, outside=-1)
    active.write(call.top_logprobs, torch.where(order >= 0, top_logprobs, -torch.inf), *[-torch.inf] * 2)
    read = (token != -1) | (top > 0)
    if call.support_bits is not None:
        in_support = torch.where(greedy, best, logs > -torch.inf) & read.unsqueeze(-1)
        active.write(call.support_bits, packed(in_support))
        active.write(call.support_size, in_support.sum(dim=-1).to(torch.int32))
    status = (laws.unfit(rows, law.space) & read).int() * Status.NON_FINITE | bad.int() * Status.PARAMETER
    active.report(call.status, status | (~valid & (token != -1)).int() * Status.TOKEN_RANGE)

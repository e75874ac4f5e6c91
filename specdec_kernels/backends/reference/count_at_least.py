"""How many tokens of rows are at least as large as a number."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.edits import Edits


def count_at_least(call):
    """The tokens with x >= ``least``; none where that is -inf or NaN."""
    batch, inner, _ = call.rows.shape
    who = requests.of(call, batch, call.rows.device, inner=(inner,))
    law, _ = laws.decoded(call.law, who)
    x = laws.scaled(Edits(call, who, call.rows).rows(call.rows[who.live]), law.temperature)
    least = call.least.view(batch, inner)[who.live].unsqueeze(-1)
    who.write(call.counts, ((x >= least) & (least > -torch.inf)).sum(dim=-1))

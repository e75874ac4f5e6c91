"""The logits of some tokens in rows, after edits."""

import torch

from specdec_kernels.backends.reference import parts, requests
from specdec_kernels.backends.reference.edits import Edits


def token_logits(call):
    """Of each token [n, m] in the row at its place; 0 where there is none."""
    batch, inner, size = call.rows.shape
    who = requests.Requests(None, batch, batch, call.rows.device, inner=(inner,))
    rows = Edits(call, who, call.rows).rows(call.rows).flatten(0, 1).float()
    places = torch.arange(len(call.tokens), device=rows.device) if call.places is None else call.places.long()
    columns = call.tokens.long() - call.vocab_start
    there = parts.has(call.rows, places).unsqueeze(-1) & (columns >= 0) & (columns < size)
    found = rows.new_zeros(columns.shape)
    places, each = places.unsqueeze(-1).expand(columns.shape)[there], columns[there]
    found[there] = rows[places, each]
    call.logits.copy_(found)

"""Parts of rows by their definition: edited rows, and the support of their filters, written out."""

from types import SimpleNamespace

import torch

from specdec_kernels.backends.reference.edits import LogitEdits as Dense
from specdec_kernels.backends.reference.requests import Requests
from specdec_kernels.calls.values import Law
from specdec_kernels.ops import _edits, cutoff
from tests.support.edits import random_edits

LARGEST = torch.finfo(torch.float32).max


def edited(rows, edits):
    """Rows [..., n] with the edits of each, in float32."""
    lead, folded = rows.shape[:-1], rows.reshape(-1, 1, rows.shape[-1]) if rows.ndim == 2 else rows
    found = _edits.of_rows(edits, Law("logits", 1.0), rows, folded, lead, folded.shape[:2])
    who = Requests(None, len(folded), len(folded), rows.device, inner=folded.shape[1:2])
    return Dense(SimpleNamespace(edits=found), who, folded).rows(folded).float().view(rows.shape)


def cut_words(rows, sampling, factor, first=0, edits=None):
    """int32 [..., 3]: the filters' cuts of rows, for parts that begin with ``first``, as residual_race takes them."""
    cut = cutoff(rows, sampling=sampling, edits=edits)
    factor = torch.full_like(cut.value, factor)
    return torch.stack([cut.value.view(torch.int32), (cut.last - first).int(), factor.view(torch.int32)], dim=-1)


def support_of(rows, words, first=0):
    """Rows [P, n] with -inf where words [P, 3] drop a token."""
    value, last, factor = words.unsqueeze(-1).unbind(1)
    v = rows.float() * factor.contiguous().view(torch.float32)
    v = v.nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf)
    value = value.contiguous().view(torch.float32)
    return torch.where((v > value) | ((v == value) & (torch.arange(rows.shape[-1]) <= last)), rows, -torch.inf)


def edits_of(*lead, vocabulary, seed):
    """Random edits, with an entry for each row of [*lead, vocabulary]."""
    flat = random_edits(torch.Size(lead).numel(), vocabulary=vocabulary, seed=seed)
    return flat._replace(**{
        name: x.unflatten(0, lead) for name, x in flat._asdict().items() if isinstance(x, torch.Tensor) and x.ndim
    })  # fmt: skip

"""The rows of a batch of chains."""

import functools

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.ops.verify_chain import check_ragged, ragged_width
from specdec_kernels.sharded import _cached_tensors as cached


class Chains:
    """The request and the draft of each row of a batch of chains, padded or ragged."""

    def __init__(self, draft_tokens, target, cu_drafts, max_drafts):
        ragged = cu_drafts is not None
        inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 1 if ragged else 2)
        inputs.check_rows("target", target, 2 if ragged else 3)
        self.draft_tokens, self.cu_drafts, self.max_drafts = draft_tokens, cu_drafts, max_drafts
        device = target.device
        if ragged:
            self.batch, drafts = check_ragged(cu_drafts, False, draft_tokens, target, last_rows=1)
            requests = torch.arange(self.batch, device=device, dtype=torch.int64)
            self.first_draft = cu_drafts[:-1].long()
            first_row = self.first_draft + requests
            rows = torch.arange(drafts + self.batch, device=device, dtype=torch.int64)
            self.request = self._owner(cu_drafts[1:] + requests + 1, rows)
            self.step = rows - first_row[self.request] if self.batch else rows
            draft = rows[:drafts]
            self.draft_rows = draft + self._owner(cu_drafts[1:], draft)
            self.slots = cu_drafts.diff().long().clamp(max=drafts if max_drafts is None else max_drafts)
            return
        self.batch, width = draft_tokens.shape
        if target.shape[:-1] != (self.batch, width + 1):
            raise ValueError(f"target: expected shape [{self.batch}, {width + 1}, n]; got {inputs.shown(target)}")
        self.request, self.step = cached.owners(self.batch, width + 1, device), cached.steps(width + 1, 1, device)
        self.width = width

    def _owner(self, ends, indices):
        """The request of each index: request b ends before ``ends[b]``."""
        return torch.searchsorted(ends, indices.to(ends.dtype), right=True).clamp(max=max(self.batch - 1, 0))

    def at_drafts(self, of_rows):
        """Values of rows, gathered at the row of each draft."""
        return of_rows[:, :-1] if self.cu_drafts is None else of_rows[self.draft_rows]

    def slot_numbers(self, requests, x):
        """``draft_prob`` of the entries for the requests, as verify_chain takes it."""
        of_slots = self.cu_drafts is not None and isinstance(x, torch.Tensor) and x.ndim == 1  # one for each slot
        return x if of_slots else requests.of_requests(x)

    @functools.cached_property
    def most(self):
        """The most drafts of a request: one less than the verdict has columns."""
        if self.cu_drafts is None:
            return self.width
        return ragged_width(self.cu_drafts, False, len(self.draft_tokens), self.max_drafts, None)

    @functools.cached_property
    def tokens(self):
        """The draft of each row; -1 for a request's last row."""
        return self.at_rows(self.draft_tokens, -1)

    def at_rows(self, of_drafts, last):
        """Values of drafts, gathered at the row of each; ``last`` for a request's last row."""
        if self.cu_drafts is None:
            return torch.cat([of_drafts, cached.filled(last, of_drafts, self.batch, 1)], dim=-1)
        rows = of_drafts.new_full(self.request.shape, last)
        rows[self.draft_rows] = of_drafts
        return rows

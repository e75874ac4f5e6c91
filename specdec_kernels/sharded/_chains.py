"""verify_chain over a vocabulary of which each rank has a slice.

What a walk asks of wide rows is found first. Then the walk itself is that of ``specdec_kernels.verify_chain``, on rows
of two tokens: 0 is the draft of the row's slot, 1 stands for all others.
"""

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Verdict
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._types import Counter, Method, Number, Space
from specdec_kernels.sampling import Edits, Sampling
from specdec_kernels.sharded._checks import refuse, written
from specdec_kernels.sharded._races import race
from specdec_kernels.sharded._requests import Requests, any_bits
from specdec_kernels.sharded._shard import VocabShard
from specdec_kernels.status import Status


class Chains:
    """Which row belongs to which request and draft, padded or ragged."""

    def __init__(self, draft_tokens, target, cu_drafts, max_drafts):
        ragged = cu_drafts is not None
        inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 1 if ragged else 2)
        inputs.check_rows("target", target, 2 if ragged else 3)
        self.cu_drafts, self.max_drafts, device = cu_drafts, max_drafts, target.device
        if ragged:
            inputs.check_tensor("cu_drafts", cu_drafts, (torch.int32,), 1)
            self.batch, drafts = len(cu_drafts) - 1, len(draft_tokens)
            if target.shape[0] != drafts + self.batch:
                raise ValueError(f"target: expected {drafts + self.batch} rows (D + B); got {inputs.shown(target)}")
            own = torch.arange(self.batch, device=device)
            self.first = (cu_drafts[:-1] + own).long()  # rows of the requests
            rows = torch.arange(drafts + self.batch, device=device)
            self.request = self._owner(cu_drafts[1:] + own + 1, rows)
            self.step = rows - self.first[self.request] if self.batch else rows
            draft = rows[:drafts]
            self.draft_rows = draft + self._owner(cu_drafts[1:], draft)
            self.sound = (cu_drafts[:-1] >= 0) & (cu_drafts[1:] >= cu_drafts[:-1]) & (cu_drafts[1:] <= drafts)
            return
        self.batch, width = draft_tokens.shape
        if target.shape[:-1] != (self.batch, width + 1):
            raise ValueError(f"target: expected shape [{self.batch}, {width + 1}, n]; got {inputs.shown(target)}")
        self.request = torch.arange(self.batch, device=device).unsqueeze(-1).expand(self.batch, width + 1)
        self.step = torch.arange(width + 1, device=device)

    def _owner(self, ends, places):
        """The request of each place, if those before ``ends[b]`` are of requests up to b."""
        return torch.searchsorted(ends, places.to(ends.dtype), right=True).clamp(max=max(self.batch - 1, 0))

    def at_drafts(self, of_rows):
        """What rows have, for the row of each draft."""
        return of_rows[:, :-1] if self.cu_drafts is None else of_rows[self.draft_rows]

    def at_rows(self, of_drafts, last):
        """What drafts have, for the row of each; ``last`` for the rows after them."""
        rows = of_drafts.new_full(self.request.shape, last)
        self.at_drafts(rows)[:] = of_drafts if self.cu_drafts is None else 0
        if self.cu_drafts is not None:
            rows[self.draft_rows] = of_drafts
        return rows

    def by_request(self, of_rows, width):
        """[B, width] of what rows have."""
        if self.cu_drafts is None:
            return of_rows
        at = self.first.unsqueeze(-1) + torch.arange(width, device=of_rows.device)
        return of_rows[at.clamp(0, max(len(of_rows) - 1, 0))]


def short(draft_tokens, vocab):
    """Drafts in a vocabulary of two tokens, in which each is 0; out of its range if they were."""
    inside = (draft_tokens >= 0) & (draft_tokens < vocab)
    return torch.where(inside, 0, torch.where(draft_tokens == -1, -1, 2))


def two(first):
    """Rows of two probabilities: of the draft, and of the others if the draft has none."""
    return torch.stack([first, (first == 0).float()], dim=-1)


def verify_chain(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | None = None,
    *,
    shard: VocabShard,
    method: Method = "rejection",
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: Edits | None = None,
    draft_space: Space | None = None,
    draft_sampling: Sampling | None = None,
    draft_map: torch.Tensor | None = None,
    draft_prob: Number = 1.0,
    epsilon: Number = 0.0,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    cu_drafts: torch.Tensor | None = None,
    max_drafts: int | None = None,
    out=None,
    check: bool = False,
) -> Verdict:
    """``specdec_kernels.verify_chain`` on slices of rows: the same verdict, bit for bit, on every rank.

    Parameters
    ----------
    target : Tensor
        [B, K+1, n], or [D+B, n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    draft_tokens, draft, ...
        As for ``specdec_kernels.verify_chain``; ``draft`` has this rank's columns, too.

    Returns
    -------
    Verdict

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.
    """
    refuse("verify_chain", edits=edits, draft_map=draft_map)
    inputs.check_choice("method", method, ("rejection", "race"))
    chains = Chains(draft_tokens, target, cu_drafts, max_drafts)
    shard.check("verify_chain", target)
    noise = (seed, position, nonce)
    requests = Requests(
        chains.batch, chains.request, chains.step, request_index, noise,
        (temperature, sampling, draft, draft_sampling, draft_prob, epsilon),
    )  # fmt: skip
    law = {"space": space, "temperature": requests.of_rows(temperature), "sampling": requests.of_rows(sampling)}
    if method == "race":
        if draft is not None:
            raise ValueError("draft: expected None with method='race', which needs no draft laws")
        verdict = _race(chains, requests, shard, draft_tokens, target, law, draft_prob, epsilon)
    return written("verify_chain", verdict, out, check)


def _race(chains, requests, shard, draft_tokens, target, law, draft_prob, epsilon):
    winners, met = race(shard, target, **law, **requests.noise_of_rows())
    won = (chains.at_drafts(winners) == draft_tokens).float()
    walked = ops.verify_chain(
        short(draft_tokens, shard.vocab), two(chains.at_rows(won, 0.0)), method="race", space="probs",
        temperature=0.0, draft_prob=draft_prob, epsilon=epsilon, request_index=requests.index,
        cu_drafts=chains.cu_drafts, max_drafts=chains.max_drafts, **requests.noise_of_requests(),
    )  # fmt: skip
    width = walked.tokens.shape[-1]
    emitted = torch.arange(width, device=target.device) <= walked.num_accepted.unsqueeze(-1)
    tokens, met = chains.by_request(winners, width), chains.by_request(met, width)
    if chains.cu_drafts is not None:
        tokens, met = (torch.where(chains.sound.unsqueeze(-1), x, 0) for x in (tokens, met))
    status = walked.status & (Status.TOKEN_RANGE | Status.PARAMETER) | any_bits(met, emitted)
    return Verdict(torch.where(emitted, tokens, -1), walked.num_accepted, status)

"""verify_tree over a vocabulary of which each rank has a slice.

The walk is that of ``specdec_kernels.verify_tree``, on rows of a short vocabulary: token j stands for the token of
draft j, if no draft before has the same, and the last one for all others.
"""

import torch

from specdec_kernels import ops
from specdec_kernels.ops import TreeVerdict
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._types import Counter, Number, Space, TreeMethod
from specdec_kernels.sampling import Edits, Sampling
from specdec_kernels.sharded._checks import refuse, written
from specdec_kernels.sharded._edits import of_trees
from specdec_kernels.sharded._filters import SMALLEST
from specdec_kernels.sharded._laws import check_draft, draft_law_of, law_of, parameters
from specdec_kernels.sharded._races import race
from specdec_kernels.sharded._rejection_trees import verify
from specdec_kernels.sharded._requests import Requests, any_bits
from specdec_kernels.sharded._shard import VocabShard
from specdec_kernels.status import Status


class ShortVocabulary:
    """The tokens of each request's drafts, numbered by the first node that has them. The root's does not count."""

    def __init__(self, draft_tokens, vocab):
        self.drafts = draft_tokens.clone()
        self.drafts[:, :1] = -1
        self.size = draft_tokens.shape[1] + 1
        inside = (self.drafts >= 0) & (self.drafts < vocab)
        outside = torch.where(self.drafts == -1, -1, self.size)
        self.draft_tokens = torch.where(inside, self.of(self.drafts), outside)

    def of(self, tokens):
        """Tokens [B, n] in it; the last one for those that no draft has."""
        same = tokens.unsqueeze(-1) == self.drafts.unsqueeze(1)
        first = torch.where(same, torch.arange(self.size - 1, device=tokens.device), self.size - 1)
        return first.amin(dim=-1)


def verify_tree(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | None = None,
    *,
    shard: VocabShard,
    parents: torch.Tensor,
    method: TreeMethod = "rejection",
    replacement: bool = False,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: Edits | None = None,
    draft_space: Space | None = None,
    draft_sampling: Sampling | None = None,
    draft_map: torch.Tensor | None = None,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    max_depth: int | None = None,
    out=None,
    check: bool = False,
) -> TreeVerdict:
    """``specdec_kernels.verify_tree`` on slices of rows: the same verdict, bit for bit, on every rank.

    Parameters
    ----------
    target : Tensor
        [B, N, n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    draft_tokens, draft, parents, ...
        As for ``specdec_kernels.verify_tree``; ``draft`` has this rank's columns, too.

    Returns
    -------
    TreeVerdict

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.
    """
    refuse("verify_tree", draft_map=draft_map)
    inputs.check_choice("method", method, ("rejection", "race", "traversal"))
    if draft is not None and method == "race":
        raise ValueError("draft: expected None with method='race', which needs no draft laws")
    if method != "race":
        shard.check_tiles(f"method={method!r}")
        p_law = law_of("sampling", space, temperature, sampling)
        q_law = draft_law_of(draft_space or space, draft_sampling, p_law)
    inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 2)
    inputs.check_rows("target", target, 3)
    if target.shape[:2] != draft_tokens.shape:
        raise ValueError(
            f"target: expected shape [{', '.join(map(str, draft_tokens.shape))}, n]; got {inputs.shown(target)}"
        )
    if draft is not None:
        check_draft(draft, target, (draft_tokens.shape[1],))
    if max_depth is None and out is not None:
        max_depth = out[0].shape[1] - 1
    shard.check("verify_tree", target)
    batch, nodes = draft_tokens.shape
    depth = ops.tree_positions(parents, prefix_len=0)
    request = torch.arange(batch, device=target.device).unsqueeze(-1).expand(batch, nodes)
    noise = (seed, position, nonce)
    requests = Requests(
        batch, request, depth, request_index, noise,
        (temperature, sampling, draft, draft_sampling, *edit.lists(edits, target)),
    )  # fmt: skip
    if edits is not None:
        edits = of_trees(edits, shard, draft_tokens, parents, depth, requests, target, space)
    if method != "race" and not isinstance(p_law.temperature, torch.Tensor) and p_law.temperature < SMALLEST:
        method, temperature, sampling = "race", 0.0, None  # the argmax decides
    if method != "race":
        verdict = verify(
            requests, shard, draft_tokens, target, edits, draft, p_law, q_law, parents, method, replacement, max_depth
        )
        if (bits := parameters(requests, p_law, draft_sampling)) is not None:
            verdict = verdict._replace(status=verdict.status | bits)
        return written("verify_tree", verdict, out, check)

    law = {"space": space, "temperature": requests.of_rows(temperature), "sampling": requests.of_rows(sampling)}
    winners, met = race(shard, target, edits=edits, **law, **requests.noise_of_rows())
    known = ShortVocabulary(draft_tokens, shard.vocab)
    rows = torch.nn.functional.one_hot(known.of(winners), known.size).float()
    walked = ops.verify_tree(
        known.draft_tokens, rows, parents=parents, method="race", replacement=replacement, space="probs",
        temperature=0.0, request_index=requests.index, max_depth=max_depth, **requests.noise_of_requests(),
    )  # fmt: skip
    on_path, path = walked.path >= 0, walked.path.clamp(min=0).long()
    status = walked.status & (Status.TOKEN_RANGE | Status.PARAMETER) | any_bits((met.gather(1, path), on_path))
    tokens = torch.where(on_path, winners.gather(1, path), -1)
    return written("verify_tree", TreeVerdict(tokens, walked.path, walked.num_accepted, status), out, check)

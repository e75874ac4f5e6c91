"""The rule that decides from the leaves up: ``traversal`` on trees, ``block`` on chains, which are trees.

Laws, uniforms and draws are computed for all requests at once. The walk is done for one request after the other, on
NumPy's rows, step by step as in the papers: Weng et al. 2025 (traversal), Sun et al. 2024 (block).
"""

from typing import NamedTuple

import numpy as np
import torch

from specdec_kernels._constants import LEAF_UNIFORMS
from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Law, Noise
from specdec_kernels.status import Status


class Trees(NamedTuple):
    """The trees of n requests, with N nodes each: node 0 is the root."""

    parents: torch.Tensor  # int64 [n, N], -1: the root, or absent
    tokens: torch.Tensor  # int64 [n, N], -1: absent
    target: torch.Tensor  # [n, N, V]
    row_indices: torch.Tensor  # int64 [n, N]: these rows among all of the target's
    draft: torch.Tensor | None  # [n, N, V']
    draft_map: torch.Tensor | None
    replacement: bool
    width: int  # deeper nodes than width - 1 count as absent


def decide(drafts: Trees, target_law: Law, draft_law: Law, edits, counters: Noise, walk=None):
    """(tokens [n, width], path [n, width], num_accepted [n], status [n]) of every tree."""
    # ``walk(request, b)`` replaces ``Request.traverse`` for request b.
    count, nodes = drafts.tokens.shape
    device, vocabulary = drafts.target.device, drafts.target.shape[-1]
    everyone = torch.arange(count, device=device, dtype=torch.int64)
    depths, said = paths(drafts)
    rows = [rows_at(node, drafts, target_law, draft_law, edits, said) for node in range(nodes)]
    uniforms = [
        noise.uniforms(
            noise.at(counters, everyone, depths[:, node] - 1), noise.UNIFORM, LEAF_UNIFORMS + node - 1
        ).tolist()
        for node in range(1, nodes)
    ]

    tokens, path = torch.full((2, count, drafts.width), -1, device=device, dtype=torch.int64)
    num_accepted, status = torch.zeros(2, count, dtype=torch.int64, device=device)
    weights = torch.zeros(count, vocabulary, dtype=torch.float64, device=device)
    parents, drafted = drafts.parents.tolist(), drafts.tokens.tolist()
    for b in range(count):
        request = Request(
            parents[b], drafted[b], [Rows._make(None if part is None else part[b] for part in row) for row in rows],
            [0.0] + [uniform[b] for uniform in uniforms], drafts.draft is None, drafts.replacement, drafts.width - 1,
        )  # fmt: skip
        accepted, law = walk(request, b) if walk else request.traverse()
        path[b, : len(accepted)] = torch.tensor(accepted, dtype=torch.int64, device="cpu")
        tokens[b, : len(accepted) - 1] = drafts.tokens[b, accepted[1:]]
        num_accepted[b], status[b] = len(accepted) - 1, request.status
        weights[b] = torch.from_numpy(law)
    last = noise.arrivals(noise.at(counters, everyone, num_accepted), noise.RESIDUAL, vocabulary)
    tokens[everyone, num_accepted] = laws.draw(weights, last)
    return tokens, path, num_accepted, status


def paths(drafts):
    """(depth of every node, int64 [n, N]; the tokens from the root to it, int64 [n, N, N], -1 where there is none)."""
    parents, everyone = (
        drafts.parents.clamp(min=0),
        torch.arange(len(drafts.parents), device=drafts.parents.device, dtype=torch.int64),
    )
    valid = (drafts.tokens >= 0) & (drafts.tokens < drafts.target.shape[-1])
    tokens = torch.where(valid, drafts.tokens, -1)
    depths = torch.zeros_like(parents)
    said = torch.full((*tokens.shape, tokens.shape[1]), -1, device=tokens.device, dtype=torch.int64)
    for node in range(1, tokens.shape[1]):
        parent = parents[:, node]
        depths[:, node], said[:, node] = depths[everyone, parent] + 1, said[everyone, parent]
        said[everyone, node, depths[:, node] - 1] = tokens[:, node]
    return depths, said


class Rows(NamedTuple):
    """The rows of a node, of one request or of all: their laws, and the faults that a read reports in the status."""

    p: np.ndarray  # float64 [V]
    q: np.ndarray | None  # float64 [V] over the target's vocabulary; None: children are certain
    sampled: np.ndarray  # bool: the temperature is not 0
    empty: np.ndarray  # bool: no token of the target's row has weight, which ends the chain or branch
    unfit_target: np.ndarray  # bool: the row is no law
    unfit_draft: np.ndarray
    odd: np.ndarray  # bool [V]: impossible values, where a row may be read at one token alone; else of the whole row
    bad_edits: np.ndarray  # bool: the row's bias is bad


def rows_at(node, drafts, target_law, draft_law, edits, said):
    """The Rows of this node of all requests."""
    everyone = torch.arange(len(drafts.tokens), device=drafts.tokens.device, dtype=torch.int64)
    target, bad = edits.rows_at(drafts.target[:, node], everyone, drafts.row_indices[:, node], said[:, node])
    sampled = target_law.temperature > 0
    p, unfit_target = laws.probabilities(target, target_law), laws.unfit(target, target_law.space)
    odd = odd_tokens(laws.non_finite(target, target_law.space), unfit_target, target_law)
    q, unfit_draft = None, torch.zeros_like(unfit_target)
    if drafts.draft is not None:
        draft, wide = drafts.draft[:, node], (target.shape[-1], drafts.draft_map)
        q = laws.widened(laws.probabilities(draft, draft_law), *wide)
        unfit_draft = laws.unfit(draft, draft_law.space) & sampled
        odd_values = laws.widened(laws.non_finite(draft, draft_law.space), *wide)
        odd |= odd_tokens(odd_values, unfit_draft, draft_law) & sampled.unsqueeze(-1)
    rows = (p, q, sampled, laws.empty(target, target_law), unfit_target, unfit_draft, odd, bad)
    return Rows._make(None if part is None else part.cpu().numpy() for part in rows)


def odd_tokens(odd_values, unfit, law):
    """The tokens at which a read of that token alone sets the status. Logits and an argmax read the whole row."""
    by_token = (law.temperature > 0).unsqueeze(-1) & (law.space == "probs")
    return torch.where(by_token, odd_values, unfit.unsqueeze(-1))


class Request:
    """A tree, the rows and uniforms of its nodes, and the status so far."""

    def __init__(self, parents, tokens, rows, uniforms, certain, replacement, max_depth):
        self.parents, self.tokens, self.rows, self.uniforms = parents, tokens, rows, uniforms
        self.certain, self.replacement, self.max_depth = certain, replacement, max_depth
        self.vocabulary, self.status = len(rows[0].p), 0

    def traverse(self):
        """(the nodes from the root to the one accepted, weights [V] of the token that follows it)."""
        path = [PathEntry(self, 0, 1.0)]
        while True:
            entry = path[-1]
            child = entry.next_child(depth=len(path) - 1)
            if child is not None:
                path.append(PathEntry(self, child, entry.weight_of(self.tokens[child])))
            elif len(path) == 1 or entry.accepts(self.uniforms[entry.node]):
                return [entry.node for entry in path], entry.left()
            else:
                path.pop()
                path[-1].remove(self.tokens[entry.node])

    def in_vocabulary(self, token):
        return 0 <= token < self.vocabulary

    def read(self, node, *, draft, token=None):
        """Report a read of a node's rows in the status: all of them, or of probabilities this token alone."""
        rows = self.rows[node]
        wrong = rows.unfit_target | (rows.unfit_draft & draft) if token is None else rows.odd[token]
        self.status |= int(wrong) * Status.NON_FINITE | int(rows.bad_edits) * Status.PARAMETER


class PathEntry:
    """A node on the path: its weight alpha, and its laws p and q after children were removed."""

    def __init__(self, request, node, weight):
        rows = request.rows[node]
        self.request, self.node, self.weight = request, node, weight
        self.p, self.q = rows.p, rows.q if rows.sampled else np.zeros_like(rows.p)
        self.after, self.removed = node, []
        self.before = None  # the weight before the last removed child, until the sums over both rows are computed

    def next_child(self, depth):
        """The first remaining child; None where there is none, or none that could be accepted."""
        request = self.request
        if not self.removed and self.weight < laws.SMALLEST:
            return None
        for child in range(self.after + 1, len(request.parents)):
            token = request.tokens[child]
            if request.parents[child] != self.node or token == -1:
                continue
            if depth == request.max_depth:
                request.status |= Status.PARAMETER
                return None
            if self.ends():
                return None
            # The draft draws no token twice without replacement: a repeated one was not drawn from the remaining q.
            if token in self.removed and (request.certain or not request.replacement):
                continue
            self.sum_up()
            if self.weight < laws.SMALLEST:
                return None
            self.after = child
            return child
        return None

    def ends(self):
        """Whether the target's row has no weight: then the drafts after the node count as absent."""
        rows = self.request.rows[self.node]
        if rows.empty:
            self.request.status |= int(rows.bad_edits) * Status.PARAMETER
        return bool(rows.empty)

    def sum_up(self):
        """Read the rows whose sums make the weight, after a child was removed."""
        if self.before is not None:
            self.request.read(self.node, draft=True)
        self.before = None

    def accepts(self, uniform):
        """Whether this leaf is accepted. Its weight only falls: where an earlier one refuses it, rows are not read."""
        if self.before is not None and uniform >= self.before:
            return False
        self.sum_up()
        return uniform < self.weight

    def weight_of(self, x):
        """min(1, alpha p(x) / q(x)) of the remaining laws; 0 for a token that was not drawn from q."""
        request, rows = self.request, self.request.rows[self.node]
        if not request.in_vocabulary(x):
            request.status |= Status.TOKEN_RANGE
            return 0.0
        request.read(self.node, draft=True, token=None if self.removed and not request.certain else x)
        q = 1.0 if request.certain or not rows.sampled else self.q[x]
        return min(1.0, self.weight * self.p[x] / q) if q > 0 else 0.0

    def remove(self, x):
        """Remove a child: the remaining p is norm((alpha p - q)+), the remaining q norm(q without x)."""
        request = self.request
        if self.weight < laws.SMALLEST:
            self.weight = 0.0
            return
        self.removed.append(x if request.in_vocabulary(x) else None)
        drafted = self.q
        if request.certain and request.rows[self.node].sampled:
            drafted = (np.arange(request.vocabulary) == x).astype(float)
        elif not request.certain:
            self.before = self.weight
        left = (self.weight * self.p - drafted).clip(min=0.0)
        residual_mass = left.sum()
        rest = residual_mass + 1.0 - self.weight
        self.weight = min(1.0, residual_mass / rest) if rest > 0 else 1.0
        self.p = normalised(left)
        if not request.certain and not request.replacement:
            self.q = normalised(np.where(np.isin(np.arange(request.vocabulary), self.removed), 0.0, self.q))

    def left(self):
        """Weights of the token after this node: the remaining p, or p itself where that is empty."""
        request = self.request
        request.read(self.node, draft=bool(self.removed))
        if self.p.any():
            return self.p
        request.status |= bool(self.removed) * Status.EMPTY_RESIDUAL
        return request.rows[self.node].p


def normalised(weights):
    """Weights divided by their sum; all zero if they have none."""
    weights = np.where(weights < laws.SMALLEST, 0.0, weights)
    return weights / max(weights.sum(), laws.SMALLEST)

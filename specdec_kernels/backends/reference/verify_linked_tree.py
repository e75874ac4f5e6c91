"""Walks through trees by their links, and by uniforms or tokens that may be given: request by request, node by node."""

import torch

from specdec_kernels.backends.reference import laws, noise, output_format, requests
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def verify_linked_tree(call: "typed.VerifyLinkedTree"):
    """From the root to the first child accepted, as long as there is one; then one token more."""
    (batch, width), device = output_format.shape_of(call), call.draft_tokens.device
    active = requests.Requests(None, batch, batch, device)
    single, total = (active.numbers(x, torch.float32) for x in (call.threshold_single, call.threshold_total))
    tokens, path = torch.full((2, batch, width), -1, device=device, dtype=torch.int64)
    depth, status = torch.zeros(2, batch, dtype=torch.int64, device=device)
    tried, counters = [()] * batch, active.noise(call.noise)
    for b in range(batch):
        tree = Tree(call, b)
        accepts = (
            tree.by_tokens()
            if call.target is None
            else tree.by_uniforms(uniforms_of(call, b, counters), single[b], total[b])
        )
        nodes, tried[b] = walk(tree, accepts, width)
        drafts = [tree.tokens[node] for node in nodes[1:]]
        path[b, : len(nodes)] = torch.tensor(nodes, dtype=torch.int64, device="cpu")
        tokens[b, : len(drafts)] = torch.tensor(drafts, dtype=torch.int64, device="cpu")
        depth[b], status[b] = len(drafts), tree.status
    everyone = torch.arange(batch, device=device, dtype=torch.int64)
    last = path[everyone, depth]
    if call.target is None:
        assert call.target_tokens is not None  # the op has either
        tokens[everyone, depth] = call.target_tokens[everyone, last].long()
    else:
        tokens[everyone, depth], flags = drawn(call.target[everyone, last], tried, counters, depth)
        status |= flags
    output_format.write(call, active, tokens, path, depth, status)


class Tree:
    """The links of one request, and the status of the walk."""

    def __init__(self, call, b):
        self.tokens, self.first, self.sibling = (x[b].tolist() for x in (call.draft_tokens, *call[1:3]))
        if call.tree_valid is not None and not call.tree_valid[b]:
            self.first = [-1] * len(self.first)
        self.call, self.b, self.status = call, b, 0

    def children(self, node):
        """The children that are not absent, in link order. A list is no longer than the tree."""
        child, left = self.first[node], len(self.first)
        while 0 < child < len(self.first) and left > 0:
            if self.tokens[child] != -1:
                yield child
            child, left = self.sibling[child], left - 1
        if child != -1:
            self.status |= Status.PARAMETER

    def by_tokens(self):
        wanted = self.call.target_tokens[self.b].tolist()
        return lambda node, depth, token, elders: token == wanted[node]

    def by_uniforms(self, uniform, single, total):
        rows = self.call.target[self.b]
        weights = laws.weights(rows).float()

        def accepts(node, depth, token, elders):
            if not 0 <= token < rows.shape[-1]:
                self.status |= Status.TOKEN_RANGE
                return False
            if token in elders:
                return False
            if laws.non_finite(rows[node, token], "probs"):
                self.status |= Status.NON_FINITE
            # In float32, one after the other, by contract: an engine's uniform may be equal to such a sum.
            before = [x for x in dict.fromkeys(elders) if 0 <= x < rows.shape[-1]]
            p, mass = weights[node, token], weights.new_zeros(())
            for each in (*before, token):
                mass = mass + weights[node, each]
            return p > 0 and (uniform(node, depth) * total < mass or p >= single)

        return accepts


def uniforms_of(call, b, counters):
    """The uniform of request b for the children of a node, at its depth: a given one, or the noise's."""
    if isinstance(call.uniforms, torch.Tensor):
        return lambda node, depth: call.uniforms[b, node]
    request = torch.tensor([b], device=call.draft_tokens.device, dtype=torch.int64)
    return lambda node, depth: noise.uniforms(noise.at(counters, request, depth), noise.UNIFORM, node)[0].float()


def walk(tree, accepts, width):
    """(the path's nodes, the tokens that were tried at the last one)."""
    nodes = [0]
    while True:
        tried: list[int] = []
        for child in tree.children(nodes[-1]):
            if len(nodes) == width:
                tree.status |= Status.PARAMETER
                return nodes, tried
            if accepts(nodes[-1], len(nodes) - 1, tree.tokens[child], tried):
                nodes.append(child)
                break
            tried.append(tree.tokens[child])
        else:
            return nodes, tried


def drawn(rows, tried, counters, depth):
    """(a token of each row's law without the tried tokens, or of the whole law where nothing is left; status)."""
    whole, status = laws.weights(rows), laws.unfit(rows, "probs").int() * Status.NON_FINITE
    rest = whole.clone()
    for row, tokens in zip(rest, tried, strict=True):
        row[[token for token in tokens if 0 <= token < len(row)]] = 0.0
    empty = (rest == 0).all(dim=-1)
    some = torch.tensor([len(tokens) > 0 for tokens in tried], dtype=torch.bool, device=rows.device)
    status |= (empty & some & (whole > 0).any(dim=-1)).int() * Status.EMPTY_RESIDUAL
    now = noise.at(counters, torch.arange(len(rows), device=rows.device, dtype=torch.int64), depth)
    arrivals = noise.arrivals(now, noise.RESIDUAL, rows.shape[-1])
    return laws.draw(torch.where(empty.unsqueeze(-1), whole, rest), arrivals), status

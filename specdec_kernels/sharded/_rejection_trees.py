"""Trees verified by rejection, or by traversal.

First round as for chains: normalisers, and p and q of every draft. Rejection then asks for the sums that a node's
second child needs, for all nodes at once, then for those of the third. Traversal walks on the host and asks for the
sums of all requests that have come to one. Last round: the race over what is left of the last row.
"""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.ops import TreeVerdict
from specdec_kernels.sharded._filters import LARGEST
from specdec_kernels.sharded._last import Last, last_tokens
from specdec_kernels.sharded._laws import Side, argmax_of, laws_of, left_in_slices
from specdec_kernels.sharded._races import race_finish
from specdec_kernels.sharded._requests import any_bits
from specdec_kernels.sharded._traversal import Drafts, Traversal, traverse
from specdec_kernels.sharded._weights import (
    ACCEPT_STREAM,
    LEAF_COINS,
    accepts,
    share_of,
    sum_of,
    units_of,
    untried_after,
)
from specdec_kernels.status import Status


class Tree(NamedTuple):
    """The trees of B requests, N nodes each.

    Attributes
    ----------
    tokens, parents, depth : Tensor
        int64 [B, N].
    there : Tensor
        bool [B, N]: a draft that has a parent and a token, which may be outside of the vocabulary.
    inside : Tensor
        bool [B, N]: one inside.
    tried : Tensor
        bool [B, N]: one that is no repetition of an elder sibling's token where siblings are all different.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depth: torch.Tensor
    there: torch.Tensor
    inside: torch.Tensor
    tried: torch.Tensor

    def children(self):
        """int64 [B, N, most]: the children that are tried after each node, in order; -1 after the last."""
        siblings = self.parents.unsqueeze(-1) == self.parents.unsqueeze(-2)
        order = (siblings & self.tried.unsqueeze(-2)).tril(-1).sum(dim=-1)
        most = int(torch.where(self.tried, order + 1, 0).max()) if order.numel() else 0
        table = self.parents.new_full((*self.parents.shape, most + 1), -1)
        request, node = self.tried.nonzero().unbind(-1)
        table[request, self.parents[request, node], order[request, node]] = node
        return table[..., :most]


def tree_of(draft_tokens, parents, vocab, repeats):
    """The Tree of a call. ``repeats``: siblings may have one token."""
    tokens = draft_tokens.long()
    nodes = torch.arange(tokens.shape[1], device=tokens.device)
    parents = parents.long().expand(tokens.shape)
    there = (parents >= 0) & (parents < nodes) & (tokens != -1)
    inside = there & (tokens >= 0) & (tokens < vocab)
    same = (parents.unsqueeze(-1) == parents.unsqueeze(-2)) & (tokens.unsqueeze(-1) == tokens.unsqueeze(-2))
    repeated = inside & (same & inside.unsqueeze(-2)).tril(-1).any(dim=-1)
    depth = ops.tree_positions(parents, prefix_len=0)
    return Tree(tokens, parents.clamp(min=0), depth, there, inside, there if repeats else there & ~repeated)


class Walked(NamedTuple):
    """What the walks decided."""

    chosen: torch.Tensor  # int64 [B, N]: the child that is accepted after each node of the path; -1: none
    taken: torch.Tensor  # float32 [B, N]: the T that is left at a node
    status: torch.Tensor | int  # int32 [B]
    read: torch.Tensor | None = None  # bool [B, N]: target rows that were read, and those of the draft; None: on the
    draft_read: torch.Tensor | None = None  # path, and where a child was tried


def verify(
    requests, shard, draft_tokens, target, edits, draft, law, draft_law, parents, method, replacement, max_depth
):  # fmt: skip
    """The verdict. The laws are Samplings, whose numbers may be those of entries."""
    tree = tree_of(draft_tokens, parents, shard.vocab, draft is not None and replacement)
    batch, nodes = tree.tokens.shape
    request = torch.arange(batch, device=target.device).unsqueeze(-1)
    of_parents = (request * nodes + tree.parents).flatten()
    tokens, greedy = tree.tokens.flatten(), requests.greedy(law.temperature)
    any_greedy = greedy.any_may_be
    sides, entry = [Side(target, requests.of_rows(law), requests.row_index(), of_parents, tokens, edits)], request
    if draft is not None:
        entry = request if requests.entry is None else requests.entry.unsqueeze(-1)
        own = requests.of_draft_rows(None, draft, draft_law)
        sides.append(Side(draft, own, None, (entry * nodes + tree.parents).flatten(), tokens))
    also = [argmax_of(target, shard, greedy.row_index(), edits).packed()] if any_greedy else []
    laws, also = laws_of(shard, sides, *also)
    met, winners = laws[0].met.view(batch, nodes), torch.full_like(tree.tokens, -1)
    if any_greedy:
        winners, argmax_met = race_finish(also[0])
        met = torch.where(greedy.of_rows(), met & ~Status.NON_FINITE | argmax_met, met)
    p = laws[0].probs.view(batch, nodes)
    q = torch.ones_like(p) if draft is None else laws[1].probs.view(batch, nodes)
    q_places = None if draft is None else (entry * nodes + torch.arange(nodes, device=target.device)).flatten()

    def sums(places, taken):
        """(left, q) of the pairs of rows at some nodes, as whole numbers."""
        return left_in_slices(shard, *laws, places, q_places[places], taken).unbind(-1)

    alive = requests.live() & ~greedy.requests
    noise = requests.noise_of_rows()
    at = {"seed": noise["seed"], "position": noise["position"] - 1, "nonce": noise["nonce"]}
    decide = _traversed if method == "traversal" else _tested
    deepest = nodes if max_depth is None else max_depth
    walked = decide(tree, alive, p, q, None if draft is None else sums, replacement, deepest, at)
    path, num_accepted, met_on_path = _path(requests, tree, greedy, winners, walked, parents, max_depth)

    last, deepest = num_accepted.long(), path.shape[1] - 1
    slot = last.clamp(min=0)
    node = path.gather(1, slot.unsqueeze(-1)).clamp(min=0).long()
    of_node = tree.parents == node
    races = (last >= 0) & alive
    left = races & (of_node & tree.tried).any(dim=-1) & (last < deepest)
    numbers = requests.noise_of_requests()
    numbers["position"] = slot + numbers["position"]
    place = (request * nodes + node).squeeze(-1)
    beside = place if draft is None else q_places[place]
    drawn = last_tokens(shard, laws[0], None if draft is None else laws[1], Last(
        torch.where(races, place, -1), torch.where(left, beside, -1), walked.taken.gather(1, node).squeeze(-1),
        torch.where(of_node & tree.inside, tree.tokens, -1), requests.of_requests(law.temperature),
        requests.of_requests(draft_law.temperature), numbers,
    ))  # fmt: skip
    step, last = torch.arange(path.shape[1], device=target.device), last.unsqueeze(-1)
    following = torch.nn.functional.pad(path[:, 1:], (0, 1), value=-1).clamp(min=0).long()
    accepted = tree.tokens.gather(1, following)
    on_path = torch.zeros(batch, nodes + 1, dtype=torch.bool, device=target.device)
    on_path = on_path.scatter(1, torch.where(path < 0, nodes, path).long(), True)[:, :nodes]
    on_path = on_path & requests.live().unsqueeze(-1)
    read = on_path if walked.read is None else on_path | walked.read
    bits = met_on_path | any_bits((met, read))
    if draft is not None:
        draft_read = walked.draft_read
        if draft_read is None:
            draft_read = on_path & (tree.depth < deepest) & has_child(tree) & alive.unsqueeze(-1)
        bits = bits | any_bits((laws[1].met[q_places].view(batch, nodes), draft_read))

    token, status = drawn()
    if any_greedy:
        token = torch.where(greedy.requests, winners.gather(1, node).squeeze(-1), token)
    token = torch.where(requests.live(), token, 0)
    emitted = torch.where(step < last, accepted, torch.where(step == last, token.unsqueeze(-1), -1))
    return TreeVerdict(emitted, path, num_accepted, (bits | torch.where(races, status, 0)).int())


def has_child(tree):
    """bool [B, N]: whether a child of the node is tried."""
    return torch.zeros_like(tree.tokens).scatter_add(1, tree.parents, tree.tried.long()) > 0


def _path(requests, tree, greedy, winners, walked, parents, max_depth):
    """(path, num_accepted, status): the walk, on rows in which each node has a token of its own, one-hot at the child
    that is accepted."""
    batch, nodes = tree.tokens.shape
    node, chosen = torch.arange(nodes, device=winners.device), walked.chosen
    if greedy.any_may_be:
        hit = tree.inside & (tree.tokens == winners.gather(1, tree.parents))
        first = torch.where(hit, node, nodes).unsqueeze(1).expand(batch, nodes, nodes)
        first = torch.where(tree.parents.unsqueeze(1) == node.unsqueeze(-1), first, nodes).amin(dim=-1)
        chosen = torch.where(greedy.requests.unsqueeze(-1), torch.where(first < nodes, first, -1), chosen)
    rows = torch.nn.functional.one_hot(torch.where(chosen < 0, nodes, chosen), nodes + 1).float()
    outside = torch.where(tree.tokens == -1, -1, nodes + 1)
    found = ops.verify_tree(
        torch.where(tree.inside, node, outside), rows, parents=parents, method="race", space="probs", temperature=0.0,
        request_index=requests.index, max_depth=max_depth, **requests.noise_of_requests(),
    )  # fmt: skip
    bits = Status.PARAMETER if walked.read is not None else Status.PARAMETER | Status.TOKEN_RANGE
    ranges = torch.where(greedy.requests, Status.TOKEN_RANGE, 0) | bits
    return found.path, found.num_accepted, found.status & ranges | walked.status


# ---- rejection ------------------------------------------------------------------------------------------------------


def _tested(tree, alive, p, q, sums, replacement, deepest, noise):
    """The first child of each node that is accepted, whichever nodes the walk will come to."""
    nodes = torch.arange(tree.tokens.shape[1], device=p.device)
    coins = ops.coin(**noise, stream=ACCEPT_STREAM, index=(nodes - 1).expand(p.shape).contiguous())
    chosen, taken, share = torch.full_like(tree.tokens, -1), torch.zeros_like(p), torch.ones_like(p)
    tried = torch.zeros_like(tree.tokens)  # units of q of the tokens tried
    for m, child in enumerate(tree.children().unbind(-1)):
        there, child = (child >= 0) & alive.unsqueeze(-1), child.clamp(min=0)
        inside = tree.inside.gather(1, child)
        own_p, own_q = (torch.where(inside, x.gather(1, child), 0.0) for x in (p, q))
        if m > 0 and sums is not None:
            places = there.flatten().nonzero().squeeze(-1)
            left, whole = sums(places, taken.flatten()[places])
            untried = torch.ones_like(left, dtype=torch.float32)
            if not replacement:
                untried = sum_of(whole - tried.flatten()[places])
            share.view(-1)[places] = share_of(sum_of(left), untried)
        passed = there & inside & accepts(coins.gather(1, child), own_p - taken * own_q, share * own_q)
        chosen = torch.where((chosen < 0) & passed, child, chosen)
        if sums is None:
            share = torch.where(there, untried_after(share, own_p), share)
        else:
            taken = torch.where(there, (taken + share).clamp(max=LARGEST), taken)
            tried += torch.where(there & inside, units_of(own_q), 0)
    return Walked(chosen, taken, 0)


def _traversed(tree, alive, p, q, sums, replacement, deepest, noise):
    """The same by traversal, with the rows that it read."""
    nodes, device = tree.tokens.shape[1], p.device
    index = torch.arange(nodes, device=device) + LEAF_COINS - 1
    coins = ops.coin(**noise, stream=ACCEPT_STREAM, index=index.expand(p.shape).contiguous())
    lists = [x.tolist() for x in (tree.parents, tree.tokens, tree.there, tree.inside)]
    arrays = [x.cpu().numpy() for x in (p, q)]
    units, coins, alive = units_of(q).tolist(), coins.cpu().numpy(), alive.tolist()
    walks = [
        Traversal(
            Drafts(*(x[b] for x in (*lists, *arrays)), units[b], coins[b]), sums is None, replacement, deepest
        ) if alive[b] else None
        for b in range(len(tree.tokens))
    ]  # fmt: skip

    def answers(questions):
        request, node, taken = zip(*questions, strict=True)
        places = torch.tensor(request, device=device) * nodes + torch.tensor(node, device=device)
        return torch.stack(sums(places, torch.tensor(taken, dtype=torch.float32, device=device)), dim=-1).tolist()

    traverse(walks, answers)
    chosen, taken = torch.full_like(tree.tokens, -1, device="cpu"), torch.ones(p.shape)
    read, draft_read = torch.zeros(2, *p.shape, dtype=torch.bool)
    status = torch.zeros(len(walks), dtype=torch.int32)
    for b, walk in enumerate(walks):
        if walk is None:
            continue
        end = walk.end
        chosen[b, end.path[:-1]] = torch.tensor(end.path[1:], dtype=torch.int64)
        taken[b, end.path[-1]], status[b] = float(end.taken), int(end.status)
        read[b, list(end.read)], draft_read[b, list(end.draft_read)] = True, True
    return Walked(*(x.to(device) for x in (chosen, taken, status, read, draft_read)))

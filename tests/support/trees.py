"""Draft trees for tests: every small shape, random batches with tokens as a draft model makes them."""

from itertools import product

import torch

import specdec_kernels


def shapes(nodes):
    """All parents of trees with this many nodes: (nodes - 1)! of them."""
    return [(-1, *parents) for parents in product(*(range(i) for i in range(1, nodes)))]


def children(parents):
    return [[child for child, parent in enumerate(parents) if parent == node] for node in range(len(parents))]


def depths(parents):
    """Depth of every node; -1 if it is not connected to the root."""
    found = []
    for node, parent in enumerate(parents):
        found.append(0 if node == 0 else -1 if parent < 0 or found[parent] < 0 else found[parent] + 1)
    return found


def leaves_of(parents):
    """[B, n]: the nodes of each tree without children, -1 behind the last."""
    found = [[node for node, below in enumerate(children(row)) if node and not below] for row in parents.tolist()]
    most = max(map(len, found))
    return torch.tensor([nodes + [-1] * (most - len(nodes)) for nodes in found], dtype=torch.int32)


def ranks(parents):
    """Each node's index among its siblings."""
    return [list(parents[:node]).count(parent) for node, parent in enumerate(parents)]


def random_parents(requests, nodes, generator, absent=0.1):
    """[B, N], some bushy, some deep, some nodes absent."""
    reach = torch.randint(1, nodes + 1, (requests, 1), generator=generator)
    index = torch.arange(nodes)
    back = 1 + (torch.rand(requests, nodes, generator=generator) * torch.minimum(reach, index)).long()
    parents = torch.where(index == 0, -1, index - torch.minimum(back, index.clamp(min=1)))
    return torch.where(torch.rand(requests, nodes, generator=generator) < absent, -1, parents)


def drafted(draft, parents, seed, position, space="logits", temperature=1.0, replacement=False):
    """Tokens [B, N] as a draft model makes them: siblings are the first arrivals of their parent's race."""
    requests, nodes = parents.shape
    depth = torch.tensor([depths(row) for row in parents.tolist()])
    rank = torch.tensor([ranks(row) for row in parents.tolist()])
    most = min(int(rank.max()) + 1, draft.shape[-1])
    noise = {"seed": seed[:, None], "position": position[:, None] + depth, "space": space, "temperature": temperature}
    with specdec_kernels.backend("reference"):
        if replacement:
            drawn = [specdec_kernels.race_sample(draft, nonce=m + 1, **noise) for m in range(most)]
            arrivals = torch.stack(drawn, dim=-1)
        else:
            arrivals = specdec_kernels.race_topk(draft, most, **noise)
    arrivals = torch.nn.functional.pad(arrivals, (0, nodes), value=-1)
    of_parent = arrivals[torch.arange(requests)[:, None], parents.clamp(min=0)]
    tokens = of_parent.gather(-1, rank.clamp(max=most).unsqueeze(-1)).squeeze(-1)
    return torch.where(parents >= 0, tokens, -1)


def tree_call(
    seed, requests=32, nodes=9, vocabulary=65, draft_vocabulary=None, dtype=torch.float32, space="logits",
    replacement=False, parents=None,
):  # fmt: skip
    """Arguments of a verify_tree call, one tree per request, with some tokens that no draft model should make."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(requests, nodes, vocabulary, generator=generator)
    draft = (target + torch.randn(requests, nodes, vocabulary, generator=generator))[..., :draft_vocabulary]
    if space == "probs":
        target, draft = target.softmax(-1), draft.softmax(-1)
    target, draft = target.to(dtype), draft.to(dtype)
    request_seeds = torch.randint(-(2**63), 2**63 - 1, (requests,), generator=generator)
    position = torch.randint(0, 2**31, (requests,), generator=generator)
    temperature = torch.tensor([1.0, 0.6, 0.0, 1.7])[torch.arange(requests) % 4]
    parents = random_parents(requests, nodes, generator) if parents is None else torch.as_tensor(parents)
    per_request = parents.expand(requests, nodes)
    tokens = drafted(draft, per_request, request_seeds, position, space, temperature[:, None], replacement)
    unlikely = torch.rand(requests, nodes, generator=generator)
    tokens = torch.where(unlikely < 0.06, torch.randint(0, vocabulary, tokens.shape, generator=generator), tokens)
    tokens = torch.where(unlikely > 0.98, -1, tokens)
    tokens = torch.where((unlikely > 0.95) & (unlikely < 0.96), vocabulary + 3, tokens)
    tokens = torch.where((unlikely > 0.96) & (unlikely < 0.97), -9, tokens)
    return {
        "draft_tokens": tokens, "target": target, "draft": draft, "parents": parents, "space": space,
        "replacement": replacement, "temperature": temperature, "seed": request_seeds, "position": position,
    }  # fmt: skip

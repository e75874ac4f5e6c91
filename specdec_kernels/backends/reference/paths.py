"""The rule ``paths``: one of several chains is taken, then verified as a block with the law that it is taken by."""

import numpy as np
import torch

from specdec_kernels._constants import LOOK_UNIFORM, SMALLEST
from specdec_kernels.backends.reference import noise
from specdec_kernels.backends.reference.traversal import PathEntry
from specdec_kernels.status import Status

LOWEST, HIGHEST = -12, 8  # half octaves of p / q
MOST_LOOKED = 16
NEAR = 2.0**-14  # numbers of chains whose value is this near to the best are as good


class Walk:
    """Walks with the chains that end at ``leaves`` [n, chains]."""

    def __init__(self, leaves, counters, width):
        everyone = torch.arange(len(leaves), device=leaves.device, dtype=torch.int64)
        uniforms = [
            noise.uniforms(noise.at(counters, everyone, depth), noise.UNIFORM, LOOK_UNIFORM) for depth in range(width)
        ]
        self.leaves, self.uniforms = leaves.tolist(), torch.stack(uniforms, dim=-1).tolist()

    def __call__(self, request, b):
        """(the nodes accepted, weights [V] of the token that follows them)."""
        if not request.rows[0].sampled:
            return request.traverse()
        chains = [chain_to(leaf, request) for leaf in self.leaves[b]]
        path = [PathEntry(request, 0, 1.0)]
        while True:
            entry, depth = path[-1], len(path) - 1
            left = [chain for chain in chains if chain[depth : depth + 1] == [entry.node] and len(chain) > depth + 1]
            if left and depth == request.max_depth:
                request.status |= Status.PARAMETER
                left = []
            if not left or entry.ends():
                break
            node = take(entry, [chain[depth + 1] for chain in left], self.uniforms[b][depth])
            weight = entry.weight_of(request.tokens[node])
            if weight < SMALLEST:
                entry.remove(request.tokens[node])
                break
            path.append(PathEntry(request, node, weight))
        while len(path) > 1 and not path[-1].accepts(request.uniforms[path[-1].node]):
            node = path.pop().node
            path[-1].remove(request.tokens[node])
        return [entry.node for entry in path], path[-1].left()


def chain_to(leaf, request):
    """The nodes from the root to a leaf, up to the first absent one; none if it has no path there."""
    if not -1 <= leaf < len(request.parents):
        request.status |= Status.PARAMETER
        leaf = -1
    chain: list[int] = []
    while leaf > 0:
        chain.insert(0, leaf)
        leaf = request.parents[leaf]
    absent = [request.tokens[node] == -1 for node in chain]
    return [0, *chain[: absent.index(True) if True in absent else None]] if leaf == 0 else []


def take(entry, nodes, uniform):
    """The node taken, of those that the m remaining chains continue with. From then on the entry's q is its law."""
    if len(nodes) == 1:
        return nodes[0]
    request = entry.request
    request.read(entry.node, draft=True)
    buckets = buckets_of(entry.p, entry.q)
    p, q = (np.bincount(buckets, law, minlength=HIGHEST - LOWEST + 1) for law in (entry.p, entry.q))
    pi, shares = looking(p, q, len(nodes), entry.weight)
    looked = nodes[: int((pi.cumsum() > uniform).argmax()) + 1]

    def rank(node):
        x = request.tokens[node]
        if not request.in_vocabulary(x):
            request.status |= Status.TOKEN_RANGE
            return -1
        return buckets[x] if entry.q[x] > 0 else -1

    taken = max(looked, key=rank)  # the first of the best
    entry.q = entry.q * shares[buckets]
    return taken


def buckets_of(p, q):
    """floor(2 log2(p / q)), clamped, from 0; in float32: the exponent of the square."""
    with np.errstate(all="ignore"):
        ratio = p.astype(np.float32) / q.astype(np.float32)
        square = np.where(q >= SMALLEST, ratio * ratio, 2.0**HIGHEST)
    return np.frexp(square.clip(2.0**LOWEST, 2.0**HIGHEST))[1] - 1 - LOWEST


def looking(p, q, chains, weight):
    """(pi, G): the law of j, and the factor of each bucket's q that gives the law of the token taken."""
    # The best of j chains lies in bucket B with probability F(B)^j - F(<B)^j, F being the sum of q up to a bucket. That
    # is q_B times the sum of F(B)^k F(<B)^(j-1-k) over k < j.
    most = min(chains, MOST_LOOKED)
    upto = np.append(0.0, q.cumsum() / q.sum()) if q.any() else np.zeros(len(q) + 1)
    before, through = upto[:-1], upto[1:]
    gain = np.array([sum(through**k * before ** (j - 1 - k) for k in range(j)) for j in range(1, most + 1)])
    one = np.eye(most)
    ways = [*one]
    for few in range(most):
        for many in range(few + 1, most):
            ways += [share * one[few] + (1 - share) * one[many] for share in (0.2, 0.4, 0.6, 0.8)]
    reach = np.array([np.minimum(weight * p, q * (pi @ gain)).sum() for pi in ways])
    pi = ways[int((reach >= reach.max() - NEAR).argmax())]
    return pi, pi @ gain

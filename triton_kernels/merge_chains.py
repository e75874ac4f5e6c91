"""Trees of chains: one launch, a program for each request, which compares each chain with all before it."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch

BLOCK = 128  # nodes of a step
CHAINS, TOKENS = 32, 64  # least sizes that are compiled, so that most calls share one program


@triton.jit
def at_chain(numbers, chains, chain):
    return tl.sum(tl.where(chains == chain, numbers, 0), axis=0)


@_launch.kernel
def merge_chains_kernel(
    paths: _arguments.Steps, count: tl.int32, length: tl.int32, nodes: tl.int32,
    draft_tokens, parents, leaves, CHAINS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    tokens, paths_node = _arguments.at(paths, b, 0), paths.inner
    draft_tokens, parents, leaves = draft_tokens + b * nodes, parents + b * nodes, leaves + b * count
    chains, depths = tl.arange(0, CHAINS), tl.arange(0, TOKENS)
    # ``first`` is the first node that each chain added, ``shared_tokens`` how many tokens an earlier one has.
    first, shared_tokens = tl.zeros([CHAINS], tl.int32), tl.zeros([CHAINS], tl.int32)
    added = 1 + 0 * nodes
    for chain in range(0, count):
        chain_tokens = tokens + tl.cast(chain, tl.int64) * length * paths_node
        alike = chains < chain
        common = tl.zeros([CHAINS], tl.int32)
        depth = 0 * nodes
        going = length > 0
        while going:
            token = tl.load(chain_tokens + depth * paths_node).to(tl.int64)
            going = token != -1
            if going:
                elder = (chains.to(tl.int64) * length + depth) * paths_node
                alike = alike & (tl.load(tokens + elder, mask=alike, other=0).to(tl.int64) == token)
                common += alike.to(tl.int32)
                depth += 1
                going = depth < length
        shared = tl.max(common, axis=0)
        elder = tl.min(tl.where(common == shared, chains, CHAINS), axis=0)
        joint = at_chain(first, chains, elder) + shared - at_chain(shared_tokens, chains, elder) - 1
        joint = tl.where(shared > 0, joint, 0)  # the node of the last shared token
        is_new = (depths >= shared) & (depths < depth)
        node = added + depths - shared
        token = tl.load(chain_tokens + depths * paths_node, mask=is_new, other=-1).to(tl.int64)
        tl.store(draft_tokens + node, token, mask=is_new)
        tl.store(parents + node, tl.where(depths == shared, joint, node - 1), mask=is_new)
        leaf = tl.where(depth > shared, added + depth - shared - 1, joint)
        tl.store(leaves + chain, tl.where(depth > 0, leaf, -1))
        first, shared_tokens = tl.where(chains == chain, added, first), tl.where(chains == chain, shared, shared_tokens)
        added += depth - shared
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        clear = (node < nodes) & ((node == 0) | (node >= added))
        tl.store(draft_tokens + node, tl.full([BLOCK], -1, tl.int64), mask=clear)
        tl.store(parents + node, tl.full([BLOCK], -1, tl.int32), mask=clear)


def merge_chains(call):
    """``draft_tokens`` int64 and ``parents`` int32 [B, N], ``leaves`` int32 [B, n]."""
    (requests, nodes), count = call.draft_tokens.shape, call.leaves.shape[1]
    length = (nodes - 1) // max(count, 1)
    with _launch.on_device(call.draft_tokens):
        arguments = dict(
            paths=_arguments.nodes_of(call.paths), count=count, length=length, nodes=nodes,
            draft_tokens=call.draft_tokens, parents=call.parents, leaves=call.leaves,
            CHAINS=max(CHAINS, _launch.power_of_2(count)), TOKENS=max(TOKENS, _launch.power_of_2(length)), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(merge_chains_kernel, (requests,), 1, arguments)

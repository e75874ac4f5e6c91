"""Which cache slots the nodes of trees attend to."""

import torch

from specdec_kernels.backends.reference import trees
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def tree_mask(call: "typed.TreeMask"):
    """Slots of the prefix, of the ancestors and of the node itself; node j lies in slot prefix_len + j."""
    parents, prefix_len, columns, mask, status = call
    requests, nodes = mask.shape[:2]
    attended = torch.zeros(requests, nodes, columns, dtype=torch.bool, device="cpu")
    lengths = trees.prefix_lens(prefix_len, requests, most=columns - nodes)
    for b, entries in enumerate(parents.expand(requests, nodes).tolist()):
        tree, bad = trees.parents_of(entries)
        prefix, bad_prefix = lengths[b]
        attended[b, :, :prefix] = True
        for node in range(nodes):
            ancestor = node
            while ancestor is not None:
                attended[b, node, prefix + ancestor] = True
                ancestor = tree[ancestor]
        status[b] = (bad or bad_prefix) * Status.PARAMETER
    if mask.dtype == torch.bool:
        mask.copy_(attended)
    elif mask.dtype == torch.int32:
        mask.copy_(packed(attended))
    else:
        mask.zero_().masked_fill_(~attended.to(mask.device), -torch.inf)


def packed(attended):
    """int32 words: bit j of word w is column 32 w + j."""
    words = torch.nn.functional.pad(attended, (0, -attended.shape[-1] % 32)).unflatten(-1, (-1, 32)).long()
    return (words << torch.arange(32, dtype=torch.int64, device="cpu")).sum(dim=-1).to(torch.int32)

"""A tree of SGLang's drafts, built and verified by our functions under the names of its kernels.

Run it: python examples/sglang_tree.py

They run on CPU tensors as well. In SGLang itself nothing is called by hand: with this package installed, one variable
switches the verification over.

    SPECDEC_SGLANG=rejection python -m sglang.launch_server --model-path MODEL --speculative-algorithm EAGLE3 ...
"""

import torch

from specdec_kernels.engines import sglang

BATCH, TOPK, DEPTH, NODES, VOCABULARY = 2, 2, 3, 6, 1000


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    # EAGLE's lists: which candidates are nodes 1 to 5, and which candidate each group of two follows.
    selected = torch.tensor([[0, 1, 2, 3, 6], [0, 1, 2, 4, 5]])
    parents = torch.tensor([[-1, 0, 1, 2, 3]]).expand(BATCH, -1)
    lengths, mask = torch.tensor([40, 7]), torch.zeros(BATCH * NODES * NODES, dtype=torch.bool)
    positions = torch.empty(BATCH * NODES, dtype=torch.int64)
    index, child, sibling = torch.full((3, BATCH, NODES), -1)
    sglang.build_tree_kernel_efficient(
        parents, selected, lengths, mask, positions, index, child, sibling, TOPK, DEPTH, NODES, sglang.QLEN_ONLY
    )
    print(f"positions of the first tree: {positions[:NODES].tolist()}")

    target = (3 * torch.randn(BATCH, NODES, VOCABULARY, generator=generator)).softmax(-1)
    drafts = target.topk(NODES, dim=-1).indices[:, 0]  # any tokens do
    predicts = torch.zeros(BATCH * NODES, dtype=torch.int32)
    path = torch.full((BATCH, DEPTH + 1), -1, dtype=torch.int32)
    accepted = torch.empty(BATCH, dtype=torch.int32)
    sglang.tree_speculative_sampling_target_only(
        predicts, path, accepted, drafts, index, child, sibling, torch.rand(BATCH, NODES, generator=generator),
        torch.rand(BATCH, generator=generator), target,
    )  # fmt: skip
    for nodes, count in zip(path.tolist(), accepted.tolist(), strict=True):
        nodes = nodes[: count + 1]
        print(f"{count} accepted: nodes {nodes}, tokens {predicts[nodes].tolist()}")


if __name__ == "__main__":
    main()

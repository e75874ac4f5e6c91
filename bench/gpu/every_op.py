"""One small, odd call of every op on the CUDA backend, for compute-sanitizer: every launch shape, dtype and method."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils._pytree import tree_map_only

import specdec_kernels as sd
from tests.support.calls import every_call
from tests.support.cases import DTYPES, chain_call, poisoned, seeds
from tests.support.edits import random_edits
from tests.support.trees import tree_call


def on_gpu(call):
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def with_edits(call, rows, noise):
    edits = random_edits(len(rows), vocabulary=rows.shape[-1], seed=1)
    edits = tree_map_only(torch.Tensor, torch.Tensor.cuda, edits)
    for sampling in (None, sd.Sampling(top_k=50, top_p=0.9)):
        sd.race_sample(rows, **noise, sampling=sampling, edits=edits)
        sd.race_topk(rows, 9, **noise, sampling=sampling, edits=edits)
        sd.cutoff(rows, sampling=sampling or sd.Sampling(), edits=edits)
    for options in ({}, {"draft": None, "method": "race"}):
        sd.verify_chain(**call | options, edits=edits)


def trees(requests, vocabulary, dtype, space):
    call = on_gpu(tree_call(1, requests, nodes=7, vocabulary=vocabulary, dtype=dtype, space=space))
    verdict = sd.verify_tree(**call)
    sd.verify_tree(**call | {"replacement": True})
    sd.verify_tree(**call | {"draft": None})
    sd.verify_tree(**call | {"draft": None, "method": "race"})
    prefix_len = 3 * seeds(requests).cuda() % 200
    sd.tree_positions(call["parents"], prefix_len=prefix_len)
    for layout in ("bool", "additive", "bits"):
        sd.tree_mask(call["parents"], prefix_len=prefix_len, columns=1203, layout=layout)
    caches = [torch.zeros(requests, 2, 207, size, dtype=dtype, device="cuda") for size in (64, 7)]
    sd.compact_kv(caches, verdict.path, prefix_len=prefix_len)
    table = torch.arange(9 * requests, dtype=torch.int32, device="cuda").view(9, requests).T.contiguous()
    pages = [cache.unflatten(2, (9, 23)).transpose(1, 2).flatten(0, 1) for cache in caches]
    sd.compact_kv(pages, verdict.path, prefix_len=prefix_len, block_table=table)


def main():
    # A software cluster shares one request, clusters share a few, and more than multiprocessors get a block each.
    for requests, vocabulary in ((1, 20_001), (40, 9_001), (300, 700)):
        for dtype in DTYPES if requests == 1 else DTYPES[1:2]:
            for space in ("logits", "probs"):
                with sd.backend("cpu"):
                    call = on_gpu(chain_call(1, requests, slots=3, vocabulary=vocabulary, dtype=dtype, space=space))
                sd.verify_chain(**call)
                sd.verify_chain(**call | {"draft": None})
                sd.verify_chain(**call | {"draft": None, "method": "race"})
                rows = poisoned(call["target"][:, 0].cpu())
                rows = rows.cuda() if requests == 1 else call["target"][:, 0]
                noise = {"seed": seeds(requests).cuda(), "position": 3, "space": space}
                sd.race_sample(rows, **noise)
                sd.race_topk(rows, 40, **noise)
                if space == "logits":
                    with_edits(call, rows, noise)
                sd.residual(call["target"][:, :3], call["draft"], space=space)
                sd.overlap(call["target"][:, :3], call["draft"], space=space)
                trees(requests, vocabulary, dtype, space)
    for function, arguments in every_call().values():
        function(**tree_map_only(torch.Tensor, torch.Tensor.cuda, arguments))
    torch.cuda.synchronize()
    print("every op ran")


if __name__ == "__main__":
    main()

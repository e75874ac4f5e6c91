"""Peers, each a function of the same arguments, or the reason why it does not run.

Installed packages are imported, in the form of FlashInfer 0.7.2 and vLLM 0.33. A peer that takes probabilities pays for
the softmax. Seeds are plain numbers, since a generator could not be captured in a graph.
"""

import functools
import importlib

import torch


def softmax_multinomial(inputs):
    return torch.multinomial(torch.softmax(inputs.target[:, 0].float(), -1), 1)


def gumbel_argmax(inputs):
    """Argmax after Gumbel noise for every token of every row."""
    x = inputs.target.float()
    return (x - torch.empty_like(x).exponential_().log_()).argmax(-1)


def flashinfer_sample(inputs):
    from flashinfer.sampling import sampling_from_logits

    return sampling_from_logits(inputs.target[:, 0].float(), seed=1, offset=0)


def flashinfer_chain(inputs, softmax=torch.softmax):
    from flashinfer.sampling import chain_speculative_sampling

    target, draft = softmax(inputs.target.float(), -1), softmax(inputs.draft.float(), -1)
    return chain_speculative_sampling(draft, inputs.tokens.int(), target, seed=1, offset=0)


def flashinfer_softmax_chain(inputs):
    """The chain after FlashInfer's softmax, which takes matrices."""
    from flashinfer.sampling import softmax

    return flashinfer_chain(inputs, lambda x, _: softmax(x.flatten(0, 1)).view_as(x))


def vllm_gumbel(inputs, rows=slice(None)):
    """The sampler of vLLM's second model runner, on float32 logits as it makes them."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    index, logits = inputs.vllm_index, inputs.target[:, rows].float().flatten(0, 1)
    every = logits.shape[0] // len(inputs.seed)
    request = index["expanded_idx_mapping"] if every > 1 else index["idx_mapping"]
    position = index["pos"] if every > 1 else inputs.position
    return gumbel_sample(logits, request, inputs.ones, inputs.seed, position, True, False)


def vllm_rejection(inputs):
    """The four kernels of vLLM's second model runner, on float32 logits as it makes them."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    return rejection_sample(
        target_logits=inputs.target.float().flatten(0, 1), draft_logits=inputs.draft, temperature=inputs.ones,
        seed=inputs.seed, num_speculative_steps=inputs.draft.shape[1], **inputs.vllm_index,
    )  # fmt: skip


def torch_rejection(inputs):
    """Leviathan et al. over the whole batch in torch."""
    target, draft = torch.softmax(inputs.target.float(), -1), torch.softmax(inputs.draft.float(), -1)
    index = inputs.tokens.unsqueeze(-1)
    p, q = target[:, :-1].gather(-1, index)[..., 0], draft.gather(-1, index)[..., 0]
    accepted = (torch.rand_like(q) * q < p).long().cumprod(-1).sum(-1)
    row = accepted[:, None, None].expand(-1, 1, target.shape[-1])
    left = torch.nn.functional.pad(draft, (0, 0, 0, 1)).gather(1, row).neg_().add_(target.gather(1, row)).clamp_(0)
    return accepted, torch.multinomial(left[:, 0], 1)


# op -> name -> (the package it needs, the call)
PEERS = {
    "race_sample": {
        "softmax + multinomial": ("torch", softmax_multinomial),
        "flashinfer logits": ("flashinfer", flashinfer_sample),
        "vllm gumbel": ("vllm", functools.partial(vllm_gumbel, rows=slice(1))),
    },
    "race": {"torch gumbel + argmax": ("torch", gumbel_argmax), "vllm gumbel": ("vllm", vllm_gumbel)},
    "serving race": {"vllm gumbel": ("vllm", vllm_gumbel)},
    "tree race": {"torch gumbel + argmax": ("torch", gumbel_argmax)},
    "tree rejection": {},
    "rejection": {
        "torch": ("torch", torch_rejection),
        "softmax + flashinfer chain": ("flashinfer", flashinfer_chain),
        "flashinfer softmax + chain": ("flashinfer", flashinfer_softmax_chain),
        "vllm v2": ("vllm", vllm_rejection),
    },
    "serving rejection": {"vllm v2": ("vllm", vllm_rejection)},
}


def available(op):
    """(name -> call, name -> why not)"""
    calls, missing = {}, {}
    for name, (package, call) in PEERS[op].items():
        try:
            importlib.import_module(package)
        except ImportError:
            missing[name] = f"{package} is not installed"
        else:
            calls[name] = call
    return calls, missing

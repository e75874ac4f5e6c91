"""The Triton backend: CUDA and ROCm tensors, or CPU tensors under Triton's interpreter."""

from types import SimpleNamespace

import torch

from specdec_kernels import triton_kernels
from specdec_kernels.triton_kernels._launch import INTERPRETED


def call_of(**given):
    absent = dict(draft_map=None, request_index=None, status=None)
    call = SimpleNamespace(**{**absent, **given})
    if "space" in given:
        law = SimpleNamespace(space=given["space"], temperature=given["temperature"])
        call.law = call.target_law = call.draft_law = law
    if "seed" in given:
        call.noise = (given["seed"], given["position"], given["nonce"])
        call.noise = type("Noise", (tuple,), dict(seed=given["seed"], position=given["position"], nonce=given["nonce"]))(call.noise)
    return call


def verify_chain(
    draft_tokens, target, draft, cu_drafts, method, space, temperature, draft_prob, epsilon, seed, position, nonce,
    tokens, num_accepted, status,
):  # fmt: skip
    triton_kernels.verify_chain(call_of(**locals()))


def verify_tree(
    draft_tokens, target, draft, parents, method, replacement, space, temperature, seed, position, nonce,
    tokens, path, num_accepted, status,
):  # fmt: skip
    triton_kernels.verify_tree(call_of(**locals()))


def race_sample(rows, space, temperature, seed, position, nonce, tokens):
    triton_kernels.race_sample(call_of(**locals()))


def race_topk(rows, space, temperature, seed, position, nonce, tokens):
    triton_kernels.race_topk(call_of(**locals()))


def residual(target, draft, space, temperature, draft_prob, epsilon, probs, mass):
    triton_kernels.residual(call_of(**locals()))


def overlap(target, draft, space, temperature, accept, tv, kl, harmonic):
    triton_kernels.overlap(call_of(**locals()))


def tree_mask(parents, prefix_len, columns, mask, status):
    triton_kernels.tree_mask(call_of(**locals()))


def tree_positions(parents, prefix_len, positions, status):
    triton_kernels.tree_positions(call_of(**locals()))


def compact_kv(caches, path, prefix_len, status):
    triton_kernels.compact_kv(call_of(**locals()))


def unavailable():
    """Why these kernels cannot run here, or None."""
    if INTERPRETED or torch.cuda.is_available():
        return None
    return "no GPU; on a CPU set TRITON_INTERPRET=1 before specdec_kernels.triton_kernels is first imported"

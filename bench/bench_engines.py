"""Adapters: what a call adds to the bare op."""

import torch
from harness import OURS, SEED, Case, table

import specdec_kernels as sd
from specdec_kernels.engines import flashinfer, sglang, transformers, vllm

K = 4
B, V = 4, 8
torch.manual_seed(SEED)
P, Q = torch.rand(B, K + 1, V).softmax(-1), torch.rand(B, K, V).softmax(-1)
LOGITS, DRAFTS = P[:, 0].log(), torch.randint(V, (B, K))
ROWS, ROUNDS = torch.arange(B), (K + 1) * torch.arange(B)
FILTERS = sd.Sampling.flashinfer(top_k=3, top_p=0.9)
REQUESTS, SEEDS, WARM = torch.arange(B), torch.arange(B) + SEED, torch.ones(B)
POSITIONS = REQUESTS.clone()  # a copy: a call with one tensor as two arguments is not cached
DRAFT_INDICES, ENDS = torch.arange(K + 1).repeat(B), (K + 1) * torch.arange(B + 1, dtype=torch.int32)
TREE = sd.DraftTree.chain(K).to_sglang(B)
UNIFORMS = torch.rand(B, K + 1), torch.rand(B)
TOKENS = torch.nn.functional.pad(DRAFTS, (1, 0))
WANTED = TOKENS.roll(-1, 1)


def vllm_rejection():
    rows, tokens = P.log().flatten(0, 1), torch.nn.functional.pad(DRAFTS, (1, 0)).flatten()
    row_requests = REQUESTS.repeat_interleave(K + 1)
    return lambda: vllm.rejection_sample(
        rows, Q, tokens, ENDS, DRAFT_INDICES, REQUESTS, row_requests, DRAFT_INDICES, WARM, SEEDS, K
    )  # fmt: skip


def sglang_verification(function):
    outputs = torch.zeros(B * (K + 1)).int(), torch.zeros(B, K + 1).int(), torch.zeros(B).int()
    tokens = torch.nn.functional.pad(DRAFTS, (1, 0))

    def call():
        function(*outputs, tokens, *TREE, *UNIFORMS, P, Q)
        return tuple(x.clone() for x in outputs)

    return call


NUMBERS = torch.arange(-1, K * K).expand(B, -1).contiguous(), torch.arange(K).expand(B, -1).contiguous()


def sglang_tree():
    mask, outputs = torch.zeros(B * (K + 1) ** 2).bool(), torch.zeros(4, B, K + 1).long()
    positions, *links = outputs

    def call():
        sglang.build_tree_kernel_efficient(*NUMBERS, REQUESTS, mask, positions.view(-1), *links, K, 2, K + 1, 1)
        return mask.clone(), outputs.clone()

    return call


CHAIN = lambda: sd.verify_chain(DRAFTS, P, Q, space="probs", seed=SEEDS, position=0)  # noqa: E731

# name -> (adapter, bare op)
CALLS = {
    "sampling_from_logits": (
        lambda: flashinfer.sampling_from_logits(LOGITS, seed=SEED, offset=0),
        lambda: sd.race_sample(LOGITS, seed=SEED, position=ROWS, nonce=0),
    ),
    "top_k_top_p_sampling_from_logits": (
        lambda: flashinfer.top_k_top_p_sampling_from_logits(LOGITS, 3, 0.9, seed=SEED, offset=0),
        lambda: sd.race_sample(LOGITS, seed=SEED, position=ROWS, nonce=0, sampling=FILTERS),
    ),
    "top_k_mask_logits": (
        lambda: flashinfer.top_k_mask_logits(LOGITS, 3),
        lambda: sd.cutoff(LOGITS, sampling=sd.Sampling.flashinfer(top_k=3)),
    ),
    "chain_speculative_sampling": (
        lambda: flashinfer.chain_speculative_sampling(Q, DRAFTS, P, seed=SEED, offset=0),
        lambda: sd.verify_chain(DRAFTS, P, Q, space="probs", seed=SEED, position=ROUNDS, nonce=0),
    ),
    "vllm.rejection_sample": (
        vllm_rejection(),
        lambda: sd.verify_chain(DRAFTS, P, Q, seed=SEEDS, position=0),
    ),
    "vllm.gumbel_sample": (
        lambda: vllm.gumbel_sample(LOGITS, REQUESTS, WARM, SEEDS, POSITIONS, True, False),
        lambda: sd.race_sample(LOGITS, seed=SEEDS, position=REQUESTS, temperature=WARM),
    ),
    "chain_speculative_sampling_triton": (sglang_verification(sglang.chain_speculative_sampling_triton), CHAIN),
    "tree_speculative_sampling_target_only": (
        sglang_verification(sglang.tree_speculative_sampling_target_only),
        lambda: sd.verify_linked_tree(
            TOKENS, P, first_child=TREE[1], next_sibling=TREE[2], uniforms=UNIFORMS[0], seed=SEEDS
        ),
    ),
    "verify_tree_greedy": (
        sglang_verification(lambda *arguments: sglang.verify_tree_greedy(*arguments[:-4], WANTED)),
        lambda: sd.verify_linked_tree(TOKENS, first_child=TREE[1], next_sibling=TREE[2], target_tokens=WANTED),
    ),
    "build_tree_kernel_efficient": (sglang_tree(), lambda: sd.build_tree(*NUMBERS, topk=K, prefix_len=REQUESTS)),
    "speculative_sampling": (
        lambda: transformers.speculative_sampling(DRAFTS[:1], Q[:1].log(), K, P[:1].log()),
        lambda: sd.verify_chain(DRAFTS[:1], P[:1].log(), Q[:1].log(), seed=SEED, position=0),
    ),
}


@table([Case("adapter", {"call": name}, {OURS: adapter, "bare op": bare}) for name, (adapter, bare) in CALLS.items()])
def bench_adapter(measure, case, contender, threads):
    case.run(measure, contender)

"""Faults to plant: what a change might break, and the test of the quick set that must go red.

Each is one text of one file, and what stands in its place. `tests/test_faults.py` plants them in a copy of the tree.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """``text`` stands once in ``file``. ``tests`` are arguments of pytest."""

    file: str
    text: str
    other: str
    tests: str


FAULTS = {
    # The reference and what is around the ops, in Python.
    "residual, reference: without draft_prob": Fault(
        "specdec_kernels/backends/reference/laws.py",
        "excess = p - draft_prob.unsqueeze(-1) * q",
        "excess = p - q",
        "tests/ops/test_residual.py -k reference",
    ),
    "race, reference: a row without weight has no token": Fault(
        "specdec_kernels/backends/reference/race_sample.py",
        "nobody = 0 if",
        "nobody = -1 if",
        "tests/ops/test_race_sample.py -k reference",
    ),
    "generate: a penalty does not see the prompt": Fault(
        "specdec_kernels/generate/edits.py",
        "self.prompt = mask_of(prompts, words, device)",
        "self.prompt = mask_of([[] for _ in prompts], words, device)",
        "tests/generate/test_edits.py",
    ),
    "engines: two counts of one generator give one seed": Fault(
        "specdec_kernels/engines/_noise.py",
        "seed + count * SPREAD",
        "seed + count % 4 * SPREAD",
        "tests/package/test_docs.py -k engines._noise",
    ),
    "engines, SGLang: no threshold for all children": Fault(
        "specdec_kernels/engines/sglang.py",
        "threshold_total=max(threshold_acc, 1e-9)",
        "threshold_total=1.0",
        "tests/engines/test_sglang.py",
    ),
    "engines, vLLM V1: drafts one place later": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "else ends - rejected) + 1",
        "else ends - rejected) + 2",
        "tests/engines/test_vllm_v1_plugin.py",
    ),
    "engines, vLLM V1: noise that drafts do not share": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "nonce=TARGET if races else nonce",
        "nonce=nonce",
        "tests/engines/test_vllm_v1_plugin.py",
    ),
    "engines, vLLM V1: one seed for all": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "seeds.append(state.specdec_seed)",
        "seeds.append(0)",
        "tests/engines/test_vllm_v1_plugin.py",
    ),
    "engines, vLLM V1: filters of the draft alone": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "sampling=laws.sampling, seed=laws.seeds, nonce=TARGET, out",
        "sampling=Sampling(laws.sampling.temperature), seed=laws.seeds, nonce=TARGET, out",
        "tests/engines/test_vllm_v1_plugin.py",
    ),
    "engines, vLLM: numbers of the first slots": Fault(
        "specdec_kernels/engines/_vllm_rounds.py",
        "request_index=idx_mapping, form=EMITTED,",
        "request_index=torch.arange(batch), form=EMITTED,",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM: plain steps have numbers by row": Fault(
        "specdec_kernels/engines/_vllm_rounds.py",
        "request_index=slots, form=IN_RANGE,",
        "request_index=torch.arange(len(rows)), form=IN_RANGE,",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM: a filter is on if the last request has it": Fault(
        "specdec_kernels/engines/_vllm.py",
        "(states.min_p.np[slots] != 0.0).any()",
        "(states.min_p.np[slots[-1:]] != 0.0).any()",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM: a recycled slot keeps its seed": Fault(
        "specdec_kernels/engines/_vllm.py",
        "fused=fused), self.sampling_states.seeds.gpu",
        "fused=fused), vars(self).setdefault('old', self.sampling_states.seeds.gpu.clone())",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM: what a slot had said is counted on": Fault(
        "specdec_kernels/engines/_vllm.py",
        "mask[slots] = bits(counts[slots] > 0)",
        "mask[: len(slots)] = bits(counts[slots] > 0)",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM: laws of drafts are kept by row": Fault(
        "specdec_kernels/engines/vllm.py",
        "slots=expanded_idx_mapping, column=",
        "slots=torch.arange(len(source)), column=",
        "tests/engines/test_slot_machine.py -k 'test_vllm and not v1'",
    ),
    "engines, vLLM V1: laws are kept while as many run": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "self._of is not metadata:",
        "len(self._laws.seeds) != len(metadata.temperature):",
        "tests/engines/test_slot_machine.py -k test_vllm_v1",
    ),
    "engines, vLLM V1: a place keeps its seed": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "state = self.runner.requests[name]",
        "state = vars(self).setdefault('places', {}).setdefault(len(seeds), self.runner.requests[name])",
        "tests/engines/test_slot_machine.py -k test_vllm_v1",
    ),
    "engines, vLLM V1: a generator of another request": Fault(
        "specdec_kernels/engines/vllm_v1.py",
        "seed_of(metadata.generators[index], device)",
        "seed_of(list(metadata.generators.values())[-1 - index], device)",
        "tests/engines/test_slot_machine.py -k v1_function",
    ),
    "engines, SGLang: seeds by place": Fault(
        "specdec_kernels/engines/_sglang.py",
        'info.sampling_seed.long(), "nonce": 0}',
        'info.sampling_seed.long().sort().values, "nonce": 0}',
        "tests/engines/test_slot_machine.py -k sglang",
    ),
    "engines, SGLang: late tokens of another slot": Fault(
        "specdec_kernels/engines/_sglang_penalties.py",
        "recent.tokens[slots[:, None], positions % PLACES]",
        "recent.tokens[torch.arange(len(slots))[:, None], positions % PLACES]",
        "tests/engines/test_slot_machine.py -k sglang",
    ),
    "engines, SGLang: who comes back was counted already": Fault(
        "specdec_kernels/engines/_sglang_penalties.py",
        "        req.specdec_counted = 0",
        "        req.specdec_counted = counted(req)",
        "tests/engines/test_slot_machine.py -k sglang",
    ),
    "engines, mlx-lm: one nonce for all rounds": Fault(
        "specdec_kernels/engines/_mlx_lm.py",
        'nonce=count if method == "block" else 0',
        "nonce=0",
        "tests/engines/test_mlx_lm.py -k look_ahead",
    ),
    "engines, llama.cpp: a context that was used is not empty": Fault(
        "specdec_kernels/engines/_llamacpp.py",
        "        self.context.clear()\n",
        "",
        "tests/engines/test_slot_machine.py -k llamacpp",
    ),
    "engines, transformers: seeds by place": Fault(
        "specdec_kernels/engines/transformers.py",
        "if seed is None else seed, len(texts))",
        "if seed is None else sorted(seed), len(texts))",
        "tests/engines/test_slot_machine.py -k transformers",
    ),
    # The maths that the CPU and CUDA share.
    "walk: a token drawn before counts again for the sibling": Fault(
        "csrc/include/specdec/walk.h",
        "if (repeats) set(&m.untried_mass, 1.0f);",
        "set(&m.untried_mass, 1.0f);",
        "tests/ops/test_tree_laws.py -k cpu",
    ),
    "walk: a slot that was not drafted, but could have been, races": Fault(
        "csrc/include/specdec/walk.h",
        "if (at.tried || low(subtracted) < 1.0f) return",
        "if (at.tried) return",
        "tests/ops/test_chain_laws.py -k cpu",
    ),
    "chain: rows of packed requests are one too many": Fault(
        "csrc/include/specdec/chain.h",
        "from -= b, to -= b + 1;",
        "from -= b, to -= b;",
        "tests/ops/test_verify_chain.py tests/ops/test_input_rows.py -k cpu",
    ),
    "tree: a token may be tried twice under a node": Fault(
        "csrc/include/specdec/tree.h",
        "draft_token(elder) == token) return true;",
        "draft_token(elder) == token) return false;",
        "tests/ops/test_verify_tree.py tests/ops/test_traversal.py -k cpu",
    ),
    "tree: a node may be its own parent": Fault(
        "csrc/include/specdec/tree.h",
        "parent < node) return",
        "parent <= node) return",
        "tests/ops/test_verify_tree.py tests/ops/test_status.py -k cpu",
    ),
    "compact_kv: a path may stand still": Fault(
        "csrc/include/specdec/tree.h",
        "path[moves] > last &&",
        "path[moves] >= last &&",
        "tests/ops/test_compact_kv.py -k cpu",
    ),
    "links: a token listed twice weighs twice": Fault(
        "csrc/include/specdec/link_walk.h",
        "if (lists(node, token, count)) return false;",
        "",
        "tests/ops/test_verify_links.py -k cpu",
    ),
    "traversal: what a leaf takes does not grow with its weight": Fault(
        "csrc/include/specdec/traversal.h",
        "return subtracted_after(subtracted, div(share, a));",
        "return subtracted_after(subtracted, share);",
        "tests/ops/test_traversal_laws.py -k cpu",
    ),
    "walk_tables: the row that ended the walk does not say what it met": Fault(
        "csrc/include/specdec/walk_tables.h",
        "*draw = {0, status_of(node)};",
        "*draw = {0, SPECDEC_STATUS_OK};",
        "tests/ops/test_walk_tables.py -k cpu",
    ),
    "filters: the last token of a tie is dropped": Fault(
        "csrc/include/specdec/filter.h",
        "v == value && token <= last",
        "v == value && token < last",
        "tests/ops/test_filters.py tests/ops/test_cutoff.py -k cpu",
    ),
    "edits: a penalty looks at the logit without its bias": Fault(
        "csrc/include/specdec/edit.h",
        "where(greater(biased, zero),",
        "where(greater(logit, zero),",
        "tests/ops/test_edits.py -k cpu",
    ),
    "draft_map: a token is looked for behind its place": Fault(
        "csrc/include/specdec/draft_map.h",
        "tokens[middle] < token",
        "tokens[middle] <= token",
        "tests/ops/test_draft_map.py -k cpu",
    ),
    "overlap: a token that the draft never draws costs nothing": Fault(
        "csrc/include/specdec/overlap.h",
        "sub(log_p, log_q), Float(0.0f))",
        "min(sub(log_p, log_q), Float(80.0f)), Float(0.0f))",
        "tests/ops/test_overlap.py -k cpu",
    ),
    "race: of equal scores the later token wins": Fault(
        "csrc/include/specdec/race.h",
        "a.score == b.score && a.token < b.token",
        "a.score == b.score && a.token > b.token",
        "tests/ops/test_race_sample.py tests/ops/test_race_topk.py -k cpu",
    ),
    "race: bounds have no slack": Fault(
        "csrc/include/specdec/race.h",
        "add(Float(2e-5f), mul(Float(4e-7f), add(magnitude(a), magnitude(b))))",
        "mul(Float(0.0f), add(magnitude(a), magnitude(b)))",
        "tests/backends/test_cpu_bounds.py",
    ),
    # The CPU.
    "race_topk, CPU: places that nobody takes are left as they were": Fault(
        "csrc/cpu/ops/race_topk.cpp",
        "std::fill(place + count, place + places, kNobody);",
        "",
        "tests/ops/test_race_topk.py -k cpu",
    ),
    "logprobs, CPU: at temperature 0 every token is certain": Fault(
        "csrc/cpu/ops/logprobs.cpp",
        "column == argmax ? 0.0f : -kInfinity, greedy",
        "0.0f, greedy",
        "tests/ops/test_logprobs.py -k cpu",
    ),
    "verify_links, CPU: an empty residual says nothing": Fault(
        "csrc/cpu/ops/verify_links.cpp",
        "status |= SPECDEC_STATUS_EMPTY_RESIDUAL;",
        "",
        "tests/ops/test_verify_links.py -k cpu",
    ),
    "cutoff, CPU: a row without weight says nothing": Fault(
        "csrc/cpu/ops/cutoff.cpp",
        "top == -kInfinity ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK",
        "SPECDEC_STATUS_OK",
        "tests/ops/test_cutoff.py -k cpu",
    ),
    "direct calls: an output may be any view": Fault(
        "csrc/python/direct.cpp",
        "} else if (!is_contiguous(t)) {",
        "} else if (false) {",
        "tests/ops/test_direct.py -k cpu",
    ),
    "direct calls: outputs may lie over inputs": Fault(
        "csrc/python/tensor.cpp",
        "(span.written && span.begin < end)",
        "(span.written && false)",
        "tests/ops/test_direct.py -k cpu",
    ),
    # CUDA, on the played machine.
    "verify_links, CUDA: an empty residual says nothing": Fault(
        "csrc/cuda/ops/verify_links.cu",
        "status |= SPECDEC_STATUS_EMPTY_RESIDUAL;",
        "",
        "tests/ops/test_verify_links.py -k cuda-host",
    ),
    "count_tokens, CUDA: a token that was seen may have a count of 0": Fault(
        "csrc/cuda/ops/count_tokens.cu",
        "atomicMax(counts + token, 1);",
        "atomicMax(counts + token, 0);",
        "tests/ops/test_count_tokens.py -k cuda-host",
    ),
    "mask_logits, CUDA: the last of a tie is dropped": Fault(
        "csrc/cuda/ops/mask_logits.cu",
        "token > what.cut.last",
        "token >= what.cut.last",
        "tests/ops/test_mask_logits.py -k cuda-host",
    ),
    "verify_chain, CUDA: the queue leaves its counters": Fault(
        "csrc/cuda/walk/race_queue.cuh",
        "if (threadIdx.x < kLeft) a.counters[threadIdx.x] = 0;",
        "",
        "tests/backends/test_cuda_queue.py",
    ),
    "verify_chain, CUDA: the queue leaves its list": Fault(
        "csrc/cuda/walk/race_queue.cuh",
        "a.list[item.place - queued.behind + threadIdx.x] = 0;",
        "(void)0;",
        "tests/backends/test_cuda_queue.py",
    ),
    "CUDA: an aligned row loses its last element": Fault(
        "csrc/cuda/rows/rows.cuh",
        "if ((row.vocab - first) % T::kPerVector == 0) return;",
        "if ((row.vocab - first) % T::kPerVector <= 1) return;",
        "tests/backends/test_cuda_edges.py -k aligned",
    ),
    "CUDA: a shifted row loses its first element": Fault(
        "csrc/cuda/rows/rows.cuh",
        "begins = first <= 0;",
        "begins = false;",
        "tests/backends/test_cuda_edges.py -k shifted",
    ),
    "CUDA: a race loses what its list has no room for": Fault(
        "csrc/cuda/rows/race.cuh",
        "any = (left | open) != 0;",
        "left = 0, any = open != 0;",
        "tests/backends/test_cuda_edges.py -k more_may_win",
    ),
    "CUDA: a race's guess is above the score": Fault(
        "csrc/cuda/rows/race.cuh",
        "log2_approx(u) * 0.69314718f - 4.1588831f + u;",
        "log2_approx(u) * 0.69314718f - 4.1588831f;",
        "tests/backends/test_cuda_edges.py -k first_guess",
    ),
    "CUDA: nobody asks the parts behind the 32nd": Fault(
        "csrc/cuda/team/block_reduce.cuh",
        "status |= static_cast<unsigned>(word(i, 1));",
        "status |= i < 32 ? static_cast<unsigned>(word(i, 1)) : 0;",
        "tests/backends/test_cuda_edges.py -k every_part",
    ),
    "pairs, CUDA: filters do not wait for an argmax before them": Fault(
        "csrc/cuda/rows/filtered_row.cuh",
        "    __syncthreads();  // what an argmax",
        "    if (side == 1) __syncthreads();  // what an argmax",
        "tests/backends/test_cuda_filters.py -k figures_of_pairs",
    ),
    "CUDA: the eighth block of a cluster takes the first one's tiles": Fault(
        "csrc/cuda/rows/pair_sums.cuh",
        "for (int tile = part.rank * warps_in_block() + warp_id();",
        "for (int tile = part.rank % 7 * warps_in_block() + warp_id();",
        "tests/backends/test_cuda_edges.py -k clusters",
    ),
    "CUDA: a filtered race reads before the kernel before has ended": Fault(
        "csrc/cuda/ops/race_sample.cu",
        "  wait_for_kernel_before();\n  SPECDEC_SHARED(",
        "  SPECDEC_SHARED(",
        "tests/backends/test_cuda_edges.py -k filtered",
    ),
    "mass_tiles, CUDA: a tile behind the row": Fault(
        "csrc/cuda/ops/mass_tiles.cu",
        "tile < mass_tiles_of(row.vocab)",
        "tile <= mass_tiles_of(row.vocab)",
        "tests/backends/test_cuda_edges.py -k tiles_end",
    ),
    "verify_chain, CUDA: rows ahead by 32 bits": Fault(
        "csrc/cuda/walk/walker.cuh",
        "work.draft + ahead * a.p.draft.row_stride)",
        "work.draft + static_cast<int32_t>(ahead * a.p.draft.row_stride))",
        "tests/backends/test_cuda_ops.py -k 'far or 64_bits'",
    ),
    "bounds: a sum is known without its error": Fault(
        "csrc/include/specdec/bounds.h",
        "return 7e-4f + 4e-7f * magnitude(largest);",
        "return 0.0f * magnitude(largest);",
        "tests/backends/test_cpu_bounds.py",
    ),
    # Triton.
    "cutoff, Triton: what ties with the argmax stays": Fault(
        "triton_kernels/cutoff.py",
        "own_rules = rules_of(rules, greedy)",
        "own_rules = rules",
        "tests/ops/test_cutoff.py -k one_of_equal",
    ),
    "count_tokens, Triton: old counts stay": Fault(
        "triton_kernels/count_tokens.py",
        "mask=there & (seen == 0))",
        "mask=there & (seen == 2))",
        "tests/ops/test_count_tokens.py -k triton",
    ),
    "store_rows, Triton: a column too far is written": Fault(
        "triton_kernels/store_rows.py",
        "(place >= 0) & (place < columns)",
        "(place >= 0)",
        "tests/ops/test_store_rows.py -k triton",
    ),
    "race_sample, Triton: a row without weight has a token": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | idle, token, 0)",
        "tl.where(weighs | idle, token, 1)",
        "tests/ops/test_race_sample.py -k triton",
    ),
    "race_sample, Triton: the compiler refuses what the interpreter takes": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | idle, token, 0)",
        "tl.where(weighs | idle, token, sum([0]))",
        "tests/backends/test_triton_compiled.py -k reads",
    ),
}

"""Faults to plant that tell a story: what a change might break, and the test of the quick set that must go red.

Each is one text of one file, and what stands in its place; 60 at most. Faults by syntax are those of `mutators.py`,
which need no text. `support.planting` plants both in a copy of the tree.

    python -m tests.support.faults              which faults there are, and the tests that must see them
    python -m tests.support.faults --plant      which test sees each; with words, only of faults whose names have them
"""

import sys

from tests.support.planting import KINDS, Fault, build, make_tree, plant

# A fault's name and file, its text, what takes its place, and the tests. A newline is written as \n.
TABLE = r"""
# Python around the ops.
engines: two counts of one generator give one seed | specdec_kernels/engines/_noise.py
- seed + count * SPREAD
+ seed + count % 4 * SPREAD
? tests/package/test_docs.py -k engines._noise
engines, SGLang: no threshold for all children | specdec_kernels/engines/sglang.py
- threshold_total=max(threshold_acc, 1e-9)
+ threshold_total=1.0
? tests/engines/test_sglang.py
engines, vLLM V1: drafts one place later | specdec_kernels/engines/_vllm_v1.py
- else ends - rejected) + self._steps
+ else ends - rejected) + self._steps + 1
? tests/engines/test_vllm_v1_plugin.py
engines, vLLM V1: noise that drafts do not share | specdec_kernels/engines/_vllm_v1.py
- laws.seeds, «TARGET if races else self.drawn»
+ self.drawn
? tests/engines/test_vllm_v1_plugin.py
engines, vLLM V1: one seed for all | specdec_kernels/engines/_vllm_v1.py
- seeds.append(state.specdec_seed)
+ seeds.append(0)
? tests/engines/test_vllm_v1_plugin.py
engines, vLLM V1: a grammar leaves nothing | specdec_kernels/engines/_vllm_v1.py
- (inputs >= one.bound) | rows.isneginf().all(1)
+ inputs >= one.bound
? tests/engines/test_vllm_v1_plugin.py -k lengths
engines, vLLM: given tokens have the scores of the likeliest | specdec_kernels/engines/_vllm_rows.py
- given.where(asked, top_tokens), each.where(asked, top_logprobs)
+ given.where(asked, top_tokens), top_logprobs
? tests/engines/test_vllm_plugin.py -k given_tokens
engines, vLLM: drafts with filters are verified as if they had none | specdec_kernels/engines/_vllm.py
- drawn_by=law.sampling if filtered else Sampling(law.sampling.temperature)
+ drawn_by=Sampling(law.sampling.temperature)
? tests/engines/test_vllm_plugin.py -k filters_of_their
engines: the last accepted draft is not counted | specdec_kernels/engines/counters.py
- for j in range(i, most + 1)
+ for j in range(i + 1, most + 1)
? tests/engines/test_mlx_lm.py -k equal_models
engines: tensors of a FakeTensorMode are kept | specdec_kernels/engines/_noise.py
- made.cache_clear()
+ pass
? tests/engines/test_flashinfer.py -k fake_call
engines, vLLM: numbers of the first slots | specdec_kernels/engines/_vllm_rounds.py
- request_index=idx_mapping, output_format=EMITTED,
+ request_index=torch.arange(batch), output_format=EMITTED,
? tests/engines/test_slot_machine.py -k 'test_vllm and not v1'
engines, vLLM: a recycled slot keeps its seed | specdec_kernels/engines/_vllm.py
- fused=fused), self.sampling_states.seeds.gpu
+ fused=fused), vars(self).setdefault('old', self.sampling_states.seeds.gpu.clone())
? tests/engines/test_slot_machine.py -k 'test_vllm and not v1'
engines, vLLM V1: laws are kept while as many run | specdec_kernels/engines/_vllm_v1.py
- self._of is not metadata:
+ len(self._laws.seeds) != len(metadata.temperature):
? tests/engines/test_slot_machine.py -k test_vllm_v1
engines, SGLang: seeds by place | specdec_kernels/engines/_sglang.py
- info.sampling_seed.long(), "nonce": 0}
+ info.sampling_seed.long().sort().values, "nonce": 0}
? tests/engines/test_slot_machine.py -k sglang
engines, SGLang: late tokens of another slot | specdec_kernels/engines/_sglang_penalties.py
- slots.recent[indices[:, None], positions % RING]
+ slots.recent[torch.arange(len(indices))[:, None], positions % RING]
? tests/engines/test_slot_machine.py -k sglang
engines, SGLang: drafts of a block one place later | specdec_kernels/engines/_sglang_blocks.py
- "position": position + index}
+ "position": position + places + 1}
? tests/engines/test_sglang_blocks.py -k all_accepted
engines, mlx-lm: one nonce for all rounds | specdec_kernels/engines/_mlx_lm.py
- nonce=count if method == "block" else 0
+ nonce=0
? tests/engines/test_mlx_lm.py -k look_ahead
engines, llama.cpp: a context that was used is not empty | specdec_kernels/engines/_llamacpp.py
-         self.context.clear()\n
+
? tests/engines/test_slot_machine.py -k llamacpp
conformance: an accepted token need not be the draft | specdec_kernels/conformance/__init__.py
- said[:-1] != tuple(drafts[: len(said) - 1])
+ said[:0] != tuple(drafts[:0])
? tests/test_conformance.py -k 'not our_op'
conformance: no second call | specdec_kernels/conformance/__init__.py
- tokens, self.emitted(batch))\n            for
+ tokens, tokens)\n            for
? tests/test_conformance.py -k 'not our_op'
conformance: neighbours are compared by the first token | specdec_kernels/conformance/__init__.py
- (one == other).all(1).sum()
+ (one == other)[:, 0].sum()
? tests/test_conformance.py -k 'not our_op'
generate: the status of the last text | specdec_kernels/generate/loop.py
- status=outcome.status[row])
+ status=outcome.status[-1])
? tests/generate/test_generate.py -k status
generate: filters of the first texts when others ended | specdec_kernels/generate/loop.py
- at_rows(sampling, going)
+ at_rows(sampling, list(range(len(going))))
? tests/generate/test_generate.py -k s_own_stays
generate: states are not put back | specdec_kernels/generate/reader.py
- self.cache.put_back(several, stored[at][1])
+ self.cache.put_back([], {})
? tests/generate/test_hybrid.py -k 'equals_plain and qwen3_next'
generate: a draft goes on from rejected tokens | specdec_kernels/generate/chains.py
-             self.drafter.roll_back(self.committed)\n
+             pass\n
? tests/generate/test_generate.py -k s_own_stays
generate: siblings drawn independently are one | specdec_kernels/generate/drafters.py
- _replace(nonce=1 + index)
+ _replace(nonce=1)
? tests/generate/test_drafters.py -k siblings_drawn
generate: children of an absent node | specdec_kernels/generate/drafters.py
- (tokens[:, parents[children]] < 0) | (most <= depth)[:, None]
+ (most <= depth)[:, None].expand(-1, len(children))
? tests/generate/test_drafters.py -k absent
generate: what is drafted is not repeated | specdec_kernels/generate/edits.py
- seen = bits(self.prompt)[:, None, columns] | (counts > 0)
+ seen = bits(self.prompt)[:, None, columns] | (self.counts[:, None, columns] > 0)
? tests/generate/test_edits.py -k fewer
generate: siblings of different nodes share noise | specdec_kernels/generate/drafters.py
- of_races(noise, index * nodes, nodes) if
+ of_races(noise, index, nodes) if
? tests/generate/test_trees.py -k branches
sharded: an index out of range is idle | specdec_kernels/sharded/_requests.py
- torch.where(request_index == -1, -1, NO_ENTRY)
+ -1
? tests/sharded/test_rejection.py -k requests_by_their_index
sharded: names that begin alike are alike | specdec_kernels/sharded/_shard.py
- zlib.crc32(word.encode())
+ zlib.crc32(word[:7].encode())
? tests/sharded/test_races.py -k 'alike or disagree'
calls: two requests share their noise | specdec_kernels/calls/inputs.py
- if requests > 1 and all(
+ if requests > 2 and all(
? tests/ops/test_bad_input.py -k two_requests
overlap: a draft's argmax has a gradient | specdec_kernels/ops/_gradients.py
- self.scale, self.some_greedy = inverse * sampled, True
+ self.scale, self.some_greedy = inverse, True
? tests/ops/test_overlap.py -k 'argmax_has_no and reference'
# The maths that the CPU and CUDA share, and the CPU.
walk: a row without weight does not end a branch | csrc/include/specdec/walk.h
- return (in_range && low(p) > 0.0f) || ops.is_empty(node, ends);
+ return true;
? tests/ops/test_empty_rows.py -k cpu
walk: a race goes on behind a row without weight | csrc/include/specdec/walk.h
- if («draw.empty») skip_drafts
+ false
? tests/ops/test_empty_rows.py -k cpu
walk: a token drawn before counts again for the sibling | csrc/include/specdec/walk.h
- if (repeats) set(&m.untried_mass, 1.0f);
+ set(&m.untried_mass, 1.0f);
? tests/ops/test_tree_laws.py -k cpu
tree: a token may be tried twice under a node | csrc/include/specdec/tree.h
- draft_token(elder) == token) «return true;»
+ return false;
? tests/ops/test_verify_tree.py tests/ops/test_traversal.py -k cpu
race: of equal scores the later token wins | csrc/include/specdec/race.h
- a.score == b.score && a.token < b.token
+ a.score == b.score && a.token > b.token
? tests/ops/test_race_sample.py tests/ops/test_race_topk.py -k cpu
bounds, CPU: a tile that is far above those before it is not weighed again | csrc/cpu/rows/law_row.cpp
- if (!(whole > unit_ + kFar)) return bound;
+ if (unit_ > -kInfinity) return bound;
? tests/backends/test_random_calls.py -k OracleCpu
cells, CPU: a NaN hides those before it | csrc/cpu/rows/law_row.cpp
- «max(d, max(c, max(b, max(a, F32x16(-kInfinity)))))»;
+ max(max(max(max(F32x16(-kInfinity), a), b), c), d)
? tests/backends/test_random_calls.py -k OracleCpu
filters: what top_p keeps is rounded down | csrc/include/specdec/filter.h
- f.top_p_fixed * (whole & 0xffffffffu) + 0xffffffffu
+ f.top_p_fixed * (whole & 0xffffffffu)
? tests/ops/test_cutoff.py -k 'rounded and cpu'
race, CPU: the second by bounds is forgotten | csrc/cpu/race/race_row.cpp
- second = max(second, min(c.score, most.score));
+
? tests/backends/test_cpu_bounds.py
rows: 32 bits from request to request | csrc/include/specdec/c/parts.h
- return «outer * request_stride» + inner * row_stride;\n  })\n  /* `row`
+ static_cast<int32_t>(outer * request_stride)
? tests/ops/test_offsets.py
# Direct calls.
direct calls: an output may be any view | csrc/python/direct.cpp
- else need(«t.is_contiguous()»);\n    need(!is_mask
+ true
? tests/ops/test_direct.py -k cpu
direct calls: outputs may lie over inputs | csrc/python/tensor.cpp
- if («other->begin < span->end» && span
+ false
? tests/ops/test_outputs.py -k TestMemory
# CUDA, on the played machine.
verify_chain, CUDA: rows behind the end leave their counters | csrc/cuda/chain/race.cuh
- rows[other].arrived = 0;
+
? tests/backends/test_cuda_order.py
verify_chain, CUDA: the next slots are weighed over the words of these | csrc/cuda/ops/verify_chain.cu
- a.sets = «(in_chunks || parts > 1) && a.chunk_size < drafts ? 2 : 1»;
+ 1
? tests/backends/test_cuda_order.py -k turns
verify_chain, CUDA: a turn's blocks come in the order of their numbers | csrc/cuda/chain/chunks.cuh
- number[0] = «atomicAdd(a.started, 1u)»;
+ blockIdx.x
? tests/backends/test_cuda_order.py -k turns
CUDA: a race's guess is above the score | csrc/cuda/rows/race.cuh
- «log2_approx(u) * 0.69314718f - 4.1588831f + u»;
+ log2_approx(u) * 0.69314718f - 4.1588831f
? tests/backends/test_cuda_edges.py -k first_guess
CUDA: the last block leaves out the parts behind the 32nd | csrc/cuda/team/block_reduce.cuh
- status |= static_cast<unsigned>(word(i, 1));
+ status |= i < 32 ? static_cast<unsigned>(word(i, 1)) : 0;
? tests/backends/test_cuda_edges.py -k every_part
CUDA: a filtered race reads before the kernel before has ended | csrc/cuda/ops/race_sample.cu
-   «wait_for_kernel_before();»\n  SPECDEC_SHARED(unsigned, block_bound, 1);\n  SPECDEC_SHARED(DecodedEdits
+
? tests/backends/test_cuda_edges.py -k filtered
CUDA: a block's best may be found again before all have read | csrc/cuda/team/block_reduce.cuh
- best = other > best ? other : best;\n  }\n  «__syncthreads();»
+
? tests/backends/test_cuda_ops.py -k odd_machines
verify_chain, CUDA: the last ticket comes early | csrc/cuda/rows/draw.cuh
- return before[0] == blocks - 1;
+ return before[0] + 2 >= blocks;
? tests/backends/test_cuda_chains.py -k odd_calls
verify_chain, filtered: the draft has the target's cut | csrc/cuda/chain/filtered.cuh
- pair.draft.support = {«draft.cut», filter_order(a, r, true)};
+ target.cut
? tests/backends/test_cuda_chains.py -k odd_chains_with_filters
verify_chain, CUDA: a row without weight does not end the chain | csrc/cuda/chain/drafts.cuh
- (all || r.target_law.needs_row()) && target_stats.is_empty()
+ false
? tests/ops/test_empty_rows.py -k 'cuda-host and block'
# Triton.
verify_chain, Triton: the draft refused at a row without weight is told of | triton_kernels/_sample_chain.py
- tl.where(empty, reported & _math.PARAMETER, reported)
+ reported
? tests/ops/test_empty_rows.py -k 'triton and sets_no_bit'
count_tokens, Triton: old counts stay | triton_kernels/count_tokens.py
- mask=there & (seen == 0))
+ mask=there & (seen == 2))
? tests/ops/test_count_tokens.py -k triton
race_sample, Triton: groups are left that may win | triton_kernels/_races.py
- left &= pack_groups(may_win(tops, a, best, row.law))
+ left = left * 0
? tests/backends/test_triton_ops.py -k whole_vocabulary
race_sample, Triton: the compiler refuses what the interpreter takes | triton_kernels/race_sample.py
- tl.where(weighs | at.idle, token, 0)
+ tl.where(weighs | at.idle, token, sum([0]))
? tests/backends/test_triton_compiled.py -k reads
Triton: a draft_prob below 0 is 1 | triton_kernels/_math.py
- tl.where(good, h, tl.where(h < 0.0, 0.0, 1.0))
+ tl.where(good, h, 1.0)
? tests/backends/test_triton_ops.py -k parameters_out_of_range
"""


def read_table():
    lines = [line for line in TABLE.strip("\n").split("\n") if not line.startswith("# ")]
    for head, *rest in zip(*(lines[i::4] for i in range(4)), strict=True):
        name, file = head.split(" | ")
        assert [line[0] for line in rest] == ["-", "+", "?"], name
        yield name, Fault(file, *(line[2:].replace("\\n", "\n") for line in rest))


FAULTS = dict(read_table())


def tree_of(kind):
    """A copy of the tree with all faults of a kind in it, built."""
    tree = make_tree(kind, {name: fault.change() for name, fault in FAULTS.items()})
    if output := build(kind, tree):
        raise RuntimeError(output[-6000:])
    return tree


def main(option="", *words):
    """Plants those whose names have these words; returns how many no test sees."""
    chosen = {name: fault.change() for name, fault in FAULTS.items() if all(word in name for word in words)}
    unseen = 0
    for kind in KINDS:
        of_kind = {name: change for name, change in chosen.items() if change.kind == kind}
        if option != "--plant":
            for name, change in of_kind.items():
                print(f"{name}\n    {change.file}: pytest {change.tests}")
            continue
        for name, seen in plant(of_kind, tree_of(kind)) if of_kind else ():
            unseen += seen.test is None or bool(seen.wrong)
            print(f"{seen.seconds:6.1f}  {name}\n        {seen.test or 'NOT SEEN'} {seen.wrong}", flush=True)
    return unseen


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Faults to plant: what a change might break, and the test of the quick set that must go red.

Each is one text of one file, and what stands in its place. `support.planting` plants them in a copy of the tree.

    python -m tests.support.faults              which faults there are, and the tests that must see them
    python -m tests.support.faults --plant      which test sees each; with words, only of faults whose names have them
"""

import re
import sys

from tests.support.planting import ROOT, Fault, planted, table


def lacking(file, function, statement, tests):
    """Faults that each leave out one statement of a file of C++, in functions of column 0: by regular expressions."""
    text, found = (ROOT / file).read_text(), {}
    heads = list(re.finditer(r"^\S[^\n;{]*?(\w+\([^;{]*?\))[^;{]*\{$", text, re.MULTILINE))
    for head, after in zip(heads, [*heads[1:], re.search(r"\Z", text)], strict=True):
        body = text[head.end() : after.start()] if re.match(function, head[0]) else ""
        for match in re.finditer(rf"(?<= )(?<!return )(if \([^\n]*\) )?((?:{statement})\([^;]*;)", body):
            at = head.end() + match.start(2)
            name = " ".join(f"{head[1]} lacks {match[0]}".split())
            found[name] = Fault(file, f"{text[head.start() : at]}«{match[2]}»", "", tests)
    return found


def operands(text, operator):
    """The parts of C++ that this operator joins, outside of all brackets, up to one that closes more: (place, part)."""
    depth, begin = 0, 0
    for match in re.finditer(rf"[([{{]|[)\]}}]|{re.escape(operator)}|\Z", text):
        depth += (match[0] in {*"([{"}) - (match[0] in {*")]}"})
        if depth < 0 or (match[0] in ("", operator) and not depth):
            part = text[begin : match.start()]
            yield begin + len(part) - len(part.lstrip()), part.strip()
            begin = match.end()
        if depth < 0:
            return


def needing(file, tests, unmet):
    """Faults that each let pass what a call of need(...) declines: one for each part of its condition. ``unmet``: names
    of those that change nothing here, and why."""
    text, found = (ROOT / file).read_text(), {}
    head = re.compile(r"^(?:  )?(?:static )?(?:[\w:]+[&*]? )+[*&]?(\w+)\(.*\{$", re.MULTILINE)
    for match in re.finditer(r"\bneed\((?!bool)", text):
        function = list(head.finditer(text, 0, match.start()))[-1]
        for i, part in operands(text[match.end() :], "&&"):
            at = match.end() + i
            name = " ".join(f"{function[1]} does not need {part}".split())
            name += " again" * sum(earlier.startswith(name) for earlier in found)
            found[name] = Fault(file, f"{text[function.start() : at]}«{part}»", f"({part}) || true", tests)
    for name in unmet:
        del found[name]
    return found


FAR = "tests/backends/test_random_calls.py -k OracleCpu"
TAILS = "tests/backends/test_random_calls.py -k far_tails"
BOUNDS = "tests/backends/test_bounds.py"
OFFSETS = "tests/ops/test_offsets.py"
CONTEXT = "tests/ops/test_context_seeds.py -k '[cpu'"
SHARED = "tests/ops/test_shared_rows.py"
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
        '"nonce": TARGET if races else nonce}',
        '"nonce": nonce}',
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
        "sampling=laws.sampling, out=(tokens",
        "sampling=Sampling(laws.sampling.temperature), out=(tokens",
        "tests/engines/test_vllm_v1_plugin.py",
    ),
    "engines, vLLM V1: texts are as long as the lists of the host": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "2 * (self.runner.num_spec_tokens + 1) if self.runner.use_async_scheduling else 0",
        "0",
        "tests/engines/test_vllm_v1_plugin.py -k lengths",
    ),
    "engines, vLLM V1: a text is as short at each row": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "one.least - row if",
        "one.least if",
        "tests/engines/test_vllm_v1_plugin.py -k lengths",
    ),
    "engines, vLLM V1: a text that is too short ends by a grammar": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "if request in short and short[request].grammar:",
        "if False:",
        "tests/engines/test_vllm_v1_plugin.py -k lengths",
    ),
    "engines, vLLM V1: a grammar leaves nothing": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "(lengths >= short.least) | rows.isneginf().all(1)",
        "lengths >= short.least",
        "tests/engines/test_vllm_v1_plugin.py -k lengths",
    ),
    "engines, vLLM V1: no bias beside drafts on a copy": Fault(
        "specdec_kernels/engines/_vllm_v1.py",
        "laws if verifier is not None else laws._replace(bias={})",
        "laws._replace(bias={})",
        "tests/engines/test_vllm_v1_plugin.py -k logprobs",
    ),
    "engines, vLLM: requests are checked as if they were not for us": Fault(
        "specdec_kernels/engines/vllm.py",
        "OURS.set(method_of(processor.vllm_config.additional_config) is not None)",
        "OURS.set(False)",
        "tests/engines/test_vllm_plugin.py -k no_parameter",
    ),
    "engines, vLLM: min_p is taken where vLLM verifies": Fault(
        "specdec_kernels/engines/vllm.py",
        "if not OURS.get():",
        "if False:",
        "tests/engines/test_vllm_plugin.py -k no_parameter",
    ),
    "engines, vLLM: given tokens have the scores of the likeliest": Fault(
        "specdec_kernels/engines/_vllm_rows.py",
        "given.where(asked, named), each.where(asked, known)",
        "given.where(asked, named), known",
        "tests/engines/test_vllm_plugin.py -k given_tokens",
    ),
    "engines, vLLM: padding of given tokens is token 0": Fault(
        "specdec_kernels/engines/_vllm.py",
        "masked_fill_(places >= state.num_token_ids.gpu[slots, None], -1)",
        "masked_fill_(places >= state.num_token_ids.gpu[slots, None], 0)",
        "tests/engines/test_vllm_plugin.py -k given_tokens",
    ),
    "engines, vLLM: drafts have the filters that a slot had when the engine began": Fault(
        "specdec_kernels/engines/_vllm.py",
        "number.copy_(x.gpu, non_blocking=True)",
        "pass",
        "tests/engines/test_vllm_plugin.py -k filters_of_their",
    ),
    "engines, vLLM: drafts with filters are verified as if they had none": Fault(
        "specdec_kernels/engines/_vllm.py",
        "drawn_by=law.sampling if filtered else Sampling(law.sampling.temperature)",
        "drawn_by=Sampling(law.sampling.temperature)",
        "tests/engines/test_vllm_plugin.py -k filters_of_their",
    ),
    "engines: the last accepted draft is not counted": Fault(
        "specdec_kernels/engines/counters.py",
        "for j in range(i, most + 1)",
        "for j in range(i + 1, most + 1)",
        "tests/engines/test_mlx_lm.py -k equal_models",
    ),
    "engines: tensors of a FakeTensorMode are kept": Fault(
        "specdec_kernels/engines/_noise.py",
        "made.cache_clear()",
        "pass",
        "tests/engines/test_flashinfer.py -k fake_call",
    ),
    "engines: a checkout's folder is looked into": Fault(
        "specdec_kernels/engines/_replace.py",
        '"verify_chain.py").exists()',
        '"verify_chain.py").is_dir()',
        "tests/engines/test_engines.py -k checkout",
    ),
    "engines: the package of another project is hidden": Fault(
        "specdec_kernels/engines/_replace.py",
        'and (Path(seen.origin).parent / "verify_chain.py").exists()',
        "",
        "tests/engines/test_engines.py -k checkout",
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
    "engines, SGLang: drafts of a block one place later": Fault(
        "specdec_kernels/engines/_sglang_blocks.py",
        '"position": position + places}',
        '"position": position + places + 1}',
        "tests/engines/test_sglang_blocks.py -k all_accepted",
    ),
    "engines, vLLM: DSpark's drafts one place later": Fault(
        "specdec_kernels/engines/_vllm.py",
        "self.seeds, sample_pos - 1, TARGET)",
        "self.seeds, sample_pos, TARGET)",
        "tests/engines/test_vllm_plugin.py -k dspark",
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
        "if seed is None else seed\n    noise",
        "if seed is None else sorted(seed)\n    noise",
        "tests/engines/test_slot_machine.py -k transformers",
    ),
    "conformance: an accepted token need not be the draft": Fault(
        "specdec_kernels/conformance.py",
        "(differ & (places < number - 1), ",
        "(differ & (places < 0), ",
        "tests/test_conformance.py -k 'not our_op'",
    ),
    "conformance: no second call": Fault(
        "specdec_kernels/conformance.py",
        "tokens, self.emitted(batch))\n        pairs",
        "tokens, tokens)\n        pairs",
        "tests/test_conformance.py -k 'not our_op'",
    ),
    "conformance: one request alone is not tried": Fault(
        "specdec_kernels/conformance.py",
        '("alone", 1)',
        '("alone", 7)',
        "tests/test_conformance.py -k 'not our_op'",
    ),
    "conformance: texts are compared by two tokens": Fault(
        "specdec_kernels/conformance.py",
        "for slot in range(DRAFTS + 1):\n            rows = table(shaped, slot)",
        "for slot in range(DRAFTS):\n            rows = table(shaped, slot)",
        "tests/test_conformance.py -k 'not our_op'",
    ),
    "conformance: neighbours are compared by the first token": Fault(
        "specdec_kernels/conformance.py",
        "(one == other).all(1).sum()",
        "(one == other)[:, 0].sum()",
        "tests/test_conformance.py -k 'not our_op'",
    ),
    "generate: the status of the last text": Fault(
        "specdec_kernels/generate/loop.py",
        "status=outcome.status[row])",
        "status=outcome.status[-1])",
        "tests/generate/test_generate.py -k status",
    ),
    "generate: whether there is a law is asked of the first text": Fault(
        "specdec_kernels/generate/loop.py",
        "if outcome.status[row] & Status",
        "if outcome.status[0] & Status",
        "tests/generate/test_failures.py",
    ),
    "generate: filters of the first texts when others ended": Fault(
        "specdec_kernels/generate/loop.py",
        "kept(sampling, going)",
        "kept(sampling, list(range(len(going))))",
        "tests/generate/test_generate.py -k s_own_stays",
    ),
    "generate: an edit's record stays with the first texts": Fault(
        "specdec_kernels/generate/loop.py",
        "record.keep(going)",
        "record.keep(list(range(len(going))))",
        "tests/generate/test_generate.py -k s_own_stays",
    ),
    "generate: a slot too few": Fault(
        "specdec_kernels/generate/loop.py",
        "for request in requests) + room\n",
        "for request in requests) + room - 1\n",
        "tests/generate/test_generate.py -k s_own_stays",
    ),
    "generate: an end that completes a stop string is a stop": Fault(
        "specdec_kernels/generate/loop.py",
        "if token in self.eos:",
        "if token in self.eos and not self.stream.stopped():",
        "tests/generate/test_generate.py -k completes",
    ),
    "generate: a draft without a law is named with the text's length": Fault(
        "specdec_kernels/generate/trees.py",
        "yield Law(model, self.length[row] + depth, law)",
        "yield Law(model, self.length[row], law)",
        "tests/generate/test_failures.py -k draft_is_named",
    ),
    "mlx-lm: states are not put back": Fault(
        "specdec_kernels/engines/_mlx_lm.py",
        "if state is not None:\n                each.state",
        "if state is not None:\n                copied",
        "tests/engines/test_mlx_lm.py -k cannot_rewind",
    ),
    "generate: states are not put back": Fault(
        "specdec_kernels/generate/reader.py",
        "self.cache.put_back(several, kept[at][1])",
        "self.cache.put_back([], {})",
        "tests/generate/test_hybrid.py -k 'equals_plain and qwen3_next'",
    ),
    "generate: states are put back a token late": Fault(
        "specdec_kernels/generate/reader.py",
        "cached[row] = kept[at][0][row]",
        "cached[row] = kept[at][0][row] + 1",
        "tests/generate/test_hybrid.py -k 'equals_plain and qwen3_next'",
    ),
    "generate: a shorter text keeps the states of its padding": Fault(
        "specdec_kernels/generate/reader.py",
        "if any(behind):",
        "if all(behind):",
        "tests/generate/test_hybrid.py -k 'one_forward and qwen3_next'",
    ),
    "generate: a tree is as deep as the shortest text": Fault(
        "specdec_kernels/generate/trees.py",
        "cut(planned, max(limit))",
        "cut(planned, min(limit))",
        "tests/generate/test_generate.py -k s_own_stays",
    ),
    "generate: a draft goes on from rejected tokens": Fault(
        "specdec_kernels/generate/chains.py",
        "            self.drafter.roll_back(self.committed)\n",
        "            pass\n",
        "tests/generate/test_generate.py -k s_own_stays",
    ),
    "generate: siblings drawn independently are one": Fault(
        "specdec_kernels/generate/drafters.py",
        "_replace(nonce=1 + index)",
        "_replace(nonce=1)",
        "tests/generate/test_drafters.py -k siblings_drawn",
    ),
    "generate: children of an absent node": Fault(
        "specdec_kernels/generate/drafters.py",
        "(tokens[:, parents[children]] < 0) | (most <= depth)[:, None]",
        "(most <= depth)[:, None].expand(-1, len(children))",
        "tests/generate/test_drafters.py -k absent",
    ),
    "generate: a look-ahead row of another slot": Fault(
        "specdec_kernels/generate/drafters.py",
        "self.rows[:, min(slot, self.rows.shape[1] - 1)]",
        "self.rows[:, -1]",
        "tests/generate/test_paths.py -k look_ahead",
    ),
    "generate: min_p is no filter": Fault(
        "specdec_kernels/generate/noise.py",
        "(sampling.top_p, 1), (sampling.min_p, 0))",
        "(sampling.top_p, 1))",
        "tests/generate/test_filters.py -k any_filter",
    ),
    "generate: what is drafted is not repeated": Fault(
        "specdec_kernels/generate/edits.py",
        "seen = bits(self.prompt)[:, None, columns] | (counts > 0)",
        "seen = bits(self.prompt)[:, None, columns] | (self.counts[:, None, columns] > 0)",
        "tests/generate/test_edits.py -k fewer",
    ),
    "generate: siblings of different nodes share noise": Fault(
        "specdec_kernels/generate/drafters.py",
        "of_races(noise, index * nodes, nodes) if",
        "of_races(noise, index, nodes) if",
        "tests/generate/test_trees.py -k branches",
    ),
    "sharded: an index out of range is idle": Fault(
        "specdec_kernels/sharded/_requests.py",
        "torch.where(request_index == -1, -1, NO_ENTRY)",
        "-1",
        "tests/sharded/test_rejection.py -k requests_by_their_index",
    ),
    "sharded: any index is that of the only entry": Fault(
        "specdec_kernels/sharded/_requests.py",
        "(request_index < entries) if there",
        "(request_index < 2**31 - 1) if there",
        "tests/sharded/test_rejection.py -k one_entry",
    ),
    "sharded: an answer is not asked for again": Fault(
        "specdec_kernels/sharded/_walks.py",
        "        if not len(asked[0]):\n",
        "        if True:\n",
        "tests/sharded/test_rejection.py -k 'packed_requests and block'",
    ),
    "sharded: what filters drop is spared": Fault(
        "specdec_kernels/sharded/_walks.py",
        "[] if target.kept is None else [target.keeps()]",
        "[]",
        "tests/sharded/test_rejection.py -k test_filters",
    ),
    "sharded: what no filter is on for is dropped": Fault(
        "specdec_kernels/sharded/_filters.py",
        " | (value == -torch.inf)",
        "",
        "tests/sharded/test_rejection.py -k over_acceptance",
    ),
    "sharded: an empty residual has its row's status": Fault(
        "specdec_kernels/sharded/_final_token.py",
        "status & ~Status.NON_FINITE | more, status",
        "status | more, status",
        "tests/sharded/test_trees.py -k residual",
    ),
    "sharded: slices are looked at once": Fault(
        "specdec_kernels/sharded/_shard.py",
        "if self._checked != size:",
        "if self._checked is None:",
        "tests/sharded/test_races.py -k looked_at_again",
    ),
    "sharded: names that begin alike are alike": Fault(
        "specdec_kernels/sharded/_shard.py",
        "zlib.crc32(word.encode())",
        "zlib.crc32(word[:7].encode())",
        "tests/sharded/test_races.py -k 'alike or disagree'",
    ),
    "sharded: a bad min_p of a draft that is absent": Fault(
        "specdec_kernels/sharded/_laws.py",
        "(sampling[0], *sampling[2:4])",
        "(sampling[0], sampling[2])",
        "tests/sharded/test_rejection.py -k by_their_entries",
    ),
    "calls: two requests share their noise": Fault(
        "specdec_kernels/calls/inputs.py",
        "if requests > 1 and integer(seed)",
        "if requests > 2 and integer(seed)",
        "tests/ops/test_bad_input.py -k two_requests",
    ),
    "calls: a seed of 64 bits is another": Fault(
        "specdec_kernels/calls/inputs.py",
        "        return x - 2**64",
        "        return x - 2**63",
        "tests/ops/test_bad_input.py -k unsigned",
    ),
    "calls: a row with zeros is none of probabilities": Fault(
        "specdec_kernels/calls/inputs.py",
        "wrong = (low >= 0) & (low < high)",
        "wrong = (low > 0) & (low < high)",
        "tests/ops/test_check_logits.py -k filter_left",
    ),
    "calls: rows of an output share an element": Fault(
        "specdec_kernels/calls/inputs.py",
        "strides[outer] >= max(1, sizes[inner] * strides[inner])",
        "strides[outer] >= max(1, (sizes[inner] - 1) * strides[inner])",
        "tests/ops/test_bad_input.py -k 'refused and count_tokens'",
    ),
    "ops: a mask that no penalty reads makes edits": Fault(
        "specdec_kernels/ops/_edits.py",
        "prompt_mask if repeating else None",
        "prompt_mask",
        "tests/ops/test_edits.py -k 'nothing_given_changes and reference'",
    ),
    "overlap: a draft's argmax has a gradient": Fault(
        "specdec_kernels/ops/_gradients.py",
        "self.scale, self.some_greedy = inverse * sampled, True",
        "self.scale, self.some_greedy = inverse, True",
        "tests/ops/test_overlap.py -k 'argmax_has_no and reference'",
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
        "if («at.tried || low(subtracted) < 1.0f») return",
        "at.tried",
        "tests/ops/test_chain_laws.py -k cpu",
    ),
    "chain: rows of packed requests are one too many": Fault(
        "csrc/include/specdec/chain.h",
        "from -= b, to -= b + 1;",
        "from -= b, to -= b;",
        "tests/ops/test_verify_chain.py tests/ops/test_input_rows.py -k cpu",
    ),
    "chain: packed requests may begin behind 0": Fault(
        "csrc/include/specdec/chain.h",
        "b > 0 ? from >= 0 : «from == 0») && to >= from",
        "from >= 0",
        "tests/ops/test_bad_input.py -k 'bounds and cpu'",
    ),
    "chain: bounds that fall are a number of drafts": Fault(
        "csrc/include/specdec/chain.h",
        "if («!readable») slots = 0;",
        "false",
        "tests/ops/test_bad_input.py -k 'bounds and cpu'",
    ),
    "tree: a token may be tried twice under a node": Fault(
        "csrc/include/specdec/tree.h",
        "draft_token(elder) == token) «return true;»",
        "return false;",
        "tests/ops/test_verify_tree.py tests/ops/test_traversal.py -k cpu",
    ),
    "tree: a node may be its own parent": Fault(
        "csrc/include/specdec/tree.h",
        "«parent < node») return",
        "parent <= node",
        "tests/ops/test_verify_tree.py tests/ops/test_status.py -k cpu",
    ),
    "compact_kv: a path may stand still": Fault(
        "csrc/include/specdec/tree.h",
        "«path[moves] > last» &&",
        "path[moves] >= last",
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
        "*draw = {0, status_of(node), false};",
        "*draw = {0, SPECDEC_STATUS_OK, false};",
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
        "where(«greater(biased, zero)»,",
        "greater(logit, zero)",
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
        "at_least(p, Float(kSmallest)), «sub(log_p, log_q)», Float(0.0f))",
        "min(sub(log_p, log_q), Float(80.0f))",
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
        "«column == argmax ? 0.0f : -kInfinity», greedy",
        "0.0f",
        "tests/ops/test_logprobs.py -k cpu",
    ),
    "verify_links, CPU: an empty residual says nothing": Fault(
        "csrc/cpu/ops/verify_links.cpp",
        "draw.status |= SPECDEC_STATUS_EMPTY_RESIDUAL;",
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
        "else need(«is_contiguous(t)»);\n    put_output",
        "true",
        "tests/ops/test_direct.py -k cpu",
    ),
    "direct calls: outputs may lie over inputs": Fault(
        "csrc/python/tensor.cpp",
        "(span.written && «span.begin < end»)",
        "false",
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
        "atomicMax(counts + token, «1»);",
        "0",
        "tests/ops/test_count_tokens.py -k cuda-host",
    ),
    "mask_logits, CUDA: the last of a tie is dropped": Fault(
        "csrc/cuda/ops/mask_logits.cu",
        "token > what.cut.last",
        "token >= what.cut.last",
        "tests/ops/test_mask_logits.py -k cuda-host",
    ),
    "verify_chain, CUDA: rows behind the end leave their counters": Fault(
        "csrc/cuda/walk/straight.cuh", "rows[own].came = 0;", "", "tests/backends/test_cuda_order.py"
    ),
    "walk: a row without weight does not end a branch": Fault(
        "csrc/include/specdec/walk.h",
        "return (in_range && low(p) > 0.0f) || ops.is_empty(node, ends);",
        "return true;",
        "tests/ops/test_empty_rows.py -k cpu",
    ),
    "walk: a race goes on behind a row without weight": Fault(
        "csrc/include/specdec/walk.h",
        "if («draw.empty») skip_drafts",
        "false",
        "tests/ops/test_empty_rows.py -k cpu",
    ),
    "verify_chain, CUDA: a row without weight does not end the chain": Fault(
        "csrc/cuda/walk/straight.cuh",
        "(all || r.target_law.needs_row()) && target_stats.is_empty()",
        "false",
        "tests/ops/test_empty_rows.py -k 'cuda-host and block'",
    ),
    "verify_chain, CUDA: a race goes on behind a row without weight": Fault(
        "csrc/cuda/walk/straight.cuh",
        "if («draw.empty») draft = -1;",
        "false",
        "tests/ops/test_empty_rows.py -k 'cuda-host and race'",
    ),
    "verify_chain, CUDA: the draft refused at a row without weight is told of": Fault(
        "csrc/cuda/walk/straight.cuh",
        "if («__shfl_sync(kWarp, last.empty, 0) && e.residual») status",
        "false",
        "tests/ops/test_empty_rows.py -k 'cuda-host and rejection'",
    ),
    "verify_chain, Triton: the draft refused at a row without weight is told of": Fault(
        "triton_kernels/verify_chain.py",
        "tl.where(empty, reported & _math.PARAMETER, reported)",
        "reported",
        "tests/ops/test_empty_rows.py -k 'triton'",
    ),
    "verify_chain, CUDA: every row ends its chain": Fault(
        "csrc/cuda/walk/straight.cuh",
        "if («draw.empty || draw.token != r.draft_token(node + 1)») atomicMax",
        "true",
        "tests/backends/test_cuda_order.py",
    ),
    "verify_chain, CUDA: the next slots are weighed over the words of these": Fault(
        "csrc/cuda/walk/straight.cuh",
        "a.sets = «(in_turns || parts > 1) && a.slots < drafts ? 2 : 1»;",
        "1",
        "tests/backends/test_cuda_order.py -k turns",
    ),
    "verify_chain, CUDA: more probabilities than lanes judge do not go in turns": Fault(
        "csrc/cuda/walk/straight.cuh",
        "const bool in_turns = «!block && a.slots < drafts»;",
        "!block && weighs && a.slots < drafts",
        "tests/backends/test_cuda_straight.py -k 'Played and odd_calls'",
    ),
    "verify_chain, CUDA: a turn's blocks come in the order of their numbers": Fault(
        "csrc/cuda/walk/straight.cuh",
        "number[0] = «atomicAdd(a.begun, 1u)»;",
        "blockIdx.x",
        "tests/backends/test_cuda_order.py -k turns",
    ),
    "verify_chain, CUDA: the status of a turn is not handed on": Fault(
        "csrc/cuda/walk/straight.cuh",
        "if (status != 0 && lane_id() == 0) atomicOr(&turns->status, status);",
        "",
        "tests/backends/test_cuda_order.py -k turns",
    ),
    "verify_chain, CUDA: a turn's words are judged before all are there": Fault(
        "csrc/cuda/walk/straight.cuh",
        "load_acquire(&turns->came) < «turn * parts»;",
        "turn * parts - 1",
        "tests/backends/test_cuda_order.py -k turns",
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
        "«log2_approx(u) * 0.69314718f - 4.1588831f + u»;",
        "log2_approx(u) * 0.69314718f - 4.1588831f",
        "tests/backends/test_cuda_edges.py -k first_guess",
    ),
    "verify_chain, CUDA: the judge does not wait for those who draw with it": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "wait_for(&meeting->came, «static_cast<OwnShare>(share[0]).helpers»);",
        "0u",
        "tests/backends/test_cuda_order.py -k shared",
    ),
    "verify_chain, CUDA: all who draw with a judge draw over the first columns": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "own.tiles = a.shares.tiles_of(«at.row * a.parts.count.by() + at.part»);",
        "0",
        "tests/backends/test_cuda_order.py -k shared",
    ),
    "verify_chain, CUDA: who drew with a judge stays counted": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "if (threadIdx.x == 0) «drawn->came = 0»;",
        "drawn->met = 0",
        "tests/backends/test_cuda_order.py -k shared",
    ),
    "logprobs, CUDA: the block before the last puts the row together": Fault(
        "csrc/cuda/ops/logprobs.cu",
        "if (last_to_come(a.tickets + index, static_cast<unsigned>(«a.parts.count.by()»)))",
        "a.parts.count.by() > 1 ? a.parts.count.by() - 1 : 1",
        "tests/backends/test_cuda_edges.py -k many_blocks",
    ),
    "logprobs, CUDA: a tile is looked through once for each 32 places": Fault(
        "csrc/cuda/ops/logprobs.cu",
        "if («counts») sums[0] +=",
        "true",
        "tests/backends/test_cuda_edges.py -k many_blocks",
    ),
    "CUDA: a team's sum leaves out the members behind the third": Fault(
        "csrc/cuda/team/team.cuh",
        "for (int member = lane_id(); «member < team.size()»; member += 32) sum +=",
        "member < 3",
        "tests/backends/test_cuda_edges.py -k many_blocks",
    ),
    "CUDA: the best keys of a block are its first two warps'": Fault(
        "csrc/cuda/team/topk.cuh",
        "for (int w = 1; «w < warps_in_block()»; ++w) topk.offer",
        "w < 2",
        "tests/backends/test_cuda_edges.py -k many_blocks",
    ),
    "CUDA: nobody asks the parts behind the 32nd": Fault(
        "csrc/cuda/team/block_reduce.cuh",
        "status |= static_cast<unsigned>(word(i, 1));",
        "status |= i < 32 ? static_cast<unsigned>(word(i, 1)) : 0;",
        "tests/backends/test_cuda_edges.py -k every_part",
    ),
    "pairs, CUDA: filters do not wait for an argmax before them": Fault(
        "csrc/cuda/rows/pair.cuh",
        "«__syncthreads();»  // what an argmax",
        "if (side == 1) __syncthreads();",
        "tests/backends/test_cuda_filters.py -k figures_of_pairs",
    ),
    "CUDA: the eighth block of a cluster takes the first one's tiles": Fault(
        "csrc/cuda/rows/pair_sums.cuh",
        "for (int tile = warp_id() * part.size + «part.rank»;",
        "part.rank % 7",
        "tests/backends/test_cuda_edges.py -k clusters",
    ),
    "CUDA: a filtered race reads before the kernel before has ended": Fault(
        "csrc/cuda/ops/race_sample.cu",
        "  «wait_for_kernel_before();»\n  SPECDEC_SHARED(unsigned, sure, 1);\n  SPECDEC_SHARED(DecodedEdits",
        "",
        "tests/backends/test_cuda_edges.py -k filtered",
    ),
    "mass_tiles, CUDA: a tile behind the row": Fault(
        "csrc/cuda/ops/mass_tiles.cu",
        "tile < mass_tiles_of(row.vocab)",
        "tile <= mass_tiles_of(row.vocab)",
        "tests/backends/test_cuda_edges.py -k tiles_end",
    ),
    "bounds: a sum is known without its error": Fault(
        "csrc/include/specdec/bounds.h",
        "return «7e-4f + 4e-7f * magnitude(largest)»;",
        "0.0f * magnitude(largest)",
        "tests/backends/test_cpu_bounds.py",
    ),
    # Rows whose parts lie far apart.
    "bounds: a tile 2^126 below the largest counts": Fault(
        "csrc/include/specdec/bounds.h", "if (!(exponent >= -126.0f)) continue;", "", FAR
    ),
    "bounds, CPU: a tile that is far above those before it is not weighed again": Fault(
        "csrc/cpu/rows/law_row.cpp",
        "if (!(whole > unit_ + kFar)) return found;",
        "if (unit_ > -kInfinity) return found;",
        FAR,
    ),
    "masses: a weight is shifted by 64 and more": Fault(
        "csrc/include/specdec/mass.h",
        "e.n < 64 ? (static_cast<uint64_t>(e.q) << 11) >> e.n : 0",
        "(static_cast<uint64_t>(e.q) << 11) >> (e.n & 63)",
        TAILS,
    ),
    "masses: a tile is shifted by 64 and more": Fault(
        "csrc/include/specdec/mass.h",
        "e.n < 54 ? (tile.units * (e.q >> 9)) >> (10 + e.n) : 0",
        "(tile.units * (e.q >> 9)) >> ((10 + e.n) & 63)",
        FAR,
    ),
    "masses: a word is shifted by 32 and more": Fault(
        "csrc/include/specdec/arithmetic.h",
        "«n < 32 ? a >> n : 0»; }  // by 32 and more: 0\n#endif",
        "a >> (n & 31)",
        "tests/backends/test_random_calls.py -k OracleCuda",
    ),
    "masses, the CPU's baseline: a word is shifted by 32 and more": Fault(
        "csrc/cpu/simd.h", "n < 32 ? x >> (n & 31) : Uints{}", "x >> (n & 31)", FAR
    ),
    "masses, the CPU's baseline: a weight is shifted by 64 and more": Fault(
        "csrc/cpu/simd.h", "if («by[i] < 64») sum[0]", "(by[i] &= 63, true)", TAILS
    ),
    "exp: what is below the smallest is not 0": Fault(
        "csrc/include/specdec/exponential.h",
        "return where(«at_least(x, Float(kExpUnderflow))», exp_in_range(min(x",
        "at_least(x, Float(-kInfinity))",
        FAR,
    ),
    "exp, one number: what is below the smallest is not 0": Fault(
        "csrc/include/specdec/exponential.h",
        "x >= kExpUnderflow ? exp_in_range(min(x, 88.0f)) : 0.0f",
        "exp_in_range(min(x, 88.0f))",
        FAR,
    ),
    "pairs, CPU: tokens far down are taken for near ones": Fault(
        "csrc/cpu/rows/pair_tile.h", "at_least(least, F32x16(kExpUnderflow)) == first_lanes(kLanes)", "true", FAR
    ),
    "pairs, CPU: only the target's tokens are asked whether they are far down": Fault(
        "csrc/cpu/rows/pair_tile.h", "min(min(log.a.a, log.a.b), min(log.b.a, log.b.b))", "min(log.a.a, log.a.b)", TAILS
    ),
    "bounds, CPU: an exponent has no lowest value": Fault(
        "csrc/cpu/simd.h", "max(F32x16(0x1p24f), fma(x, scale_, down_))", "fma(x, scale_, down_)", FAR
    ),
    "top_p, CPU: lines have no lowest value": Fault(
        "csrc/cpu/rows/cut_bounds.h", "max(fma(x, scale, shift), lowest)", "fma(x, scale, shift)", FAR
    ),
    "cut, CPU: what is deeper than all bins has one of its own": Fault(
        "csrc/cpu/rows/cut_bins.h",
        "min(mul(sub(F32x16(high), v), F32x16(scale)), F32x16(kBins - 1.0f))",
        "mul(sub(F32x16(high), v), F32x16(scale))",
        TAILS,
    ),
    "cells, CPU: a NaN hides those before it": Fault(
        "csrc/cpu/rows/law_row.cpp",
        "«max(d, max(c, max(b, max(a, F32x16(-kInfinity)))))»;",
        "max(max(max(max(F32x16(-kInfinity), a), b), c), d)",
        FAR,
    ),
    "cells, CPU: the last cells of a row do not say that they have a NaN": Fault(
        "csrc/cpu/rows/law_row.cpp", "bad |= space.foreign(x, x, first_lanes(count - at));", "", FAR
    ),
    "filters: what top_p keeps is rounded down": Fault(
        "csrc/include/specdec/filter.h",
        "f.share * (whole & 0xffffffffu) + 0xffffffffu",
        "f.share * (whole & 0xffffffffu)",
        "tests/ops/test_cutoff.py -k 'rounded and cpu'",
    ),
    # Bounds that are too close, a slack that is missing.
    "log p: no room for roundings": Fault(
        "csrc/include/specdec/law.h",
        "constexpr float kLogProbError = 1e-5f;",
        "constexpr float kLogProbError = 0.0f;",
        BOUNDS,
    ),
    "sums by bounds: weights below half a unit": Fault(
        "csrc/include/specdec/bounds.h",
        "constexpr double kUnitError = 0x1.001p-43;",
        "constexpr double kUnitError = 0.0;",
        "tests/backends/test_cpu_bounds.py -k half_of_a_unit",
    ),
    "sums by bounds: large logits are as exact as small ones": Fault(
        "csrc/include/specdec/bounds.h",
        "return «7e-4f + 4e-7f * magnitude(largest)»;",
        "7e-4f",
        "tests/backends/test_cpu_bounds.py -k large",
    ),
    "traversal: a weight's low end is not rounded": Fault(
        "csrc/include/specdec/traversal.h", "residual_mass.low), «0.999999f»)", "1.0f", BOUNDS
    ),
    "traversal: a weight's high end is not rounded": Fault(
        "csrc/include/specdec/traversal.h", "mul(most, «1.000001f»)", "1.0f", BOUNDS
    ),
    "traversal: a weight's low end is of the least that was there before": Fault(
        "csrc/include/specdec/traversal.h",
        "weight_after(a.low, «before.high», residual_mass.low)",
        "before.low",
        BOUNDS,
    ),
    "traversal: a child's low end is of the least that is subtracted": Fault(
        "csrc/include/specdec/traversal.h",
        "child_weight(a.low, p.low, q.high, «subtracted.high», share.high)",
        "subtracted.low",
        BOUNDS,
    ),
    "traversal: a child whose q may be 0 weighs no more than another": Fault(
        "csrc/include/specdec/traversal.h",
        "mul(share.low, q.low) > 0.0f || !(mul(share.high, q.high) > 0.0f)",
        "true",
        BOUNDS,
    ),
    "traversal: a share's low end is of the least that is untried": Fault(
        "csrc/include/specdec/traversal.h",
        "share_of(residual_mass.low, «untried_mass.high»)",
        "untried_mass.low",
        BOUNDS,
    ),
    "traversal: a share is known where nothing may be untried": Fault(
        "csrc/include/specdec/traversal.h",
        "untried_mass.low >= kSmallest || !(untried_mass.high >= kSmallest)",
        "true",
        BOUNDS,
    ),
    "traversal: what is subtracted is divided by the other end": Fault(
        "csrc/include/specdec/traversal.h", "subtracted_after(subtracted.low, share.low, «a.high»)", "a.low", BOUNDS
    ),
    "traversal: what is untried, with its ends for each other's": Fault(
        "csrc/include/specdec/traversal.h", "untried_after(untried_mass.low, «p.high»)", "p.low", BOUNDS
    ),
    "accept: the least p beside the least that is subtracted": Fault(
        "csrc/include/specdec/accept.h",
        "passes(u, p.low, q.high, «high(subtracted)», high(share))",
        "low(subtracted)",
        BOUNDS,
    ),
    "accept: a q that may be 0 is not asked": Fault(
        "csrc/include/specdec/accept.h",
        "(mul(low(share), q.low) > 0.0f) == (mul(high(share), q.high) > 0.0f)",
        "true",
        BOUNDS,
    ),
    # Two slacks of race.h are not here: nothing was found that changes without them. largest_winning_word: a group's
    # first arrival is later than its word a says, by a share of a 2^-33, and the limit is rounded up. lowest_noted:
    # log_below of a word is not above the logarithm of the group's arrival (looked at: all words near powers of two).
    # Nor are tiles of -inf that are weighed (row_masses): x - max is NaN there, which weighs nothing. Nor is
    # the first barrier of last_to_come: in all of its callers the thread that draws the ticket wrote the words itself,
    # or one lies between.
    "race: what a token needs has no slack": Fault(
        "csrc/include/specdec/race.h", "sub(needed, «slack(best, needed)»)", "Float(0.0f)", BOUNDS
    ),
    "race: the key that a log p needs has no slack": Fault(
        "csrc/include/specdec/law.h", "lse.max - «slack(log_weight, lse.max)»", "0.0f", BOUNDS
    ),
    "race: the key that a probability needs is rounded up": Fault(
        "csrc/include/specdec/law.h", "exp_in_range(min(log_weight, 88.0f)) * «0.99999f»", "1.00001f", BOUNDS
    ),
    "race: the bound of a probability is the cheap logarithm": Fault(
        "csrc/include/specdec/law.h", "add(log_below(max(x, small)), Float(«0.061f»))", "0.0f", BOUNDS
    ),
    "race, CPU: a winner by bounds needs to be ahead by nothing": Fault(
        "csrc/cpu/race/race_row.cpp",
        "< «lowest_noted(sure.score)»",
        "sure.score + 1.0f",
        "tests/backends/test_cpu_bounds.py",
    ),
    "race, CPU: the second by bounds is forgotten": Fault(
        "csrc/cpu/race/race_row.cpp",
        "second = max(second, min(c.score, most.score));",
        "",
        "tests/backends/test_cpu_bounds.py",
    ),
    "sums by bounds, CPU: the least p is p": Fault(
        "csrc/cpu/walk/pair_sums.cpp", "return {«1.0f - error», 1.0f", "1.0f", BOUNDS
    ),
    "sums by bounds, CPU: the most p is p": Fault(
        "csrc/cpu/walk/pair_sums.cpp",
        "1.0f - error, «1.0f + error * (1.0f + error)»}",
        "1.0f",
        BOUNDS,
    ),
    "sums by bounds, CPU: what is subtracted is taken from the most p": Fault(
        "csrc/cpu/walk/pair_sums.cpp", "subtracted.low * «q.low / p.high»", "1.0f", BOUNDS
    ),
    "sums by bounds, CPU: what is untried is as it is summed": Fault(
        "csrc/cpu/walk/pair_sums.cpp", "all.untried_mass * «q.low»", "q.high", BOUNDS
    ),
    "sums by bounds, CPU: of rows whose filters are known by bounds, too": Fault(
        "csrc/cpu/walk/walk_ops.h",
        "«kept_by_bounds(target) || kept_by_bounds(draft)») return false;",
        "false",
        "tests/backends/test_cpu_bounds.py -k sums_of_filtered",
    ),
    "top_p, CPU: lines are as exact as exponentials": Fault(
        "csrc/cpu/rows/cut_bounds.h",
        "side_of(lines[0], lines[1], «kLineError + 2.0 * log_sum_error(top)»)",
        "2.0 * log_sum_error(top)",
        "tests/backends/test_cpu_bounds.py",
    ),
    "top_p, CPU: masses are known to half of their error": Fault(
        "csrc/cpu/rows/cut_bounds.h",
        "side_of(masses[0], masses[1], «2.0 * log_sum_error(top)»)",
        "0.0",
        "tests/backends/test_cpu_bounds.py",
    ),
    "top_p, CPU: a list is kept whatever the mass is": Fault(
        "csrc/cpu/rows/filtered_row.cpp",
        "«if (r.kept.list) return true;»\n  const bool plain",
        "return true;",
        "tests/backends/test_cpu_bounds.py",
    ),
    "top_p, CPU: a cut is sure by the most that the row may weigh": Fault(
        "csrc/cpu/rows/cut.h",
        "f.ties_all() || «kept.mass - weight(kept.cut.value) >= mass_kept(f, least)»",
        "false",
        "tests/backends/test_cpu_bounds.py",
    ),
    "top_p, CPU: a row's tiles lose nothing by rounding": Fault(
        "csrc/cpu/rows/cut_bounds.h", "least - «(least >> kTilesShare)»", "0", "tests/backends/test_cpu_bounds.py"
    ),
    "race, CUDA: the device's logarithm is exact": Fault(
        "csrc/cuda/rows/race.cuh",
        "return log_weight - late - «kWordLogError - slack(log_weight, late)»;",
        "-0.1f",
        "tests/backends/test_cuda_edges.py -k 'guess or lists'",
    ),
    # Past each constant of the code.
    "rows, CPU: 32-bit offsets": Fault(
        "csrc/cpu/rows/row.h",
        "static_cast<const char*>(rows.data) + «offset * size»",
        "static_cast<int32_t>(offset * size)",
        OFFSETS,
    ),
    "rows: 32 bits from request to request": Fault(
        "csrc/include/specdec/c/parts.h",
        "return «outer * request_stride» + inner * row_stride;\n  })\n  /* A place",
        "static_cast<int32_t>(outer * request_stride)",
        OFFSETS,
    ),
    "numbers: 32 bits from request to request": Fault(
        "csrc/include/specdec/c/parts.h",
        "data ? load(«outer * outer_stride + inner * inner_stride») : value;\n  })\n} specdec_number",
        "static_cast<int32_t>(outer * outer_stride) + inner * inner_stride",
        OFFSETS,
    ),
    "counters: 32 bits from request to request": Fault(
        "csrc/include/specdec/c/parts.h",
        "data ? load(«outer * outer_stride + inner * inner_stride») : value;\n  })\n} specdec_counter",
        "static_cast<int32_t>(outer * outer_stride) + inner * inner_stride",
        OFFSETS,
    ),
    "chains: 32 bits from request to request": Fault(
        "csrc/include/specdec/chain.h",
        "first_token = «b * p.draft_tokens.request_stride»;",
        "static_cast<int32_t>(b * p.draft_tokens.request_stride)",
        OFFSETS,
    ),
    "chains: 32 bits from slot to slot": Fault(
        "csrc/include/specdec/chain.h",
        "first_token + «(node - 1) * p.draft_tokens.slot_stride»",
        "static_cast<int32_t>((node - 1) * p.draft_tokens.slot_stride)",
        OFFSETS,
    ),
    "trees: 32 bits from request to request": Fault(
        "csrc/include/specdec/tree.h",
        "first_parent = «b * p.parents.request_stride»;",
        "static_cast<int32_t>(b * p.parents.request_stride)",
        OFFSETS,
    ),
    "caches: 32 bits from request to request": Fault(
        "csrc/include/specdec/tree.h",
        "return «request * layer.batch_stride» + (prefix",
        "static_cast<int32_t>(request * layer.batch_stride)",
        OFFSETS,
    ),
    "caches: 32 bits from slot to slot": Fault(
        "csrc/include/specdec/tree.h",
        "layer.batch_stride + «(prefix + node) * layer.slot_stride»",
        "static_cast<int32_t>((prefix + node) * layer.slot_stride)",
        OFFSETS,
    ),
    "caches: 32 bits from page to page": Fault(
        "csrc/include/specdec/tree.h",
        "return «page_of(node) * layer.batch_stride» + slot_of",
        "static_cast<int32_t>(page_of(node) * layer.batch_stride)",
        OFFSETS,
    ),
    "compact_kv, CPU: 32 bits from head to head": Fault(
        "csrc/cpu/ops/compact_kv.cpp",
        "layer.data + «head * layer.head_stride»",
        "static_cast<int32_t>(head * layer.head_stride)",
        OFFSETS,
    ),
    "count_tokens, CPU: 32 bits from mask to mask": Fault(
        "csrc/cpu/ops/count_tokens.cpp",
        "p.mask.data + «b * p.mask.row_stride»",
        "static_cast<int32_t>(b * p.mask.row_stride)",
        OFFSETS,
    ),
    "count_tokens, CPU: a count wraps": Fault(
        "csrc/cpu/ops/count_tokens.cpp",
        "count == INT32_MAX ? count : count + 1",
        "count + 1",
        "tests/ops/test_count_tokens.py -k cpu",
    ),
    "edits: a count of a pending token wraps": Fault(
        "csrc/include/specdec/edit.h",
        "count < 0x7fffffff ? count + 1 : count",
        "static_cast<int32_t>(static_cast<uint32_t>(count) + 1u)",
        "tests/ops/test_edits.py -k cpu",
    ),
    "verdicts: 32 bits from request to request": Fault(
        "csrc/include/specdec/c/parts.h",
        "return «row * row_stride» + column * (column_stride",
        "static_cast<int32_t>(row * row_stride)",
        OFFSETS,
    ),
    "race_topk, CPU: a bar of more classes than there is room for": Fault(
        "csrc/cpu/race/race_scan.h", "if (rounds > kMostRounds) return;", "", "tests/backends/test_sizes.py -k cpu"
    ),
    "cut, CPU: a list takes one more than it has room for": Fault(
        "csrc/cpu/rows/cut.h",
        "return «listed <= kListed»;\n    });\n    if (listed > kListed)",
        "listed <= kListed + 64",
        "tests/backends/test_sizes.py -k cpu",
    ),
    "cut, CPU: among equal tokens one is kept too few": Fault(
        "csrc/cpu/rows/cut.h", "return «--left > 0»;", "--left > 1", "tests/backends/test_sizes.py -k cpu"
    ),
    "masses, CUDA: tiles behind the 128th have no weight": Fault(
        "csrc/cuda/rows/mass_row.cuh",
        "for (int32_t t = lane_id() + 32 * kHeld; t < tiles; t += 32) weigh(word(t, 0), word(t, 1));",
        "",
        "tests/backends/test_sizes.py -k cuda-host",
    ),
    "masses, CUDA: tiles behind the 128th have not the largest": Fault(
        "csrc/cuda/rows/mass_row.cuh",
        "for (int32_t t = lane_id() + 32 * kHeld; t < tiles; t += 32) top = max(max_of_packed(word(t, 0)), top);",
        "",
        "tests/backends/test_sizes.py -k cuda-host",
    ),
    "chains, CUDA: more slots are judged at once than a warp has lanes": Fault(
        "csrc/cuda/walk/straight.cuh",
        "constexpr int32_t kStraightSlots = 31;",
        "constexpr int32_t kStraightSlots = 33;",
        "tests/backends/test_sizes.py -k 'last_of_as_many and cuda-host'",
    ),
    "race_topk, CUDA: what is behind the 32nd is taken again": Fault(
        "csrc/cuda/team/topk.cuh", "if (key >= below) key = 0;", "", "tests/backends/test_sizes.py -k cuda-host"
    ),
    # Threads that share a row.
    "rows, CPU: the parts behind the first do not say what they met": Fault(
        "csrc/cpu/rows/law_row.cpp",
        "for (int part = 0; part < parts; ++part) all |= status[part];",
        "all |= status[0];",
        SHARED,
    ),
    "mapped rows, CPU: the winner is that of the first part": Fault(
        "csrc/cpu/race/race_row.cpp",
        "for (int part = 0; part < parts; ++part) winner.offer(best[part], best[part].score);",
        "winner.offer(best[0], best[0].score);",
        SHARED,
    ),
    "residual_sums, CPU: the sums are those of the first part": Fault(
        "csrc/cpu/ops/residual_sums.cpp",
        "for (int part = 0; part < count; ++part) all += parts[part];",
        "all += parts[0];",
        SHARED,
    ),
    "residual, CPU: a part's last tile is not divided": Fault(
        "csrc/cpu/ops/residual.cpp",
        "to * static_cast<int64_t>(kTile) < row.vocab ? «to * kTile» : row.vocab",
        "(to - 1) * kTile",
        SHARED,
    ),
    # Barriers of CUDA.
    "CUDA: a block's best may be found again before all have read": Fault(
        "csrc/cuda/team/block_reduce.cuh",
        "best = other > best ? other : best;\n  }\n  «__syncthreads();»",
        "",
        "tests/backends/test_cuda_ops.py -k odd_machines",
    ),
    # Triton.
    "cutoff, Triton: what ties with the argmax stays": Fault(
        "triton_kernels/cutoff.py",
        "filter = _filters.without_ties(filter, greedy)",
        "filter = filter",
        "tests/ops/test_cutoff.py -k 'one_of_equal and triton'",
    ),
    "count_tokens, Triton: old counts stay": Fault(
        "triton_kernels/count_tokens.py",
        "mask=there & (seen == 0))",
        "mask=there & (seen == 2))",
        "tests/ops/test_count_tokens.py -k triton",
    ),
    "race_sample, Triton: a tile is a column too long": Fault(
        "triton_kernels/_rows.py",
        "mask=«tokens < row.columns», other=_laws.nothing(row.law)).to(tl.float32)\n"
        "    x = _edits.edited(x, tokens, tokens < row.columns, start, end, row.law)",
        "tokens <= row.columns",
        "tests/backends/test_triton_ops.py -k padded",
    ),
    "race_sample, Triton: a group with a NaN is not looked at": Fault(
        "triton_kernels/_races.py",
        "tl.where(unclean, _math.INFINITY, _laws.clean(tops, row.law))",
        "_laws.clean(tops, row.law)",
        "tests/backends/test_triton_ops.py -k bad_rows",
    ),
    "race_sample, Triton: groups are left that may win": Fault(
        "triton_kernels/_races.py",
        "left &= set_of(may_win(tops, a, best, row.law))",
        "left = left * 0",
        "tests/backends/test_triton_ops.py -k misaligned",
    ),
    "verify_chain, Triton: groups of a residual are left that may win": Fault(
        "triton_kernels/_races.py",
        "left &= set_of(can_win(bounds, a, _math.key_score(best)))",
        "left = left * 0",
        "tests/backends/test_triton_ops.py -k several_tiles",
    ),
    "store_rows, Triton: a column too far is written": Fault(
        "triton_kernels/store_rows.py",
        "(place >= 0) & (place < columns)",
        "(place >= 0)",
        "tests/ops/test_store_rows.py -k triton",
    ),
    "race_sample, Triton: a row without weight has a token": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | at.idle, token, 0)",
        "tl.where(weighs | at.idle, token, 1)",
        "tests/ops/test_race_sample.py -k triton",
    ),
    "race_sample, Triton: the compiler refuses what the interpreter takes": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | at.idle, token, 0)",
        "tl.where(weighs | at.idle, token, sum([0]))",
        "tests/backends/test_triton_compiled.py -k reads",
    ),
    "Triton: a race of trees takes any token": Fault(
        "triton_kernels/_tree_walk.py",
        "tl.atomic_or(walk.records + node * ROW + _rows.FLAGS, _math.TOKEN_RANGE,",
        "tl.atomic_or(walk.records + node * ROW + _rows.FLAGS, 0,",
        "tests/ops/test_verify_tree.py -k 'takes_no_token and triton'",
    ),
    "Triton: a tree that is too deep says nothing": Fault(
        "triton_kernels/_tree_walk.py",
        "tl.where(tried & (depth == walk.max_depth), _math.PARAMETER, 0)",
        "tl.where(tried & (depth < 0), _math.PARAMETER, 0)",
        "tests/backends/test_triton_trees.py -k deeper",
    ),
    "Triton: an idle request of trees has a status": Fault(
        "triton_kernels/_tree_walk.py",
        "_verdict.put_status(writer, tl.where(walk.live, flags, tl.where(walk.idle, 0, _math.PARAMETER)))",
        "_verdict.put_status(writer, tl.where(walk.live, flags, _math.PARAMETER))",
        "tests/backends/test_triton_calls.py -k 'as_if_they_were_gathered and tree'",
    ),
    "Triton: a race of chains takes any token": Fault(
        "triton_kernels/verify_chain.py",
        "(reached & ((token < -1) | (token >= vocab))) * _math.TOKEN_RANGE",
        "(reached & (token < -1)) * _math.TOKEN_RANGE",
        "tests/ops/test_verify_chain.py -k 'takes_no_token and triton'",
    ),
    "Triton: a bonus token out of range says nothing": Fault(
        "triton_kernels/verify_chain.py",
        "return at, tl.where(good, token, 0), tl.where(good, 0, _math.PARAMETER)",
        "return at, tl.where(good, token, 0), tl.where(good, 0, 0)",
        "tests/ops/test_bonus.py -k 'out_of_range and triton'",
    ),
    "Triton: a slot behind the end tells of its row": Fault(
        "triton_kernels/verify_chain.py",
        "«reached & bad») * _math.NON_FINITE\n        flags |= _math.any_of(reached & (row_status",
        "bad",
        "tests/ops/test_verify_chain.py -k 'takes_no_token and triton'",
    ),
    "Triton: a draft_prob below 0 is 1": Fault(
        "triton_kernels/_math.py",
        "tl.where(good, h, tl.where(h < 0.0, 0.0, 1.0))",
        "tl.where(good, h, 1.0)",
        "tests/backends/test_triton_ops.py -k parameters_out_of_range",
    ),
    "Triton: a temperature below 0 says nothing": Fault(
        "triton_kernels/_math.py",
        "tl.where(t >= 0.0, 0, PARAMETER)",
        "tl.where(t >= -1.0, 0, PARAMETER)",
        "tests/ops/test_sampling.py -k 'bad_temperature and triton'",
    ),
    "Triton: a bad span of biases says nothing": Fault(
        "triton_kernels/_edits.py",
        "tl.where(good & rising, 0, _math.PARAMETER)",
        "tl.where(rising, 0, _math.PARAMETER)",
        "tests/ops/test_edits.py -k 'bad_span and triton'",
    ),
    "Triton: a pending token behind the vocabulary says nothing": Fault(
        "triton_kernels/_edits.py",
        "_math.any_of((token < -1) | (token >= columns)) * _math.PARAMETER",
        "_math.any_of(token < -1) * _math.PARAMETER",
        "tests/ops/test_edits.py -k 'status_of_a_request and triton'",
    ),
    "Triton: a bad penalty says nothing": Fault(
        "triton_kernels/_edits.py",
        "tl.where(good_r & good_f & good_g, 0, _math.PARAMETER)",
        "tl.where(good_r & good_f, 0, _math.PARAMETER)",
        "tests/ops/test_edits.py -k 'status_of_a_request and triton'",
    ),
    "Triton: a bad min_p says nothing": Fault(
        "triton_kernels/_filters.py",
        "tl.where((top_p >= 0.0) & (min_p >= 0.0), 0, _math.PARAMETER)",
        "tl.where(top_p >= 0.0, 0, _math.PARAMETER)",
        "tests/ops/test_cutoff.py -k 'out_of_range and triton'",
    ),
    "Triton: packed requests may begin behind 0": Fault(
        "triton_kernels/_arguments.py",
        "(begin >= 0) & «((b > 0) | (begin == 0))» & (end >= begin)",
        "(b >= 0)",
        "tests/ops/test_bad_input.py -k 'bounds and triton'",
    ),
    "Triton: more drafts than there is room for say nothing": Fault(
        "triton_kernels/_arguments.py",
        "tl.where(readable & (drafts <= most), 0, _math.PARAMETER)",
        "tl.where(readable, 0, _math.PARAMETER)",
        "tests/backends/test_triton_ops.py -k room_for",
    ),
    "Triton: links that go on say nothing": Fault(
        "triton_kernels/verify_links.py",
        "tl.where((over == 0) & (link != -1), _math.PARAMETER, 0)",
        "tl.where((over == 0) & (link > 2**30), _math.PARAMETER, 0)",
        "tests/ops/test_verify_links.py -k 'circle_of_siblings and triton'",
    ),
    "Triton: a bad link says nothing": Fault(
        "triton_kernels/verify_links.py",
        "                flags |= _math.PARAMETER\n",
        "                flags |= 0\n",
        "tests/ops/test_verify_links.py -k 'outputs_that_are_given and triton'",
    ),
    "Triton: chains that are too long say nothing": Fault(
        "triton_kernels/_paths.py",
        "tl.where((count > 0) & (depth == max_depth), _math.PARAMETER, 0)",
        "tl.where((count > 0) & (depth < 0), _math.PARAMETER, 0)",
        "tests/ops/test_paths.py -k 'too_deep and triton'",
    ),
    "Triton: a traversal that is too deep says nothing": Fault(
        "triton_kernels/_traversal.py",
        "tl.where((child < nodes) & (depth == max_depth), _math.PARAMETER, 0)",
        "0",
        "tests/ops/test_traversal.py -k 'too_deep and triton'",
    ),
    "Triton: a place out of range says nothing": Fault(
        "triton_kernels/_verdict.py",
        "(there & (inside == 0)).to(tl.int32) * _math.PARAMETER",
        "(there & (inside == 2)).to(tl.int32) * _math.PARAMETER",
        "tests/ops/test_form.py -k 'one_row and triton'",
    ),
    "Triton: a row of residual_race out of range says nothing": Fault(
        "triton_kernels/residual_race.py",
        "tl.where(live, flags, tl.where(idle, 0, _math.PARAMETER))",
        "tl.where(live, flags, 0)",
        "tests/ops/test_residual_race.py -k 'out_of_range and triton'",
    ),
    "Triton: a row of cutoff out of range says nothing": Fault(
        "triton_kernels/cutoff.py",
        "tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER))",
        "tl.where(at.live, flags, 0)",
        "tests/ops/test_cutoff.py -k 'request_index and triton'",
    ),
    "verify_chain, straight: a NaN in a draft reaches the bounds": Fault(
        "csrc/cuda/rows/draw.cuh",
        "q = max(about_probability(w.draft.stats, draft_raw), 0.0f);",
        "q = about_probability(w.draft.stats, draft_raw);",
        "tests/backends/test_cuda_straight.py -k 'odd_calls and not Ptx'",
    ),
    "verify_chain, straight: a NaN in probabilities hides the three beside it": Fault(
        "csrc/cuda/rows/draw.cuh",
        "return «largest != largest ? largest : log2_approx(Probs{}.probability(largest, {}))»;",
        "log2_approx(Probs{}.probability(largest, {}))",
        "tests/backends/test_cuda_straight.py -k 'odd_calls and not Ptx'",
    ),
    "verify_chain, straight: half of a score's slack": Fault(
        "csrc/cuda/rows/draw.cuh",
        "return «6e-5f + 4e-7f * min(kLargest, magnitude(log2_weight))»;",
        "3e-5f + 2e-7f * min(kLargest, magnitude(log2_weight))",
        "tests/backends/test_cuda_straight.py -k test_scores",
    ),
    "verify_chain, straight: half of a law's slack": Fault(
        "csrc/cuda/rows/draw.cuh",
        "constexpr float kLawError = 6e-6f;",
        "constexpr float kLawError = 3e-6f;",
        "tests/backends/test_cuda_straight.py -k test_laws",
    ),
    "verify_chain, straight: the last ticket comes early": Fault(
        "csrc/cuda/rows/draw.cuh",
        "return before[0] == blocks - 1;",
        "return before[0] + 2 >= blocks;",
        "tests/backends/test_cuda_straight.py -k 'odd_calls and not Ptx'",
    ),
    "verify_chain, straight: a slot is judged with the next slot's words": Fault(
        "csrc/cuda/walk/straight.cuh",
        "const WideKey* const words = «words_of_row(a, r, set, row)»;",
        "words_of_row(a, r, set, (row + sides.count) % sides.rows)",
        "tests/backends/test_cuda_straight.py -k 'odd_calls and not Ptx'",
    ),
    "filters, straight: a bin ends where it begins": Fault(
        "csrc/cuda/rows/cut.cuh",
        "return from_bits(static_cast<uint32_t>(kFirstBin + bin + «1») << 19);",
        "0",
        "tests/backends/test_cuda_straight.py -k 'odd_rows_with_filters and not Ptx'",
    ),
    "filters, straight: what a list has together is not known": Fault(
        "csrc/cuda/rows/cut.cuh",
        "if («i <= listed» && part == 0) of.list[kAt + place] = own",
        "i < listed",
        "tests/backends/test_cuda_straight.py -k 'odd_rows_with_filters and not Ptx'",
    ),
    "filters, straight: NaN and +inf are not met": Fault(
        "csrc/cuda/rows/cut.cuh",
        "met |= «raw == kInfinity ? kBadValue | kInfiniteValue : kBadValue»;",
        "0u",
        "tests/backends/test_cuda_straight.py -k 'odd_rows_with_filters and not Ptx'",
    ),
    "filters, straight: a list that is not short counts as one": Fault(
        "csrc/cuda/rows/cut.cuh",
        "if (listed <= «kShort») {",
        "kShort + 80",
        "tests/backends/test_cuda_straight.py -k 'odd_rows_with_filters and not Ptx'",
    ),
    "filters, straight: ties have ranks of their own": Fault(
        "csrc/cuda/rows/cut.cuh",
        "while («of.f.ties_all()» && rank > 0",
        "false",
        "tests/backends/test_cuda_straight.py -k 'odd_rows_with_filters and not Ptx'",
    ),
    "filters, CUDA: what comes before a narrowed range has no rank": Fault(
        "csrc/cuda/rows/cut.cuh",
        "few.size_of(rule, «range», static_cast<int>(count))",
        "WordRange{}",
        "tests/backends/test_cuda_filters.py -k 'odd_rows and not Ptx'",
    ),
    "filters, CUDA: equal values are narrowed down as if ties stayed together": Fault(
        "csrc/cuda/rows/cut.cuh",
        "if (!within || («f.ties_all() && equal»)) {",
        "equal",
        "tests/backends/test_cuda_filters.py -k 'odd_rows and not Ptx'",
    ),
    "verify_chain, filtered: a request's last ticket comes early": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "return comes_last(meeting, static_cast<unsigned>(«a.rows»));",
        "a.rows > 1 ? a.rows - 1 : 1",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    "verify_chain, filtered: the last column kept is not handed on": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "for (int i = static_cast<int>(threadIdx.x); «2 * i < listed»; i += kThreads)",
        "2 * i + 2 < listed",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    "verify_chain, filtered: the draft has the target's cut": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "a.p.draft_map.data, {«draft.cut», filter_order(a, r, true)}};",
        "target.cut",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    "verify_chain, filtered: bounds do not know what the draft keeps": Fault(
        "csrc/cuda/rows/draw.cuh",
        "return «draft.kept.keeps(raw, draft.map ? draft.columns().column(token) : token)»;",
        "true",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    "verify_chain, filtered: rows are left out that block may reach": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "if (a.p.method == SPECDEC_BLOCK) return «!(p > 0.0f)»;",
        "!(p > q)",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    "verify_chain, filtered: edits of the row behind are read": Fault(
        "csrc/cuda/walk/filtered_chain.cuh",
        "reader.decode(a.p.edits, row.vocab, {r.entry, 0}, r.target_place(r.request, «node»), node);",
        "node + 1",
        "tests/backends/test_cuda_straight.py -k 'odd_chains_with_filters and not Ptx'",
    ),
    **{
        f"context_seeds: {name}": Fault("csrc/include/specdec/context.h", text, other, CONTEXT)
        for name, text, other in (
            ("a text behind the last is read", "within = «who.index < p.text.requests»;", "true"),
            ("drafts of the next request are read", "return «slot < slots» ?", "slot < p.draft_tokens.slots"),
            ("bounds may begin before the first draft", "b > 0 ? «from >= rows * b» :", "true"),
            ("bounds may begin behind 0", ": «from == 0»;", "from >= 0"),
            ("bounds may fall", "&& «to >= from» &&", "true"),
            ("bounds may go on", "&& «to + rows <= slots - rows * (p.seeds.rows - b - 1)»;", "true"),
            (
                "tokens behind a text are read",
                "«min(max(position(), int64_t{0}), static_cast<int64_t>(p.text.slots))»;",
                "max(position(), int64_t{0})",
            ),
            ("key 0 is one", "live() && «p.key.at(who.index) != 0» &&", "true"),
            ("contexts need not be whole", "&& «first() <= end»; }", "true"),
            (
                "a start before the text is taken",
                "return «max(p.start.at(who.index), int64_t{0})» +",
                "p.start.at(who.index)",
            ),
            ("contexts before the start were seen", "place = «first()» + caller", "static_cast<int64_t>(p.window)"),
            ("contexts of drafts are not seen", "place < «end»; place += callers", "length"),
            ("only the latest token is compared", "i < «size»; ++i)\n      if (token[i] !=", "1"),
            ("a set has an order", "for (; «!p.ordered» && at", "false"),
            ("an order is a set", "for (; «!p.ordered» && at", "true"),
            ("windows of all sizes have one seed", "+ 1, «static_cast<uint32_t>(size)», kStream", "0"),
            ("places have one word", "{key, «static_cast<uint32_t>(i) + 1»,", "1"),
            ("an idle row has a seed", "if («!who.live()») return 0;", "false"),
            (
                "a draft's row has the noise of the text's end",
                "static_cast<uint32_t>(«position() + end - length»), 0",
                "position()",
            ),
        )
    },
    "context_seeds, CUDA: each thread has its own word": Fault(
        "csrc/cuda/ops/context_seeds.cu",
        "seen = «__syncthreads_or(row.seen(static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)))»;",
        "row.seen(static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x))",
        "tests/ops/test_context_seeds.py -k cuda-host",
    ),
    "seeds of rows: every row has the first one's": Fault(
        "csrc/include/specdec/walk.h",
        "seeds.at(b * seeds.request_stride + «node» * seeds.slot_stride)",
        "0",
        "tests/ops/test_row_seeds.py -k 'cpu and (chains or trees)'",
    ),
    "seeds of rows: every request has the first one's": Fault(
        "csrc/include/specdec/walk.h",
        "seeds.at(«b» * seeds.request_stride + node * seeds.slot_stride)",
        "0",
        "tests/ops/test_row_seeds.py -k 'cpu and (chains or trees)'",
    ),
}

# Every check of C, and every case that the direct way leaves to Python.
CHECKS = (
    "size|choice|memory|at_least|at_most|equal|holds|for_requests|sized|rows_apart|contiguous|contiguous_each|refuse"
)
UNMET = {  # of what the direct way declines: what no call meets here, or what is right by chance without
    "tensor does not need t->device.type == device_.type": "there is one device",
    "tensor does not need t->device.index == device_.index": "there is one device",
    "read_mask does not need !prefix.data || device_.type == 1": "there is one device",
    "read_tensor does not need vocab <= INT32_MAX": "a row of 4 GB",
    "read_parents does not need nodes <= INT32_MAX": "a tree of 8 GB",
    "read_layers does not need t.shape[i] * (i == 3 ? t.element_bytes : 1) <= INT32_MAX": "a cache of 2 GB",
    "add_output does not need num_outputs_ < kMostOutputs": "no op has as many",
}
DIRECT = "tests/ops/test_bad_input.py tests/ops/test_direct.py -k 'refused or (test_direct and not cuda)'"
MISUSE = "tests/backends/test_c_api.py -k 'mistake and cpu'"
FAULTS |= lacking("csrc/c_api/checks.cpp", "void|auto|template", CHECKS, MISUSE)
FAULTS |= needing("csrc/python/direct.cpp", DIRECT, UNMET)


if __name__ == "__main__":
    plant, *words = sys.argv[1:] or [""]
    chosen = {name: fault for name, fault in FAULTS.items() if all(word in name for word in words)}
    sys.exit(planted(FAULTS, chosen) if plant == "--plant" else print(table(FAULTS)))

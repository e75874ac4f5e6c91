"""The V1 side of `engines.vllm`: our verification and draws in a runner whose models are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

import specdec_kernels as specdec
from specdec_kernels import Draft, LogitEdits, Packing, Sampling
from specdec_kernels.engines._methods import SHARDED, filters_drafts, refuse, switched
from specdec_kernels.engines._noise import WORD, seed_of
from specdec_kernels.engines._vllm_rounds import LOGGER, TARGET, check_arguments
from specdec_kernels.engines._vllm_rows import PROCESSED, bits, scored
from specdec_kernels.engines._vllm_sharded import Slices
from specdec_kernels.engines._watermark import Marks, requested_watermark

FUSED = ("MinPLogitsProcessor", "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor")  # ours apply these
NEVER = -(2**31)
HALF = WORD**2 // 2


def strangers(runner: Any) -> list[str]:
    """The logits processors of a runner without a rule in our ops: vLLM has them where it does not speculate."""
    names = [type(processor).__name__ for processor in runner.input_batch.logitsprocs.all]
    return [name for name in names if name not in FUSED]


def take_over(runner: Any, method: str) -> str:
    """Make this runner sample by our ops; returns how its drafts are drawn, for the log."""
    config = runner.speculative_config
    if config is not None:
        theirs = runner.rejection_sampler
        refuse(synthetic_mode=theirs.synthetic_mode, fly_window_size=getattr(theirs, "use_fly", False))
        if config.rejection_sample_method == "block" and method == "rejection":
            method = "block"
    check_arguments(type(runner), "_sample", "self logits spec_decode_metadata")
    sampler = Sampler(runner, method)
    said = ""
    if switched(SHARDED) and runner.parallel_config.tensor_parallel_size > 1:
        refuse(**{f"SPECDEC_WATERMARK beside {SHARDED}": sampler.marks is not None})
        sampler.ops = sampler.slices = Slices(runner)
        said = f", each of {sampler.slices.group.world_size} ranks keeps its slice of the logits"
    runner._sample = sampler.sample
    if config is None:
        return f"no drafts{said}"
    drafter = runner.drafter
    draws = hasattr(drafter, "_sample_draft_tokens") and (method == "race" or drafter._enable_probabilistic_draft_probs)
    # No whole rows of the target's tokens, or draws inside the model, as each layer of Step 3.5 makes.
    if draws and (drafter.use_heterogeneous_vocab or drafter.use_local_argmax_reduction):
        draws = False
    if not draws or hasattr(drafter, "_sample_draft_tokens_for_step"):
        if said and method != "race":
            probable = getattr(drafter, "_enable_probabilistic_draft_probs", False)
            refuse(**{f"probabilities of vLLM's own drafts beside {SHARDED}": probable})
        return f"drafts of {config.method} as vLLM makes them{said}"
    check_arguments(type(drafter), "_sample_draft_tokens", "self hidden_states sampling_metadata")
    sampler.drafter = Drafter(drafter, sampler)
    if sampler.slices is not None:
        sampler.slices.take(config.method, drafter.model, drafter.hidden_size)
    return f"drafts of {config.method} drawn by our noise{said}"


class Shortest(NamedTuple):
    """A minimum of tokens; stop tokens are forbidden before it."""

    least: int
    stops: set[int]
    output: list[int]  # with asynchronous scheduling as long as if all drafts were accepted
    grammar: bool


class Laws(NamedTuple):
    """The settings of a batch's requests, each number one for each request."""

    sampling: Sampling
    seeds: torch.Tensor  # int64 [B]
    slots: torch.Tensor | None  # int64 [B], of texts with a watermark
    allowed: torch.Tensor | None  # bits [B, ceil(V / 32)]
    seen: Seen | None
    bias: dict[int, dict[int, float]]
    shortest: dict[int, Shortest]
    prompts: torch.Tensor | None  # int32 [B]: their lengths, where a text may be too short


class Step(NamedTuple):
    """The rows and drafts that a step verifies."""

    metadata: Any
    chains: Any  # vLLM's, None where no request has drafts
    counts: Sequence[int]  # drafts of each request
    laws: Laws
    short: dict[int, Shortest]  # requests whose text may be too short to end
    starts: torch.Tensor | None  # int32 [B]: the lengths of texts before their first rows, on the device alone


class Seen:
    """Prompt and output of a batch's requests, for penalties: counted once, and then as the output grows."""

    def __init__(self, metadata: Any, vocabulary: int) -> None:
        prompts = metadata.prompt_token_ids
        batch, words = len(prompts), -(-vocabulary // 32)
        masks = torch.zeros(2, batch, words, dtype=torch.int32, device=prompts.device)
        self.edits = LogitEdits(
            repetition=metadata.repetition_penalties, frequency=metadata.frequency_penalties,
            presence=metadata.presence_penalties, prompt_mask=masks[0], output_mask=masks[1],
            output_counts=torch.empty(batch, vocabulary, dtype=torch.int32, device=prompts.device),
        )  # fmt: skip
        specdec.count_tokens(self.edits, prompts, prompt=True)
        self.num_counted = [0] * batch

    def counted(self, outputs: Sequence[list[int]]) -> LogitEdits:
        """The edits, after new tokens of these texts are counted. -1 stands for a token that is still on the device."""
        new = [output[num_counted:] for output, num_counted in zip(outputs, self.num_counted, strict=True)]
        new = [tokens[: tokens.index(-1)] if -1 in tokens else tokens for tokens in new]
        width = max(map(len, new))
        if width:
            rows = np.full((len(new), width), -1, dtype=np.int32)
            for row, tokens in zip(rows, new, strict=True):
                row[: len(tokens)] = tokens
            counts = self.edits.output_counts
            specdec.count_tokens(self.edits, torch.from_numpy(rows).to(counts.device, non_blocking=True))
            self.num_counted = [
                num_counted + len(tokens) for num_counted, tokens in zip(self.num_counted, new, strict=True)
            ]
        return self.edits


class Sampler:
    """``GPUModelRunner._sample`` by one `verify_chain`, with drafts and without."""

    def __init__(self, runner: Any, method: str) -> None:
        self.runner, self.method, self.filters = runner, method, filters_drafts()
        self.drafter: Drafter | None = None
        self.ops: Any = specdec
        self.slices: Slices | None = None
        self.marks = None
        if (given := requested_watermark(method)) is not None:
            size = 2 * runner.max_num_reqs, runner.max_model_len  # some are preempted, and keep their slots
            self.marks = Marks(given, torch.zeros(size, dtype=torch.int32, device=runner.device))
        self._of: Any = None  # the metadata that `_laws` are of: vLLM makes new ones when the batch changes
        self._laws: Laws | None = None
        self._said: set[str] = set()

    def sample(self, logits: torch.Tensor, spec_decode_metadata: Any) -> Any:
        """Tokens int32 [B, K + 1] and log-probabilities, as vLLM's samplers give them."""
        runner, chains = self.runner, spec_decode_metadata
        batch = runner.input_batch
        batch.update_async_output_token_ids()
        if chains is not None and runner.use_async_scheduling and runner._draft_token_req_ids is not None:
            batch.update_async_spec_token_ids(runner._get_draft_token_ids_cpu()[0])
        batch.generators.clear()  # they are not used, and vLLM rewinds them where it discards a token
        metadata, size = batch.sampling_metadata, batch.num_reqs
        counts = [0] * size if chains is None else chains.num_draft_tokens
        most = max(counts)
        laws = self.laws(metadata, logits.shape[-1])
        scores = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        processed = scores and runner.sampler.logprobs_mode in PROCESSED
        short = self._short(laws)
        starts = runner.seq_lens[:size] - self._moved(counts, torch.int32) - laws.prompts if short else None
        step = Step(metadata, chains if most else None, counts, laws, short, starts)
        fuses, ops = not processed and self._fuses(step), self.ops
        if self.slices is not None and not (fuses and (not scores or runner.sampler.logprobs_mode == "raw_logprobs")):
            logits, ops = self.slices.whole(logits), specdec
        rows, edits = (logits, self._edits(step)) if fuses else (self._processed(logits, step), None)
        tokens = torch.empty(size, most + 1, dtype=torch.int32, device=logits.device)
        draft = self._draft(chains, laws) if most else None
        if draft is not None and ops is not self.ops:
            draft = draft._replace(rows=self.slices.whole(draft.rows))
        drafts = chains.draft_token_ids if most else tokens[:, :0]
        call = laid_out(drafts, rows, draft, edits, counts, runner.seq_lens[:size])
        call |= {"seed": laws.seeds, "nonce": TARGET}
        if laws.slots is not None:
            call |= self._marked(call, most, laws)
        ops.verify_chain(**call, method=self.method, sampling=laws.sampling, out=(tokens, None, None))
        logprobs = None
        if scores:
            law = laws.sampling if processed else None
            logprobs = self._logprobs(rows if processed else logits, tokens, step, law, ops)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)

    def laws(self, metadata: Any, vocabulary: int) -> Laws:
        """The laws of the batch that has this metadata, over whole rows."""
        if self.slices is not None:
            vocabulary = self.slices.shard.vocab
        if self._laws is None or self._of is not metadata:
            self._of, self._laws = metadata, self._read(metadata, vocabulary)
        return self._laws

    def _read(self, metadata: Any, vocabulary: int) -> Laws:
        states = [self.runner.requests[name] for name in self.runner.input_batch.req_ids]
        parameters = [state.sampling_params for state in states]  # with speculation vLLM makes no processors for these
        min_p: float | torch.Tensor = 0.0
        if any(one.min_p for one in parameters):
            min_p = self._moved([one.min_p for one in parameters], torch.float32)
        shortest = {
            i: Shortest(one.min_tokens, one.all_stop_token_ids, state.output_token_ids, bool(one.structured_outputs))
            for i, (one, state) in enumerate(zip(parameters, states, strict=True))
            if one.min_tokens and one.all_stop_token_ids
        }
        prompts = self._moved([state.num_prompt_tokens for state in states], torch.int32) if shortest else None
        sampling = Sampling(0.0)
        if not metadata.all_greedy:
            top_k, top_p = (off if x is None else x for off, x in ((0, metadata.top_k), (1.0, metadata.top_p)))
            sampling = Sampling.vllm(metadata.temperature, top_k, top_p, min_p)
        mask = metadata.allowed_token_ids_mask
        return Laws(
            sampling, self._seeds(), self._slots(), None if mask is None else bits(~mask[:, :vocabulary]),
            None if metadata.no_penalties else Seen(metadata, vocabulary),
            {i: one.logit_bias for i, one in enumerate(parameters) if one.logit_bias}, shortest, prompts,
        )  # fmt: skip

    def _moved(self, numbers: Sequence[float], kind: torch.dtype) -> torch.Tensor:
        return torch.tensor(numbers, dtype=kind, device="cpu").to(self.runner.device, non_blocking=True)

    def _seeds(self) -> torch.Tensor:
        """A request's seed, or one that is drawn at its first step; the request's state holds it."""
        seeds = []
        for name in self.runner.input_batch.req_ids:
            state = self.runner.requests[name]
            if not hasattr(state, "specdec_seed"):
                generator = state.generator
                seed = seed_of(None, self.runner.device) if generator is None else generator.initial_seed()
                state.specdec_seed = (seed + HALF) % WORD**2 - HALF
            seeds.append(state.specdec_seed)
        return self._moved(seeds, torch.int64)

    def _slots(self) -> torch.Tensor | None:
        """The slots of requests' texts, for a watermark; their states hold them."""
        if self.marks is None:
            return None
        states = self.runner.requests
        taken, slots = {getattr(state, "specdec_slot", -1) for state in states.values()}, []
        for state in map(states.get, self.runner.input_batch.req_ids):
            if not hasattr(state, "specdec_slot"):
                state.specdec_slot = slot = min(set(range(len(taken) + 1)) - taken)
                taken.add(slot)
                extra = state.sampling_params.extra_args
                self.marks.begin(slot, extra, state.num_prompt_tokens, state.output_token_ids)
            slots.append(state.specdec_slot)
        return self._moved(slots, torch.int64)

    def _marked(self, call: dict[str, Any], most: int, laws: Laws) -> dict[str, Any]:
        """Seeds of rows, after this step's input tokens were added to the texts."""
        runner, packing = self.runner, call["packing"]
        count = int(runner.query_start_loc.np[len(laws.slots)])
        slots = laws.slots[runner.req_indices.gpu[:count]]
        self.marks.put(slots, runner.positions[:count], runner.input_ids.gpu[:count])
        packing = None if packing is None else packing._replace(max_drafts=most)
        return self.marks.noise(call["draft_tokens"], call["position"], laws.slots, laws.seeds, packing=packing)

    def _short(self, laws: Laws) -> dict[int, Shortest]:
        """Requests whose text may be too short to end: the host may count drafts of two unverified steps."""
        slack = 2 * (self.runner.num_spec_tokens + 1) if self.runner.use_async_scheduling else 0
        return {i: one for i, one in laws.shortest.items() if len(one.output) - slack < one.least}

    def _fuses(self, step: Step) -> bool:
        """Whether our edits cover all settings of the requests. The log names, once, what they do not cover."""
        holder = step.metadata.thinking_budget_state_holder
        for name, on in (
            ("thinking_token_budget", holder is not None and holder.has_tracked_requests()),
            ("min_tokens beside structured outputs", any(one.grammar for one in step.short.values())),
        ):
            if on:
                if name not in self._said:
                    LOGGER.info("specdec-kernels: vLLM's own processors do %s, on a float32 copy", name)
                    self._said.add(name)
                return False
        return True

    def _processed(self, logits: torch.Tensor, step: Step) -> torch.Tensor:
        """A float32 copy of the rows, edited by vLLM's processors, after those that vLLM skips beside drafts."""
        theirs, verifier = self.runner.sampler, getattr(self.runner, "rejection_sampler", None)
        metadata, chains, laws, short = step.metadata, step.chains, step.laws, step.short
        rows = logits.float().clone()
        applied = laws if verifier is not None else laws._replace(bias={})
        if (bias := self._bias(step._replace(laws=applied))) is not None:
            tokens, values, spans = bias
            each = torch.arange(len(rows), device=rows.device, dtype=torch.int64)
            rows[each.repeat_interleave((spans[:, 1] - spans[:, 0]).long()), tokens.long()] += values
        if chains is None:
            rows = theirs.apply_logits_processors(rows, metadata, False)
        else:
            last, drafted = chains.bonus_logits_indices, chains.target_logits_indices
            bonus_rows = theirs.apply_logits_processors(rows[last], metadata, True)
            rows[drafted] = verifier.apply_logits_processors(rows[drafted], metadata, chains)
            rows[last] = bonus_rows
        begin = 0
        for request, count in enumerate(step.counts):
            if request in short and short[request].grammar:  # the grammar may allow stop tokens alone
                self._forbid(rows[begin : begin + count + 1], short[request], step.starts[request])
            begin += count + 1
        return rows

    def _forbid(self, rows: torch.Tensor, short: Shortest, start: torch.Tensor) -> None:
        """Forbid stop tokens in a request's rows where its text is too short and other tokens are left."""
        stops = self._moved(sorted(short.stops), torch.int64)
        before, lengths = rows[:, stops], start + torch.arange(len(rows), device=rows.device, dtype=torch.int64)
        rows[:, stops] = -torch.inf
        allowed = (lengths >= short.least) | rows.isneginf().all(1)
        rows[:, stops] = before.masked_fill_(~allowed[:, None], -torch.inf)

    def _edits(self, step: Step) -> LogitEdits | None:
        metadata, laws, bias = step.metadata, step.laws, None
        edits = LogitEdits() if laws.seen is None else laws.seen.counted(metadata.output_token_ids)
        if laws.bias or step.short or metadata.bad_words_token_ids:
            bias = self._bias(step)
        if bias is None and laws.allowed is None:
            return None if laws.seen is None else edits
        return edits._replace(bias=bias, allowed=laws.allowed)

    def _bias(self, step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """The bias of each row's tokens: biases, and -inf where a bad word or a text too short would end."""
        metadata, tokens, values, spans = step.metadata, [], [], []
        limits = []  # by entry: its request, and the least length of its text at the first row
        for request, count in enumerate(step.counts):
            biases, bad = step.laws.bias.get(request), metadata.bad_words_token_ids.get(request)
            one = step.short.get(request)
            stops = one.stops if one is not None and not one.grammar else ()
            for row in range(count + 1):
                entries = dict.fromkeys(stops, 0.0) | (biases or {})
                if bad is not None:
                    text = metadata.output_token_ids[request] + metadata.spec_token_ids[request][:row]
                    ends = (word[-1] for word in bad if text[len(text) - len(word) + 1 :] == word[:-1])
                    entries |= dict.fromkeys(ends, -torch.inf)
                spans.append((len(tokens), len(tokens) + len(entries)))
                for token in sorted(entries):
                    tokens.append(token)
                    values.append(entries[token])
                    limits.append((request, one.least - row if token in stops else NEVER))
        if not tokens:
            return None
        added = self._moved(values, torch.float32)
        if step.starts is not None:
            which, least = self._moved(limits, torch.int64).unbind(1)
            added.masked_fill_(step.starts[which] < least, -torch.inf)
        return self._moved(tokens, torch.int32), added, self._moved(spans, torch.int32)

    def _draft(self, chains: Any, laws: Laws) -> Draft | None:
        """The laws of drafts that were drawn: rows [D, V], logits where we drew. Others count as certain."""
        rows = None if self.method == "race" else self.runner._get_spec_decode_draft_probs(chains)
        if rows is None:
            return None
        drew = self.drafter is not None and self.drafter.drawn
        return Draft(rows, "logits", self.drafted_by(laws)) if drew else Draft(rows, "probs")

    def drafted_by(self, laws: Laws) -> Sampling:
        """The Sampling that our drafts are drawn with."""
        return laws.sampling if self.filters else Sampling(laws.sampling.temperature)

    def _logprobs(
        self, rows: torch.Tensor, tokens: torch.Tensor, step: Step, sampling: Sampling | None, ops: Any
    ) -> Any:
        """vLLM's log-probabilities: a row for each column of ``tokens``; those behind the last are arbitrary."""
        counts, most, wanted = step.counts, max(step.counts), step.metadata.logprob_token_ids
        if min(counts) == most:
            slots = None
            if wanted or (most and sampling is not None):
                slots = torch.arange(len(tokens), device=tokens.device, dtype=torch.int64).repeat_interleave(most + 1)
            entry_index, flat = None, tokens.view(-1)
        else:
            many = np.asarray(counts) + 1
            begins = np.cumsum(many) - many
            request = np.repeat(np.arange(len(many)), many)
            table = np.stack((request, np.arange(len(request)) - begins[request]))
            entry_index = begins[:, None] + np.minimum(np.arange(most + 1), many[:, None] - 1)
            slots, local = torch.from_numpy(table).to(tokens.device)
            entry_index, flat = torch.from_numpy(entry_index.ravel()).to(tokens.device), tokens[slots, local]
        given = None
        if wanted:
            table = np.full((len(tokens), max(map(len, wanted.values()))), -1)
            for request, named in wanted.items():
                table[request, : len(named)] = named
            given = torch.from_numpy(table).to(tokens.device, non_blocking=True)[slots]
        top, mode = step.metadata.max_num_logprobs or 0, self.runner.sampler.logprobs_mode
        ids, *columns = scored(rows, flat, top, sampling, slots, mode, given, ops)
        columns = ids.int(), *columns
        return LogprobsTensors(*(columns if entry_index is None else (x[entry_index] for x in columns)))


def laid_out(
    drafts: torch.Tensor, rows: torch.Tensor, draft: Draft | None, edits: LogitEdits | None, counts: Sequence[int],
    ends: torch.Tensor,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of `verify_chain`, packed where numbers of drafts differ. ``ends``: the ends of input tokens."""
    size, most, packing = len(counts), max(counts), None
    if min(counts) == most:
        drafts, rows, position = drafts.view(size, most), rows.view(size, most + 1, -1), ends - most if most else ends
        if draft is not None:
            draft = draft._replace(rows=draft.rows.view(size, most, -1))
        if edits is not None and edits.bias is not None:
            edits = edits._replace(bias=(*edits.bias[:2], edits.bias[2].view(size, most + 1, 2)))
    else:
        table = np.zeros(2 * size + 1, dtype=np.int32)  # each request's first draft, and its number of drafts
        np.cumsum(counts, out=table[1 : size + 1])
        table[size + 1 :] = counts
        there = torch.from_numpy(table).to(rows.device, non_blocking=True)
        packing, position = Packing(there[: size + 1]), ends - there[size + 1 :]
        if edits is not None and edits.allowed is not None:
            edits = edits._replace(allowed=edits.allowed.unsqueeze(1))
    return {
        "draft_tokens": drafts, "target": rows, "draft": draft, "edits": edits, "position": position, "packing": packing
    }  # fmt: skip


class Drafter:
    """The draws of ``SpecDecodeBaseProposer``, by `race_sample` at the positions that its drafts decide.

    In a race they have the noise of the verification. Otherwise each position of a chain has other noise, and the rows
    they were drawn from, logits, are stored unchanged.
    """

    def __init__(self, proposer: Any, sampler: Sampler) -> None:
        self.proposer, self.sampler = proposer, sampler
        self._propose, self._draw = proposer.propose, proposer._sample_draft_tokens
        self._positions: torch.Tensor | None = None
        self.drawn = 0
        proposer.propose, proposer._sample_draft_tokens = self.propose, self.draw

    def propose(self, **given: Any) -> torch.Tensor:
        """The proposer's `propose`, after the position of its first draft is set: two after the last input token's."""
        attention, rejected = given["common_attn_metadata"], given["num_rejected_tokens_gpu"]
        ends = attention.seq_lens[: len(given["next_token_ids"])]
        self._positions = (ends if rejected is None else ends - rejected) + 1
        self.drawn = 0
        if self.sampler.marks is not None:
            vocabulary = self.sampler.runner.model_config.get_vocab_size()
            slots = self.sampler.laws(given["sampling_metadata"], vocabulary).slots
            self.sampler.marks.put(slots, self._positions - 1, given["next_token_ids"])
        return self._propose(**given)

    def draw(self, hidden_states: torch.Tensor, sampling_metadata: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A draft of each row, and the rows, where the verification needs them."""
        if sampling_metadata.all_greedy and self.sampler.slices is None:
            return self._draw(hidden_states, sampling_metadata)
        rows = self.proposer.model.compute_logits(hidden_states)
        laws, races = self.sampler.laws(sampling_metadata, rows.shape[-1]), self.sampler.method == "race"
        positions, steps = self._positions, len(rows) // len(self._positions)  # several if all are drawn at once
        sampling, seeds, nonce = self.sampler.drafted_by(laws), laws.seeds, self.drawn
        if steps > 1:
            nonce = torch.arange(steps, device=rows.device, dtype=torch.int64)
            positions, seeds = positions[:, None] + nonce, seeds[:, None]
            sampling = Sampling(*(x[:, None] if isinstance(x, torch.Tensor) else x for x in sampling))
        elif self.drawn:
            positions = positions + self.drawn
        noise, marks = {"seed": seeds, "position": positions, "nonce": TARGET if races else nonce}, self.sampler.marks
        if marks is not None and steps == 1:
            noise = marks.noise(laws.slots.new_empty(len(rows), 0), positions, laws.slots, seeds)
            noise["seed"] = noise["seed"][:, 0]
        tokens = self.sampler.ops.race_sample(rows.view(*positions.shape, rows.shape[-1]), sampling=sampling, **noise)
        if marks is not None and steps == 1:
            marks.put(laws.slots, positions, tokens)
        self.drawn += steps
        return tokens.view(-1), None if races else rows

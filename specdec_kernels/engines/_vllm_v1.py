"""The V1 side of `engines.vllm`: our verification and draws in a runner whose models are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

import specdec_kernels as specdec
from specdec_kernels import Draft, InputPositions, LogitEdits, Packing, Sampling
from specdec_kernels.engines._methods import SHARDED, filters_drafts, refuse, switched
from specdec_kernels.engines._noise import WORD, seed_of
from specdec_kernels.engines._noise import positions as first_rows
from specdec_kernels.engines._vllm_biases import Biases, Entries
from specdec_kernels.engines._vllm_rounds import LOGGER, TARGET, check_arguments, first_positions
from specdec_kernels.engines._vllm_rows import PROCESSED, bits, moved, requests_of, scored
from specdec_kernels.engines._vllm_sharded import Slices
from specdec_kernels.engines._watermark import Marks, requested_watermark

FUSED = ("MinPLogitsProcessor", "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor")  # ours apply these
GREEDY = Sampling(0.0)
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
    draws = hasattr(drafter, "_sample_draft_tokens") and not hasattr(drafter, "_sample_draft_tokens_for_step")
    # No whole rows of the target's tokens, or draws inside the model, as each layer of Step 3.5 makes.
    if draws and (drafter.use_heterogeneous_vocab or drafter.use_local_argmax_reduction):
        draws = False
    likeliest = draws and method != "race" and not drafter._enable_probabilistic_draft_probs
    if not draws or (likeliest and said):
        if said and method != "race":
            probable = getattr(drafter, "_enable_probabilistic_draft_probs", False)
            refuse(**{f"probabilities of vLLM's own drafts beside {SHARDED}": probable})
        return f"drafts of {config.method} as vLLM makes them{said}"
    check_arguments(type(drafter), "_sample_draft_tokens", "self hidden_states sampling_metadata")
    sampler.drafter = Drafter(drafter, sampler, likeliest)
    if likeliest:
        return f"drafts of {config.method} as vLLM makes them"
    if sampler.slices is not None:
        sampler.slices.take(config.method, drafter.model, drafter.hidden_size)
    return f"drafts of {config.method} drawn by our noise{said}"


class Laws(NamedTuple):
    """The settings of a batch's requests, each number one for each request."""

    sampling: Sampling
    seeds: torch.Tensor  # int64 [B]
    slots: torch.Tensor | None  # int64 [B], of texts with a watermark
    allowed: torch.Tensor | None  # bits [B, ceil(V / 32)]
    seen: LogitEdits | None  # penalties, with counts of the texts so far
    biases: Biases | None
    shortest: dict[int, list[int]]  # outputs of requests with a minimum of tokens
    plain: bool  # whether requests have a sampling and seeds alone


class Step(NamedTuple):
    """The rows and drafts that a step verifies."""

    metadata: Any
    chains: Any  # vLLM's, None where no request has drafts
    counts: Sequence[int]  # drafts of each request
    even: bool  # whether these are equal
    inputs: torch.Tensor  # int32 or int64 [D + B]: the positions of the rows' input tokens
    laws: Laws
    short: list[int]  # requests whose text may be too short to end


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
        stored = None if self.drafter is None else self.drafter.taken()
        laws, ends = self.laws(metadata, logits.shape[-1]), runner.seq_lens[:size]
        scores = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        if chains is None and laws.plain and not scores and metadata.thinking_budget_state_holder is None:
            tokens = torch.empty(size, 1, dtype=torch.int32, device=logits.device)
            self.ops.verify_chain(
                draft_tokens=tokens[:, 1:], target=logits.unsqueeze(1), method=self.method, sampling=laws.sampling,
                seed=laws.seeds, position=ends, nonce=TARGET, out=(tokens, None, None),
            )  # fmt: skip
            return SamplerOutput(tokens, None)
        counts = [0] * size if chains is None else chains.num_draft_tokens
        most = max(counts)
        processed = scores and runner.sampler.logprobs_mode in PROCESSED
        short, inputs = self._short(laws) if laws.shortest else [], ends
        if most:
            inputs = runner.positions[: len(logits)]
            if runner.query_start_loc.np[size] != len(logits):  # prompts have tokens without rows
                inputs = runner.positions[chains.logits_indices]
        elif short:
            inputs = ends - 1
        step = Step(metadata, chains if most else None, counts, most == min(counts), inputs, laws, short)
        fuses, ops = not processed and self._fuses(step), self.ops
        if self.slices is not None and not (fuses and (not scores or runner.sampler.logprobs_mode == "raw_logprobs")):
            logits, ops = self.slices.whole(logits), specdec
        rows, edits = (logits, self._edits(step)) if fuses else (self._processed(logits, step), None)
        tokens = torch.empty(size, most + 1, dtype=torch.int32, device=logits.device)
        call: dict[str, Any] = {"target": rows, "edits": edits, "sampling": laws.sampling, "seed": laws.seeds}
        call |= {"draft_tokens": chains.draft_token_ids if most else tokens[:, :0], "position": ends, "nonce": TARGET}
        if most:
            call["position"] = InputPositions(inputs.view(size, -1) if step.even else inputs)
            if not step.even:
                call["packing"] = Packing(pad(chains.cu_num_draft_tokens, (1, 0)))
            call |= self._draft(step, call, stored, ops)
        if step.even:
            call["draft_tokens"], call["target"] = call["draft_tokens"].view(size, most), rows.view(size, most + 1, -1)
        if laws.slots is not None:
            call |= self._marked(call, most, laws)
        ops.verify_chain(**call, method=self.method, out=(tokens, None, None))
        if laws.seen is not None:
            unread = runner.discard_request_mask  # of requests whose prompts have tokens left
            emitted = tokens.masked_fill(unread.gpu[:size, None], -1) if unread.np[:size].any() else tokens
            specdec.count_tokens(laws.seen, emitted)
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
        entries = [entries_of(state) for state in states]
        # With asynchronous scheduling an output is as long as if all drafts were accepted.
        shortest = {i: state.output_token_ids for i, state in enumerate(states) if entries[i].stops}
        sampling = GREEDY
        if not metadata.all_greedy:
            top_k, top_p = (off if x is None else x for off, x in ((0, metadata.top_k), (1.0, metadata.top_p)))
            sampling = Sampling.vllm(metadata.temperature, top_k, top_p, min_p)
        mask, biases = metadata.allowed_token_ids_mask, None
        if any(one.used for one in entries):
            biases = Biases(entries, self.runner.device)
        seen = None if metadata.no_penalties else counted(metadata, vocabulary)
        allowed = None if mask is None else bits(~mask[:, :vocabulary])
        plain = self.marks is None and allowed is seen is biases is None
        return Laws(sampling, self._seeds(), self._slots(), allowed, seen, biases, shortest, plain)

    def _moved(self, numbers: Sequence[float], kind: torch.dtype) -> torch.Tensor:
        return moved(torch.tensor(numbers, dtype=kind, device="cpu"), self.runner.device)

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
        runner, packing = self.runner, call.get("packing")
        count = int(runner.query_start_loc.np[len(laws.slots)])
        slots = laws.slots[runner.req_indices.gpu[:count]]
        self.marks.put(slots, runner.positions[:count], runner.input_ids.gpu[:count])
        position = first_positions(call["position"], packing)
        packing = None if packing is None else packing._replace(max_drafts=most)
        return self.marks.noise(call["draft_tokens"], position, laws.slots, laws.seeds, packing=packing)

    def _short(self, laws: Laws) -> list[int]:
        """Requests whose text may be too short to end: the host may count drafts of two unverified steps."""
        slack = 2 * (self.runner.num_spec_tokens + 1) if self.runner.use_async_scheduling else 0
        entries = laws.biases.entries
        return [i for i, output in laws.shortest.items() if len(output) - slack < entries[i].least]

    def _fuses(self, step: Step) -> bool:
        """Whether our edits cover all settings of the requests. The log names, once, what they do not cover."""
        holder, biases = step.metadata.thinking_budget_state_holder, step.laws.biases
        for name, on in (
            ("thinking_token_budget", holder is not None and holder.has_tracked_requests()),
            ("min_tokens beside structured outputs", any(biases.entries[i].grammar for i in step.short)),
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
        metadata, chains, short, biases = step.metadata, step.chains, step.short, step.laws.biases
        rows = logits.float().clone()
        if verifier is not None and biases is not None and (bias := biases.of_step(step)) is not None:
            tokens, values, spans = bias
            begins, ends = spans.reshape(-1, 2).long().unbind(1)
            each = torch.arange(len(rows), device=rows.device, dtype=torch.int64).repeat_interleave(ends - begins)
            entry = torch.arange(len(each), device=rows.device, dtype=torch.int64)
            entry += (ends - (ends - begins).cumsum(0))[each]
            rows[each, tokens[entry].long()] += values[entry]
        if chains is None:
            rows = theirs.apply_logits_processors(rows, metadata, False)
        else:
            last, drafted = chains.bonus_logits_indices, chains.target_logits_indices
            bonus_rows = theirs.apply_logits_processors(rows[last], metadata, True)
            rows[drafted] = verifier.apply_logits_processors(rows[drafted], metadata, chains)
            rows[last] = bonus_rows
        begin = 0
        for request, count in enumerate(step.counts):
            if request in short and biases.entries[request].grammar:  # which may allow stop tokens alone
                each = slice(begin, begin + count + 1)
                self._forbid(rows[each], biases.entries[request], step.inputs[each])
            begin += count + 1
        return rows

    def _forbid(self, rows: torch.Tensor, one: Entries, inputs: torch.Tensor) -> None:
        """Forbid stop tokens in a request's rows where its text is too short and other tokens are left."""
        stops = self._moved(sorted(one.stops), torch.int64)
        before = rows[:, stops]
        rows[:, stops] = -torch.inf
        allowed = (inputs >= one.bound) | rows.isneginf().all(1)
        rows[:, stops] = before.masked_fill_(~allowed[:, None], -torch.inf)

    def _edits(self, step: Step) -> LogitEdits | None:
        laws, allowed = step.laws, step.laws.allowed
        bias = None if laws.biases is None else laws.biases.of_step(step)
        if bias is None and allowed is None:
            return laws.seen
        if allowed is not None and not step.even:
            allowed = allowed.unsqueeze(1)
        return (laws.seen or LogitEdits())._replace(bias=bias, allowed=allowed)

    def _draft(self, step: Step, call: dict[str, Any], stored: Any, ops: Any) -> dict[str, Any]:
        """The arguments of `verify_chain` that name the laws of drafts, and those that change beside them.

        Rows that were stored are read where they lie, [K, requests then, V]: ``request_index`` finds them once the
        batch has another order. Drafts without rows count as certain.
        """
        size, most, laws = len(step.counts), max(step.counts), step.laws
        if stored is None:
            rows = None if self.method == "race" else self.runner._get_spec_decode_draft_probs(step.chains)
            if rows is None:
                return {}
            return {"draft": Draft(rows.view(size, most, -1) if step.even else rows, "probs")}
        rows, names = stored
        now, sampling = self.runner.input_batch.req_ids, self.drafted_by(laws)
        entries, changed = max(len(names), size), {}
        if names != now:
            entry = dict(zip(names, range(len(names)), strict=True))
            free = iter({*range(entries)}.difference(entry.get(name, -1) for name in now))
            index = self._moved([entry[name] if name in entry else next(free) for name in now], torch.int64)
            if any(count and name not in entry for name, count in zip(now, step.counts, strict=True)):
                lost = np.repeat([name not in entry for name in now], step.counts)  # of such drafts none is verified
                changed["draft_tokens"] = call["draft_tokens"].masked_fill(moved(lost, rows.device), -1)
            changed |= by_entry(call, index, entries)
            sampling = at_entries(sampling, index, entries)
        elif not step.even:
            index = first_rows(rows, size)
        if names != now or not step.even:
            changed["request_index"] = index
        if rows.shape[1] < entries:
            rows = pad(rows, (0, 0, 0, entries - rows.shape[1]))
        rows = rows[:most, :entries].transpose(0, 1)
        return changed | {"draft": Draft(rows if ops is self.ops else self.slices.whole(rows), "logits", sampling)}

    def drafted_by(self, laws: Laws) -> Sampling:
        """The Sampling that our drafts are drawn with."""
        return laws.sampling if self.filters else Sampling(laws.sampling.temperature)

    def _logprobs(
        self, rows: torch.Tensor, tokens: torch.Tensor, step: Step, sampling: Sampling | None, ops: Any
    ) -> Any:
        """vLLM's log-probabilities: a row for each column of ``tokens``; those behind the last are arbitrary."""
        most, wanted = tokens.shape[1] - 1, step.metadata.logprob_token_ids
        slots, entry_index, flat = None, None, tokens.view(-1)
        if not step.even:
            ends = step.chains.cu_num_sampled_tokens.long()
            begins, columns = pad(ends[:-1], (1, 0)), torch.arange(most + 1, device=tokens.device, dtype=torch.int64)
            entry_index = torch.minimum(begins[:, None] + columns, ends[:, None] - 1).flatten()
            slots = requests_of(ends, len(rows))
            local = torch.arange(len(rows), device=tokens.device, dtype=torch.int64) - begins[slots]
            flat = tokens[slots, local]
        elif wanted or (most and sampling is not None):
            slots = torch.arange(len(tokens), device=tokens.device, dtype=torch.int64).repeat_interleave(most + 1)
        given = None
        if wanted:
            table = np.full((len(tokens), max(map(len, wanted.values()))), -1)
            for request, named in wanted.items():
                table[request, : len(named)] = named
            given = moved(table, tokens.device)[slots]
        top, mode = step.metadata.max_num_logprobs or 0, self.runner.sampler.logprobs_mode
        ids, *columns = scored(rows, flat, top, sampling, slots, mode, given, ops)
        columns = ids.int(), *columns
        return LogprobsTensors(*(columns if entry_index is None else (x[entry_index] for x in columns)))


def counted(metadata: Any, vocabulary: int) -> LogitEdits:
    """The penalties of a batch's requests, with their prompts and outputs counted."""
    prompts, outputs = metadata.prompt_token_ids, metadata.output_token_ids
    batch, device = len(prompts), prompts.device
    masks = torch.zeros(2, batch, -(-vocabulary // 32), dtype=torch.int32, device=device)
    edits = LogitEdits(
        repetition=metadata.repetition_penalties, frequency=metadata.frequency_penalties,
        presence=metadata.presence_penalties, prompt_mask=masks[0], output_mask=masks[1],
        output_counts=torch.empty(batch, vocabulary, dtype=torch.int32, device=device),
    )  # fmt: skip
    specdec.count_tokens(edits, prompts, prompt=True)
    tokens = np.full((batch, max(map(len, outputs))), -1, dtype=np.int32)
    for row, output in zip(tokens, outputs, strict=True):
        row[: len(output)] = output
    specdec.count_tokens(edits, moved(tokens, device))
    return edits


def entries_of(state: Any) -> Entries:
    """A request's lists, which its state holds."""
    if not hasattr(state, "specdec_entries"):
        state.specdec_entries = Entries(state.sampling_params, state.num_prompt_tokens)
    return state.specdec_entries


def at_entries(x: Any, index: torch.Tensor, entries: int) -> Any:
    """A number, or numbers for each request, as [entries, ...]: request b's at ``index[b]``."""
    if isinstance(x, Sampling):
        return Sampling(*(at_entries(number, index, entries) for number in x))
    return x.new_zeros(entries, *x.shape[1:]).index_copy_(0, index, x) if isinstance(x, torch.Tensor) else x


def by_entry(call: dict[str, Any], index: torch.Tensor, entries: int) -> dict[str, Any]:
    """The numbers of a call by entry, and an index of its lists."""
    changed = {name: at_entries(call[name], index, entries) for name in ("seed", "sampling")}
    if (edits := call["edits"]) is not None:
        names = "repetition", "frequency", "presence", "allowed"
        edits = edits._replace(**{name: at_entries(getattr(edits, name), index, entries) for name in names})
        if edits.output_mask is not None:  # its counts are large, and stay
            edits = edits._replace(seen_index=at_entries(first_rows(index, len(index)).int(), index, entries))
        changed["edits"] = edits
    return changed


class Drafter:
    """The draws of ``SpecDecodeBaseProposer``, by `race_sample` at the positions that its drafts decide.

    In a race they have the noise of the verification. Otherwise each position of a chain has other noise, and the rows
    they were drawn from, logits, are stored here, [K, requests, V]; vLLM gets None instead, so it stacks none.
    ``likeliest``: drafts are the argmax, as vLLM's are, and have no laws.
    """

    def __init__(self, proposer: Any, sampler: Sampler, likeliest: bool) -> None:
        self.proposer, self.sampler, self.likeliest = proposer, sampler, likeliest
        self._propose, self.drawn = proposer.propose, 0
        self._most, device = sampler.runner.num_spec_tokens, sampler.runner.device
        self._steps = torch.arange(1, self._most + 1, device=device, dtype=torch.int32).unsqueeze(1)
        self._positions: torch.Tensor | None = None  # [K, B]
        self._buffer: torch.Tensor | None = None
        self._stored: torch.Tensor | None = None
        self._names: list[str] = []
        base = next(one for one in type(proposer).__mro__ if "_sample_draft_tokens" in vars(one))
        # Gemma 4's reads some rows of its head alone.
        self._greedy = None if type(proposer)._greedy_sample is base._greedy_sample else proposer._greedy_sample
        proposer.propose, proposer._sample_draft_tokens = self.propose, self.draw

    def propose(self, **given: Any) -> torch.Tensor:
        """The proposer's `propose`, after the positions of drafts are set: from two after the last input token's."""
        attention, rejected = given["common_attn_metadata"], given["num_rejected_tokens_gpu"]
        ends = attention.seq_lens[: len(given["next_token_ids"])]
        self._positions = (ends if rejected is None else ends - rejected) + self._steps
        self.drawn, self._stored, self._alone = 0, None, given.get("num_speculative_tokens") == 1
        if self.sampler.marks is not None:
            vocabulary = self.sampler.runner.model_config.get_vocab_size()
            slots = self.sampler.laws(given["sampling_metadata"], vocabulary).slots
            self.sampler.marks.put(slots, self._positions[0] - 1, given["next_token_ids"])
        return self._propose(**given)

    def draw(self, hidden_states: torch.Tensor, sampling_metadata: Any) -> tuple[torch.Tensor, None]:
        """A draft of each row."""
        sampler, greedy = self.sampler, self.likeliest or sampling_metadata.all_greedy
        if greedy and self._greedy is not None and sampler.slices is None:
            return self._greedy(hidden_states), None
        rows = self.proposer.model.compute_logits(hidden_states)
        positions = self._positions[self.drawn]
        steps = len(rows) // len(positions)  # several if all are drawn at once
        if steps > 1:
            positions = self._positions[:steps].T.contiguous()
            rows = rows.view(-1, steps, rows.shape[-1])
        if greedy:
            tokens = sampler.ops.race_sample(rows, sampling=GREEDY, seed=0, position=positions)
            self.drawn += steps
            return tokens.view(-1), None
        laws, races, marks = sampler.laws(sampling_metadata, rows.shape[-1]), sampler.method == "race", sampler.marks
        sampling, seeds, nonce = sampler.drafted_by(laws), laws.seeds, TARGET if races else self.drawn
        if steps > 1:
            nonce = TARGET if races else first_rows(rows, steps)
            seeds = seeds[:, None]
            sampling = Sampling(*(x[:, None] if isinstance(x, torch.Tensor) else x for x in sampling))
        noise = {"seed": seeds, "position": positions, "nonce": nonce}
        if marks is not None and steps == 1:
            noise = marks.noise(laws.slots.new_empty(len(rows), 0), positions, laws.slots, seeds)
            noise["seed"] = noise["seed"][:, 0]
        tokens = sampler.ops.race_sample(rows, sampling=sampling, **noise)
        if marks is not None and steps == 1:
            marks.put(laws.slots, positions, tokens)
        if not races:
            self._store(rows, steps)
        self.drawn += steps
        return tokens.view(-1), None

    def taken(self) -> tuple[torch.Tensor, list[str]] | None:
        """The rows of the last drafts and the names of their requests, once: a later step may have other drafts."""
        stored, self._stored = self._stored, None
        return None if stored is None else (stored, self._names)

    def _store(self, rows: torch.Tensor, steps: int) -> None:
        """Store rows for the verification: a copy, unless they are those of all drafts."""
        if not self.drawn:
            self._names = self.sampler.runner.input_batch.req_ids.copy()
        if steps > 1 or self._alone:
            self._stored = rows.view(len(self._names), steps, -1).transpose(0, 1)
            return
        size, width = rows.shape
        if self._buffer is None or self._buffer.shape[1] < size or self._buffer.shape[2] != width:
            self._buffer = None  # its memory is free for the next one
            self._buffer = rows.new_empty(self._most, 1 << (size - 1).bit_length(), width)
        self._buffer[self.drawn, :size] = rows
        self._stored = self._buffer

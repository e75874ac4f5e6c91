"""The engines of the slot machine: what they do with a request's place, in stand-ins of what our plug-ins hook into."""

import itertools
import types

import torch

from specdec_kernels import Sampling
from specdec_kernels.engines import mlx_lm, vllm
from specdec_kernels.engines.llamacpp import LlamaDrafter
from specdec_kernels.generate import TextEdits, stream
from tests.engines import sglang_server, sglang_stand_in, vllm_stand_in, vllm_v1_stand_in
from tests.engines.slot_machine import PLACES, Engine

VOCABULARY, K = 40, 3
GENERATOR = torch.Generator().manual_seed(0)
TARGET = 2 * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)  # logits after each token
DRAFT = TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)


class VllmV2(Engine):
    """Numbers by slot. The slot that was left last is taken first, and holds what nobody has written anew."""

    most = K

    def __init__(self, method, draft=DRAFT):
        vllm.register()
        state = vllm_stand_in.ModelState(vllm_stand_in.speculative(K), {"specdec": method})
        sampler = vllm_stand_in.Sampler(PLACES, VOCABULARY)
        self.method, self.draft = method, draft
        self.speculator = vllm_stand_in.DraftModelSpeculator()
        self.sampler, self.rejection = state.custom_sampler(sampler)
        self.speculator.set_attn(state)
        self.free, self.slot, self.text = list(range(PLACES))[::-1], {}, {}
        self.cache = torch.full((PLACES, K, VOCABULARY), torch.nan)

    def admit(self, name, wish, said):
        slot = self.slot[name] = self.free.pop()
        self.text[name] = wish.prompt + said
        states, penalties = self.sampler.sampling_states, self.sampler.penalties_state
        for field in ("temperature", "top_p", "min_p"):
            getattr(states, field).np[slot] = getattr(wish, field)
        states.top_k.np[slot], states.seeds.np[slot] = wish.top_k or VOCABULARY, wish.seed
        for field in ("repetition", "frequency", "presence"):
            getattr(penalties, f"{field}_penalty").np[slot] = getattr(wish, field)
        uses = (wish.repetition, wish.frequency, wish.presence) != (1.0, 0.0, 0.0)
        penalties.use_penalty[slot] = uses
        if uses:  # else its counts stay those of another request
            penalties.prompt_bin_mask[slot] = 0
            for token in wish.prompt:
                penalties.prompt_bin_mask[slot, token // 32] |= 1 << token % 32
            penalties.output_bin_counts[slot] = torch.tensor(said, dtype=torch.int64).bincount(minlength=VOCABULARY)
        self.sampler.req_states.begin(slot, wish.prompt, said)
        self.sampler.needs_logits_processing[slot] = wish.min_p or wish.top_k > 0
        least, stops, _ = wish.more.get("shortest", (0, (), False))
        params = vllm_stand_in.SamplingParams(
            logit_bias=wish.more.get("bias"), min_tokens=least, all_stop_token_ids=stops,
            bad_words_token_ids=wish.more.get("bad"), allowed_token_ids=wish.more.get("allowed"),
        )  # fmt: skip
        self.sampler.add_request(slot, params)
        self.sampler.apply_staged_writes()

    def drop(self, name):
        self.free.append(self.slot.pop(name))

    def drafts(self, names):
        """Their last token and K drafts after it, drawn as the method's drafts are."""
        slots, states = torch.tensor([self.slot[name] for name in names]), self.sampler.sampling_states
        rows = [torch.tensor([self.text[name][-1] for name in names])]
        for step in range(K):
            places = torch.tensor([len(self.text[name]) - 1 + step for name in names])
            numbers = slots, states.temperature.gpu, states.seeds.gpu
            step, cache = torch.tensor(step), None if self.method == "race" else self.cache
            rows.append(self.speculator.sample_draft(self.draft[rows[-1]], places, *numbers, step, cache))
        return torch.stack(rows, 1)

    def step(self, names, counts):
        slots = [self.slot[name] for name in names]
        batch = vllm_stand_in.batch_of(
            [count + 1 for count in counts], slots, [len(self.text[name]) - 1 for name in names]
        )
        tokens = torch.cat(
            [row[: count + 1] for row, count in zip(self.drafts(names), counts, strict=True)]
        ).int()  # fmt: skip
        rows = TARGET[tokens]
        if any(counts) or self.method != "race":
            cache = None if self.method == "race" else self.cache
            sampled, number, *_ = self.rejection._verify_in_chunks(
                rows, batch, cache, tokens, batch.positions, 1, -1, tokens
            )
            emitted = [row[:count] for row, count in zip(sampled.tolist(), number.tolist(), strict=True)]
        else:
            sampled, _ = self.sampler.sample(
                rows, batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, batch.positions, tokens,
                batch.expanded_local_pos, batch.seq_lens_cpu_upper_bound.numpy(),
            )  # fmt: skip
            emitted = [[token] for token in sampled.tolist()]
        for name, slot, row in zip(names, slots, emitted, strict=True):
            self.text[name] += row
            self.sampler.req_states.write(slot, row)
            for token in row:
                self.sampler.penalties_state.output_bin_counts[slot, token] += 1
        return dict(zip(names, emitted, strict=True))


class VllmV1(Engine):
    """A batch that is made anew when its requests change, and requests that keep their state while they wait."""

    most = K

    def __init__(self, plugin, method, target=TARGET, draft=DRAFT, runner=None):
        self.runner = runner or vllm_v1_stand_in.Runner(vllm_v1_stand_in.Proposer(draft))
        plugin.take_over(self.runner, method)
        self.target = target
        self.wish, self.outputs, self.proposed, self.names, self.metadata = {}, {}, {}, None, None

    def admit(self, name, wish, said):
        self.wish[name], self.outputs[name] = wish, list(said)
        self.names = None
        known = types.SimpleNamespace(generator=torch.Generator().manual_seed(wish.seed % 2**64))
        self.runner.requests.setdefault(name, known)  # one that was preempted is still known

    def drop(self, name):
        self.names = None
        self.proposed.pop(name, None)
        if len(self.outputs[name]) >= self.wish[name].length:
            del self.runner.requests[name]

    def kind(self, wish):
        numbers = wish._asdict()
        off = wish._field_defaults
        fields = ("top_k", "top_p", "min_p", "repetition", "frequency", "presence")
        kind = {field: numbers[field] for field in fields if numbers[field] != off[field]}
        return kind | {"temperature": wish.temperature} | wish.more

    def step(self, names, counts):
        if names != self.names:
            self.names = list(names)
            self.drafts = {name: [] for name in names}
            wishes = [self.wish[name] for name in names]
            self.metadata = vllm_v1_stand_in.metadata_of(
                [self.kind(wish) for wish in wishes], [wish.prompt for wish in wishes],
                [self.outputs[name] for name in names], [self.drafts[name] for name in names], len(self.target),
            )  # fmt: skip
            self.runner.batch(names, self.metadata)
        for row, name in enumerate(names):  # vLLM writes into its lists, too
            self.drafts[name][:] = self.proposed.get(name, [])[: counts[row]]
            counts[row] = len(self.drafts[name])
        rows, ends = [], []
        for name in names:
            text = self.wish[name].prompt + self.outputs[name]
            rows.append([text[-1], *self.drafts[name]])
            ends.append(len(text) + len(self.drafts[name]))
        logits = self.target[[*itertools.chain(*rows)]]
        if hasattr(self.runner, "model"):
            logits = self.runner.model.compute_logits(logits)
        self.runner.prompts = not self.runner.prompts
        found = self.runner.step(logits, [row[1:] for row in rows], ends).sampled_token_ids
        number = (found >= 0).sum(1).tolist()
        emitted = [row[:count] for row, count in zip(found.tolist(), number, strict=True)]
        for name, row in zip(names, emitted, strict=True):
            self.outputs[name] += row
        if self.runner.speculative_config is None:
            return dict(zip(names, emitted, strict=True))
        rejected = torch.tensor([len(row) for row in rows]) - torch.tensor(number)
        new = self.runner.propose([row[-1] for row in emitted], ends, K, rejected)
        self.proposed = dict(zip(names, new.tolist(), strict=True))  # of others the rows are lost
        return dict(zip(names, emitted, strict=True))


class Sglang(Engine):
    """Requests that join a batch and leave it, in pool slots that others had, with tokens that the host learns late."""

    orders = False

    def __init__(self, plugin, tree, overlap=0, mixed=False):
        self.sampler = plugin.SpecdecSampler()
        self.server = sglang_server.Server(
            [], sglang_server.TREES[tree], overlap, mixed, slots=PLACES, sampler=self.sampled
        )
        self.free, self.req, self.new, self.left = list(range(PLACES))[::-1], {}, [], []

    def sampled(self, logits, given, positions):
        if given.is_all_greedy:  # SGLang's own
            return logits.argmax(-1)
        output = types.SimpleNamespace(next_token_logits=logits)
        return self.sampler.forward(output, given, False, [], [], positions)

    def begun(self, wish):
        """A Req of the server."""
        req = sglang_stand_in.request(
            wish.frequency, wish.presence, wish.repetition, wish.more.get("least", 0), wish.more.get("stop", ()),
            [token % sglang_server.VOCAB for token in (*wish.prompt, 1, 2)],
        )  # fmt: skip
        greedy = wish.temperature == 0  # to SGLang that is top-k 1
        req.sampling = Sampling.sglang(wish.temperature or 1.0, 1 if greedy else wish.top_k, wish.top_p, wish.min_p)
        req.seed, req.told = wish.seed, 0
        self.server.enter(req)
        return req

    def admit(self, name, wish, said):
        req = self.req[name] = self.req.get(name) or self.begun(wish)
        req.kv.req_pool_idx = self.free.pop()
        self.new.append(req)

    def drop(self, name):
        req = self.req[name]
        self.left.append(req)
        self.free.append(req.kv.req_pool_idx)

    def step(self, names, counts):
        stepped = self.server.step(self.new, self.left)
        self.new, self.left = [], []
        found = {}
        for name, req in self.req.items():
            if req in stepped or req.told < len(req.output_ids):
                found[name] = list(req.output_ids[req.told :])
                req.told = len(req.output_ids)
        return found


class Llama(Engine):
    """Streams in turns over one pair of models, whose contexts are used again."""

    def __init__(self, models, method, **how):
        self.models, self.how, self.streams = models, {"method": method, **how}, {}

    def admit(self, name, wish, said):
        target, draft = self.models
        vocabulary = target.llama.n_vocab()
        self.streams[name] = stream(
            [[token % vocabulary for token in wish.prompt] + said], target, draft and LlamaDrafter(draft),
            seed=wish.seed, max_new_tokens=20, eos_token_ids=[], edits=TextEdits(repetition=wish.repetition),
            sampling=Sampling.llamacpp(wish.temperature, wish.top_k, wish.top_p, wish.min_p), **self.how,
        )  # fmt: skip

    def drop(self, name):
        self.streams.pop(name).close()

    def step(self, names, counts):
        return {name: next(self.streams[name]).tokens for name in names}


class Mlx(Engine):
    """Generators in turns over one pair of models."""

    def __init__(self, models, method):
        self.models, self.method, self.tokens = models, method, {}

    def admit(self, name, wish, said):
        vocabulary = len(self.models[0].table)
        self.tokens[name] = mlx_lm.generate_step(
            [token % vocabulary for token in wish.prompt] + said, *self.models, method=self.method, max_tokens=-1,
            num_draft_tokens=K, seed=wish.seed, sampling=Sampling(wish.temperature, wish.top_k, wish.top_p, wish.min_p),
        )  # fmt: skip

    def drop(self, name):
        self.tokens.pop(name).close()

    def step(self, names, counts):
        return {name: [next(self.tokens[name])[0]] for name in names}


class Transformers(Engine):
    """A call of ``model.generate`` for each step, with the texts that run then, padded on the left."""

    def __init__(self, target, draft, method, generate, **options):
        self.target, self.options, self.wish, self.text = target, options, {}, {}
        self.options |= {"custom_generate": generate, "assistant_model": draft, "method": method, "do_sample": True}

    def admit(self, name, wish, said):
        vocabulary = self.target.config.vocab_size
        self.wish[name], self.text[name] = wish, [token % vocabulary for token in wish.prompt] + said

    def drop(self, name):
        pass

    def step(self, names, counts):
        texts = [self.text[name] for name in names]
        width = max(map(len, texts))
        found = self.target.generate(
            input_ids=torch.tensor([[0] * (width - len(text)) + text for text in texts]), pad_token_id=0,
            attention_mask=torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts]),
            seed=[self.wish[name].seed for name in names], max_new_tokens=2, **self.options,
        )  # fmt: skip
        for name, row in zip(names, found[:, width:].tolist(), strict=True):
            self.text[name] += row
        return dict(zip(names, found[:, width:].tolist(), strict=True))

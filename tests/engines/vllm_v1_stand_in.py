"""What our plug-in uses of vLLM's V1 runner, in plain torch: a runner, its batch and its proposer of drafts.

The "hidden states" of the proposer's model are logits already. `whole_vllm.py` runs the plug-in in vLLM itself.
"""

import dataclasses
import itertools
import types
from typing import NamedTuple

import torch


class LogprobsTensors(NamedTuple):
    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor


class SamplerOutput(NamedTuple):
    sampled_token_ids: torch.Tensor
    logprobs_tensors: LogprobsTensors | None


def modules():
    """What to put into ``sys.modules``."""
    made = {name: types.ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.outputs")}
    vars(made["vllm.v1.outputs"]).update(LogprobsTensors=LogprobsTensors, SamplerOutput=SamplerOutput)
    return made


class MinPLogitsProcessor:
    pass


def state_of(kind, prompt, output):
    """What a runner keeps of a request: CachedRequestState, with its SamplingParams."""
    least, stops, grammar = kind.get("shortest", (0, set(), False))
    asked = types.SimpleNamespace(
        min_p=kind.get("min_p", 0.0), logit_bias=kind.get("bias"), min_tokens=least, all_stop_token_ids=stops,
        structured_outputs="a regex" if grammar else None, bad_words_token_ids=kind.get("bad"),
    )  # fmt: skip
    return {"sampling_params": asked, "num_prompt_tokens": len(prompt), "output_token_ids": output}


def metadata_of(kinds, prompts, outputs, drafts, vocabulary, num_logprobs=None):
    """The SamplingMetadata of requests; ``drafts`` and ``outputs`` are lists that go on growing.

    Prompts of other lengths are padded, with an id that is no token's, as in vLLM.
    """
    prompts = [prompt if isinstance(prompt, list) else [prompt] for prompt in prompts]
    width = max(map(len, prompts))
    states = [state_of(*of) for of in itertools.zip_longest(kinds, prompts, outputs, fillvalue=[])]
    prompts = [prompt + [vocabulary] * (width - len(prompt)) for prompt in prompts]

    def numbers(name, off):
        return torch.tensor(
            [kind.get(name, off) for kind in kinds], dtype=torch.float32 if isinstance(off, float) else None
        )

    def has(*names):
        return any(name in kind for kind in kinds for name in names)

    allowed = [kind.get("allowed", range(vocabulary)) for kind in kinds]
    forbidden = torch.ones(len(kinds), vocabulary, dtype=torch.bool)
    for row, tokens in zip(forbidden, allowed, strict=True):
        row[list(tokens)] = False
    temperature = numbers("temperature", 1.0)
    return types.SimpleNamespace(
        temperature=temperature, all_greedy=bool((temperature == 0).all()),
        top_k=numbers("top_k", vocabulary).int() if has("top_k") else None,
        top_p=numbers("top_p", 1.0) if has("top_p") else None,
        no_penalties=not has("repetition", "frequency", "presence"), prompt_token_ids=torch.tensor(prompts),
        repetition_penalties=numbers("repetition", 1.0), frequency_penalties=numbers("frequency", 0.0),
        presence_penalties=numbers("presence", 0.0), output_token_ids=outputs, spec_token_ids=drafts,
        allowed_token_ids_mask=forbidden if has("allowed") else None,
        bad_words_token_ids={i: kind["bad"] for i, kind in enumerate(kinds) if "bad" in kind},
        max_num_logprobs=num_logprobs, logprob_token_ids=None, thinking_budget_state_holder=None, states=states,
    )  # fmt: skip


class Sampler:
    def __init__(self, logprobs_mode):
        self.logprobs_mode = logprobs_mode

    def apply_logits_processors(self, logits, metadata, predict_bonus_token):
        logits[:, 3] = -torch.inf
        return logits


class RejectionSampler:
    def __init__(self, method):
        self.synthetic_mode, self.use_fly = method == "synthetic", method == "fly"

    def apply_logits_processors(self, logits, metadata, chains):
        logits[:, 3] = -torch.inf
        return logits


class Proposer:
    """Chains of K drafts, each from the row of a table that belongs to the token before it."""

    use_heterogeneous_vocab = use_local_argmax_reduction = False

    def __init__(self, table, probabilistic=True):
        self.table, self._enable_probabilistic_draft_probs, self.rows = table, probabilistic, None
        self.model = types.SimpleNamespace(compute_logits=lambda hidden_states: hidden_states.clone())

    def _greedy_sample(self, hidden_states):
        return self.model.compute_logits(hidden_states).argmax(-1)

    def _sample_draft_tokens(self, hidden_states, sampling_metadata):
        return self._greedy_sample(hidden_states), None

    def propose(self, num_speculative_tokens, next_token_ids, sampling_metadata, **_):
        last, drafts, rows = next_token_ids.long(), [], []
        for _ in range(num_speculative_tokens):
            last, row = self._sample_draft_tokens(self.table[last], sampling_metadata)
            drafts.append(last)
            rows.append(row)
        self.rows = torch.stack(rows, 1) if rows and rows[0] is not None else None
        return torch.stack(drafts, 1) if drafts else None


class Runner:
    """GPUModelRunner, for steps that a test makes."""

    is_pooling_model = use_async_scheduling = prompts = False
    unread = ()  # requests whose prompts have tokens left
    parallel_config = types.SimpleNamespace(tensor_parallel_size=1)

    def __init__(self, proposer=None, method="standard", logprobs_mode="raw_logprobs"):
        self.device, self.sampler, self.requests = torch.device("cpu"), Sampler(logprobs_mode), {}
        self.speculative_config, self.num_spec_tokens = None, 0
        self.input_batch = types.SimpleNamespace(
            generators={}, update_async_output_token_ids=lambda: None, logitsprocs=types.SimpleNamespace(all=[])
        )
        if proposer is not None:
            self.speculative_config = types.SimpleNamespace(method="draft_model", rejection_sample_method=method)
            self.drafter, self.rejection_sampler, self.num_spec_tokens = proposer, RejectionSampler(method), 3

    def _sample(self, logits, spec_decode_metadata):
        raise AssertionError("vLLM's own sampler was asked")

    def _get_spec_decode_draft_probs(self, chains):
        """Rows of the drafts that are verified, for requests that may have other places since they were drawn."""
        if self.drafter.rows is None:
            return None
        found = dict(zip(self.drafted_for, self.drafter.rows, strict=True))
        counts = zip(self.input_batch.req_ids, chains.num_draft_tokens, strict=True)
        return torch.cat([found[name][:count] for name, count in counts if count])

    def propose(self, tokens, ends, steps=3, rejected=None):
        """Drafts of the batch behind these tokens, which follow the positions before ``ends``."""
        self.drafted_for = self.input_batch.req_ids
        return self.drafter.propose(
            num_speculative_tokens=steps, next_token_ids=torch.tensor(tokens), num_rejected_tokens_gpu=rejected,
            common_attn_metadata=types.SimpleNamespace(seq_lens=torch.tensor(ends)),
            sampling_metadata=self.input_batch.sampling_metadata,
        )  # fmt: skip

    def batch(self, names, metadata):
        """What is sampled next; requests of which nothing is known have no generator."""
        batch = self.input_batch
        batch.req_ids, batch.num_reqs, batch.sampling_metadata = list(names), len(names), metadata
        for name, state in zip(names, metadata.states, strict=True):
            vars(self.requests.setdefault(name, types.SimpleNamespace(generator=None))).update(state)

    def step(self, logits, drafts, ends):
        """`_sample` of rows whose last input token is followed by the place ``ends``; drafts are lists."""
        counts = [len(row) for row in drafts]
        begins = torch.tensor([0, *counts]).cumsum(0)[:-1] + torch.arange(len(counts))
        chains = types.SimpleNamespace(
            num_draft_tokens=counts, draft_token_ids=torch.tensor([*itertools.chain(*drafts)], dtype=torch.int32),
            bonus_logits_indices=begins + torch.tensor(counts),
            target_logits_indices=torch.cat([b + torch.arange(n) for b, n in zip(begins, counts, strict=True)]),
            cu_num_draft_tokens=torch.tensor(counts).cumsum(0).int(), logits_indices=torch.arange(len(logits)),
            cu_num_sampled_tokens=(torch.tensor(counts) + 1).cumsum(0).int(),
        )  # fmt: skip
        self.seq_lens = torch.tensor(ends, dtype=torch.int32)
        self.positions = torch.cat([torch.arange(end - n - 1, end) for end, n in zip(ends, counts, strict=True)])
        self.query_start_loc = types.SimpleNamespace(np=[0, *chains.cu_num_sampled_tokens.tolist()])
        unread = torch.tensor([name in self.unread for name in self.input_batch.req_ids])
        self.discard_request_mask = types.SimpleNamespace(np=unread.numpy(), gpu=unread)
        if self.prompts:  # another request's prompt has tokens before these, and no rows
            chains.logits_indices, self.query_start_loc.np[-1] = chains.logits_indices + 5, len(logits) + 5
            self.positions = torch.cat([torch.arange(5) + 70, self.positions])
        return self._sample(logits, chains)


@dataclasses.dataclass
class GrammarOutput:
    grammar_bitmask: object


class Group:
    """A rank among those that share a vocabulary: GroupCoordinator, by a `Stage` of threads."""

    def __init__(self, stage, rank):
        self.stage, self.rank_in_group, self.world_size = stage, rank, stage.ranks
        self.device_group = self

    def all_gather(self, rows, dim):
        return torch.cat(tuple(self.stage.gather(self.rank_in_group, rows.contiguous())), dim)


class Head(torch.nn.Module):
    """LogitsProcessor, with its LM head: "hidden states" are logits, of which a rank has a slice of ``width``."""

    def __init__(self, group, vocabulary, width):
        super().__init__()
        self.group, self.vocabulary, self.width = group, vocabulary, width

    def _gather_logits(self, logits):
        return self.group.all_gather(logits, dim=-1)

    def forward(self, hidden_states):
        first = self.group.rank_in_group * self.width
        own = hidden_states[..., first : first + self.width].clone()
        own = torch.nn.functional.pad(own, (0, self.width - own.shape[-1]))
        return self._gather_logits(own)[..., : self.vocabulary]  # vLLM's own cut


class Model(torch.nn.Module):
    def __init__(self, *head):
        super().__init__()
        self.head = Head(*head)

    def compute_logits(self, hidden_states):
        return self.head(hidden_states)


def ranked(runner, *head):
    """The runner of one rank; ``head`` as `Head` has it."""
    group, vocabulary, _ = head
    runner.parallel_config = types.SimpleNamespace(tensor_parallel_size=group.world_size, pipeline_parallel_size=1)
    runner.model_config = types.SimpleNamespace(get_hidden_size=lambda: vocabulary, dtype=torch.float32)
    runner.model, runner.lora_config = Model(*head), None
    runner.sample_tokens = lambda grammar: grammar and grammar.grammar_bitmask
    runner._get_prompt_logprobs_dict = lambda hidden_states: runner.model.compute_logits(hidden_states)
    if runner.speculative_config is not None:
        runner.drafter.model, runner.drafter.hidden_size = Model(*head), vocabulary
    return runner

"""The parts of SGLang that our plug-in hooks into, no more of them than it uses, in plain torch.

What they do is what SGLang's documentation and code say they do; what they hold has SGLang's types, which
`engine_sglang.py` compares. `installed` puts them into ``sys.modules``.
"""

import os
import sys
import types
from array import array
from typing import ClassVar, NamedTuple

import torch

import specdec_kernels.engines

OURS = "_sglang", "_sglang_blocks", "_sglang_penalties", "_sglang_sharded"


class _SamplingMaskCapture(NamedTuple):
    weights: torch.Tensor
    token_ids: torch.Tensor | None
    selected_weight: torch.Tensor | None
    batch_rows: torch.Tensor


class Sampler(torch.nn.Module):
    def _preprocess_logits(self, logits, info):
        if info.has_custom_logit_processor:
            logits[:, 0] += 1  # the processor
        return logits

    def _sync_token_ids_across_tp(self, tokens, info):
        self.synced = tokens

    def forward(self, logits_output, info, return_logprob, top, ids, positions, **options):
        """As SGLang's: logits become probabilities in place, and the tokens' logprobs are kept."""
        logits = self._preprocess_logits(logits_output.next_token_logits, info)
        logits[:] = (logits / info.temperatures).softmax(-1)
        tokens, logits_output.capture = self._sample_from_probs(logits, info, positions, True)
        logits_output.next_token_logprobs = logits.log().gather(1, tokens[:, None])[:, 0]
        return tokens


class LogitsMetadata(NamedTuple):
    forward_mode: str
    extend_return_logprob: bool = False
    is_prefill_only: bool = False


class LogitsProcessor(torch.nn.Module):
    """Hidden states are whole rows here, of which a head has columns."""

    do_tensor_parallel_all_gather, final_logit_softcapping = True, None

    def __init__(self, vocab_size, gather):
        super().__init__()
        self.vocab_size, self._logits_gatherer, self._fused = vocab_size, gather, gather

    def _can_gather_softcap_fused(self, *given):
        return True

    def _get_logits(self, hidden_states, lm_head, logits_metadata, embedding_bias=None, use_logits_buffer=True):
        gather = self._fused if self._can_gather_softcap_fused() else self._logits_gatherer
        rows = lm_head.of(hidden_states)
        return (gather(rows) if self.do_tensor_parallel_all_gather else rows)[:, : self.vocab_size]


class Registry:
    hooks: ClassVar = {}

    @classmethod
    def register(cls, target, hook, kind):
        assert (hook, kind) not in cls.hooks.values()
        cls.hooks[f"{target} again" if target in cls.hooks else target] = hook, kind

    @classmethod
    def hook(cls, name):
        """That of the function whose path ends so."""
        (found,) = (hook for target, (hook, _) in cls.hooks.items() if target.endswith(f".{name}"))
        return found


class Penalizer:
    """One of SGLang's, which is released before it counts."""

    prepared = True

    def is_prepared(self):
        return self.prepared

    def teardown(self):
        self.prepared = False


PENALIZERS = [
    type(f"Batched{kind}Penalizer", (Penalizer,), {})
    for kind in ("Frequency", "MinNewTokens", "Presence", "Repetition")
]


class Orchestrator:
    def __init__(self, batch, penalizers=PENALIZERS):
        self.batch, self.is_required, self.penalizers = batch, True, {kind: kind() for kind in penalizers}


def request(frequency=0.0, presence=0.0, repetition=1.0, least=0, stop=(), prompt=()):
    """A Req."""
    numbers = dict(
        frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition, min_new_tokens=least,
        stop_token_ids=set(stop),
    )  # fmt: skip
    return types.SimpleNamespace(
        sampling_params=types.SimpleNamespace(**numbers), origin_input_ids=array("q", prompt), output_ids=array("q"),
        kv=types.SimpleNamespace(req_pool_idx=0), eos_token_ids=None,
        tokenizer=types.SimpleNamespace(eos_token_id=None, additional_stop_token_ids=None),
    )  # fmt: skip


def info(batch, seeds=None, **changed):
    """A SamplingBatchInfo."""
    given = dict(
        temperatures=torch.ones(batch, 1, dtype=torch.float32), top_ks=torch.full((batch,), 1 << 30, dtype=torch.int32),
        top_ps=torch.ones(batch, dtype=torch.float32), min_ps=torch.zeros(batch, dtype=torch.float32),
        is_all_greedy=False, need_top_k_sampling=False, need_top_p_sampling=False, need_min_p_sampling=False,
        penalizer_orchestrator=None, logit_bias=None, sampling_seed=torch.arange(batch) if seeds is None else seeds,
        has_watermark_candidates=False, sampling_mask_batch_indices=None, has_custom_logit_processor=False,
    )  # fmt: skip
    return types.SimpleNamespace(**given | changed)


def verify_input(tokens, tree, topk, draft_probs=None, depth=None):
    """An EagleVerifyInput of tokens [B, N]."""
    links = tree.to_sglang(len(tokens))
    return types.SimpleNamespace(
        draft_token=tokens.flatten(), draft_token_num=tokens.shape[1], max_tree_depth=depth or tree.depth + 1,
        tree_topk=topk, retrieve_index=links.retrive_index, retrieve_next_token=links.retrive_next_token,
        retrieve_next_sibling=links.retrive_next_sibling, draft_probs=draft_probs,
    )  # fmt: skip


class ScheduleBatch(types.SimpleNamespace):
    """Of which there can be weak references."""


def schedule_batch(sampling_info, lengths, slots, reqs, pool):
    """A ScheduleBatch on its way to verification."""
    return ScheduleBatch(
        device="cpu", forward_mode=types.SimpleNamespace(is_idle=lambda: False), seq_lens=lengths, reqs=reqs,
        sampling_info=sampling_info, req_pool_indices=slots, req_to_token_pool=pool,
    )  # fmt: skip


def attached(batch):
    """A batch whose forward has its requests' penalties."""
    scheduled = info(0, penalizer_orchestrator=Orchestrator(batch))
    Registry.hook("from_schedule_batch")(scheduled, None, batch, None)
    Registry.hook("copy_for_forward")(batch.sampling_info, scheduled)
    return batch


class Pool:
    """A ReqToTokenPool."""

    def __init__(self, slots):
        self.req_to_token = torch.zeros(slots, 1, dtype=torch.int32)


def speculative():
    """What ``get_spec`` gives."""
    return types.SimpleNamespace(
        speculative_accept_threshold_single=1.0, speculative_accept_threshold_acc=1.0,
        speculative_use_rejection_sampling=False, speculative_use_block_verification=False,
        enable_multi_layer_eagle=False, speculative_algorithm="EAGLE", speculative_eagle_topk=2,
    )  # fmt: skip


class DFlashWorkerV2:
    """Drafts are in rows that it is given; what is SGLang's own says so."""

    device, selector, lilicorr, _is_domino, _selector_sample = "cpu", None, None, False, None

    def _validate_phase1_sampling_support(self, batch):
        raise AssertionError("it warns of greedy verification")

    def _maybe_build_draft_sampler(self):
        return "captured"

    def _greedy_sample_from_vocab_parallel_head(self, *, hidden_states, lm_head, chunk_size=256):
        return (hidden_states @ lm_head.weight.T).argmax(-1)

    def _accept_block(
        self, *, candidates, next_token_logits, sampling_info, draft_input, prefix_lens, bs, target_predict=None
    ):
        return "theirs"


class DraftBlockResult(NamedTuple):
    draft_tokens: torch.Tensor
    corrected_logits: torch.Tensor | None
    greedy_mask: torch.Tensor
    temperatures: torch.Tensor
    greedy_draft: bool


class AcceptOuts(NamedTuple):
    correct_len: torch.Tensor
    bonus: torch.Tensor
    cap_trim_lens: torch.Tensor
    commit_lens: torch.Tensor
    new_seq_lens: torch.Tensor
    out_tokens: torch.Tensor


def _draft_step(
    markov_head, prev_tokens, base_logits, *, hidden_states, state, temperatures, noise, step, logits_out
):  # fmt: skip
    bias, state = markov_head.step_bias(prev_tokens, hidden_states=hidden_states, state=state)
    logits = base_logits + bias
    if logits_out is None:
        return logits.argmax(-1), state
    logits_out.copy_(logits)
    return torch.multinomial((logits / temperatures[:, None]).softmax(-1), 1, generator=noise)[:, 0], state


class DSparkWorkerV2:
    """A round: drafts of rows [B, K, V], each with what the token before adds, and the verification of theirs."""

    _hosts_draft, device, _simulated_correct_len, _sampling_accept_graph = True, "cpu", None, "captured"

    def __init__(self, bias, layout=None):
        step_bias = lambda tokens, hidden_states, state: (bias[tokens], state)  # noqa: E731
        self.draft_model = types.SimpleNamespace(
            markov_head=types.SimpleNamespace(vocab_shard=None, step_bias=step_bias)
        )
        self._proposer = types.SimpleNamespace(_noise=torch.Generator().manual_seed(3), _greedy_draft=False)
        self._verify_executor = types.SimpleNamespace(accept_and_finalize=lambda **given: "theirs")
        self._greedy_draft, self.layout = False, layout

    def _forward_decode(self, batch, on_publish, base_logits, last, target):
        size, steps, vocab = base_logits.shape
        temperatures = batch.sampling_info.temperatures[:, 0]
        rows = None if self._proposer._greedy_draft else torch.empty(size, steps, vocab)
        tokens = [last]
        for step in range(steps):
            tokens.append(sys.modules["sglang.srt.speculative.dspark_components.dspark_draft"]._draft_step(
                self.draft_model.markov_head, tokens[-1], base_logits[:, step], hidden_states=None, state=None,
                temperatures=temperatures, noise=self._proposer._noise, step=step,
                logits_out=None if rows is None else rows[:, step],
            )[0])  # fmt: skip
        tokens = torch.stack(tokens, 1)
        greedy = torch.zeros(size, dtype=torch.bool)
        block = DraftBlockResult(tokens[:, 1:], rows, greedy, temperatures, rows is None)
        return tokens, self._verify_executor.accept_and_finalize(
            folded_accept=False, bs=size, verify_ids_2d=tokens, target_logits=target(tokens).flatten(0, 1),
            draft_block=block, sampling_info=batch.sampling_info, draft_input=None, layout=self.layout,
            prefix_lens=batch.seq_lens, draft_tokens=tokens[:, 1:], simulate_bonus_sampling_info=None,
        )  # fmt: skip


def installed(monkeypatch):
    """Generator of what tests turn: SGLang's options, its backends of sampling, its group of ranks."""
    options = speculative()
    backends, group = {}, types.SimpleNamespace(world_size=1, rank=0)
    lora = types.SimpleNamespace(enable_lora=False)
    contents = {
        "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": lambda: False},
        "sglang.srt.layers.logits_processor": {
            "ForwardMode": types.SimpleNamespace(DECODE="decode"), "LogitsMetadata": LogitsMetadata,
            "LogitsProcessor": LogitsProcessor,
        },
        "sglang.srt.layers.sampler": {
            "Sampler": Sampler, "_SamplingMaskCapture": _SamplingMaskCapture,
            "register_sampler_backend": backends.__setitem__,
        },
        "sglang.srt.runtime_context": {
            "get_parallel": lambda: types.SimpleNamespace(tp_group=group, tp_rank=group.rank, tp_size=group.world_size),
            "get_lora": lambda: lora, "get_spec": lambda: options,
        },
        "sglang.srt.speculative.dflash_utils": {"is_dense_head_weight": lambda weight: weight is not None},
        "sglang.srt.speculative.dspark_components.dspark_draft": {"_draft_step": _draft_step},
        "sglang.srt.speculative.dspark_components.dspark_verify": {"AcceptOuts": AcceptOuts},
        "sglang.srt.speculative.eagle_utils": {"get_spec": lambda: options},
        "sglang.srt.speculative.spec_utils": {"SIMULATE_ACC_LEN": 0},
        "sglang.srt.utils.async_probe": {"sanitize_nan_logits": lambda logits, where: None},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": Registry,
            "HookType": types.SimpleNamespace(REPLACE="replace", AFTER="after", AROUND="around", BEFORE="before"),
        },
    }  # fmt: skip
    place(monkeypatch, contents)
    forget()
    monkeypatch.delenv("SPECDEC_SGLANG", raising=False)
    Registry.hooks = {}
    yield types.SimpleNamespace(options=options, backends=backends, group=group, lora=lora)
    os.environ.pop("SPECDEC_SGLANG", None)
    forget()


def place(monkeypatch, contents):
    """Modules by their names, with these parts."""
    for name, parts in contents.items():
        path = ""
        for part in name.split("."):
            above, path = path, f"{path}.{part}".strip(".")
            if path not in sys.modules or above == "":
                monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
            if above:
                monkeypatch.setattr(sys.modules[above], part, sys.modules[path], raising=False)
        vars(sys.modules[name]).update(parts)


def forget():
    """Our modules that imported these."""
    for name in OURS:
        sys.modules.pop(f"specdec_kernels.engines.{name}", None)
        vars(specdec_kernels.engines).pop(name, None)

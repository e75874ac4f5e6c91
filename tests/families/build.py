"""Tiny random models of every causal family that the installed transformers has, built from its config class.

A family's config is made by a generic rule: each field whose name is in `SIZES` gets that value, and where the defaults
give kinds of layers, the model has one layer of each kind. `SPECIAL` has what else a family needs.
"""

from __future__ import annotations

import dataclasses
import functools
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specdec_kernels.generate.models import quiet

NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCAB, WINDOW, CHUNK, INDEX, LONGEST = 64, 8, 16, 6, 256
HIDDEN, HEADS, KV_HEADS, HEAD = 32, 4, 2, 8


def each(value: Any, names: str) -> dict[str, Any]:
    """The same value for all of these names of fields."""
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **each(VOCAB, "vocab_size vocab_size_per_layer_input"),
    **each(0, "pad_token_id num_kv_shared_layers"), **each(1, "bos_token_id decoder_start_token_id"),
    **each(2, "eos_token_id"),
    **each(LONGEST, """max_position_embeddings n_positions max_seq_len max_target_positions context_length n_ctx"""),
    **each(HIDDEN, """hidden_size n_embd d_model emb_dim embedding_dim intermediate_size moe_intermediate_size n_inner
        embedding_size ffn_dim decoder_ffn_dim encoder_ffn_dim
        ffn_hidden_size expert_ffn_hidden_size dense_intermediate_size intermediate_size_mlp
        shared_expert_intermediate_size shared_intermediate_size shared_experts_intermediate_size
        moe_shared_expert_intermediate_size dff dim_ff d_inner mamba_d_ssm lru_width word_embed_proj_dim
        input_embedding_size output_embedding_size hidden_size_global attention_hidden_size
        cross_attention_hidden_size"""),
    **each(HEADS, """num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads
        encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads linear_num_value_heads
        linear_num_heads swa_num_attention_heads mamba_n_heads mamba_num_heads n_mamba_heads"""),
    **each(KV_HEADS, "num_key_value_heads num_kv_heads linear_num_key_heads swa_num_key_value_heads"),
    **each(HEAD, """head_dim d_head dim_head linear_key_head_dim linear_value_head_dim linear_head_dim v_head_dim
        qk_nope_head_dim qk_rope_head_dim kv_channels swa_head_dim mamba_head_dim mamba_d_head mamba_d_state
        ssm_state_size state_size chunk_size mamba_chunk_size block_size attention_head_dim attention_head_size
        query_pre_attn_scalar global_head_dim index_head_dim"""),
    **each(2, """num_hidden_layers n_layer n_layers num_layers num_blocks encoder_layers decoder_layers
        num_encoder_layers num_decoder_layers num_layers_per_stack
        num_experts_per_tok moe_topk moe_k top_k n_groups"""),
    **each(4, "num_experts n_routed_experts num_local_experts moe_num_experts rotary_dim"),
    **each(1, """n_group topk_group n_shared_experts moe_num_shared_experts num_shared_experts first_k_dense_replace
        mamba_n_groups mamba_ngroups expand mamba_expand pretraining_tp max_window_layers"""),
    **each(16, """kv_lora_rank q_lora_rank o_lora_rank hc_lowrank mamba_dt_rank time_step_rank adapter_rank
        router_hidden_size laurel_rank hidden_size_per_layer_input index_n_heads"""),
    **each(WINDOW, """sliding_window sliding_window_size window_size local_attention attention_window_size
        keep_window_size"""),
    **each(CHUNK, "attention_chunk_size"), **each(INDEX, "index_topk"), **each(True, "use_sliding_window"),
    **each(1e-30, "time_step_min"),  # a limit where several tokens are read, and not where one is
}  # fmt: skip
KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")
"""Fields with an entry for each layer."""

DEFAULT = object()
"""In `SPECIAL`: leave a field to its class."""
MIXED = ["linear_attention", "full_attention"]
COMPASS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
    },
}  # fmt: skip
QWEN4 = {
    "layer_types": ["linear_attention", "indexed_attention"], "num_hidden_layers": 2, "indexer_n_heads": 16,
    "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 4, "indexer_compress_ratio": 2,
    "ple_layer_ids": [1], "ple_embed_dim": 16, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 2, "hc_lowrank": 8, "head_dim": 16,
}  # fmt: skip
ASSISTANT = each(0, "hidden_size_per_layer_input vocab_size_per_layer_input") | {"num_kv_shared_layers": 2}
DOTS3 = {  # of layers with windows, which its class takes beside its fields
    **each(HEADS, "swa_num_attention_heads swa_num_key_value_heads"), **each(16, "swa_q_lora_rank swa_kv_lora_rank"),
    **each(HEAD, "swa_qk_nope_head_dim swa_qk_rope_head_dim swa_v_head_dim"),
    "swa_head_dim": 2 * HEAD,
}  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": COMPASS,
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": KV_HEADS, "clip_qkv": 8}},  # as checkpoints have it
    "dots3_note_text": DOTS3,
    "dots3_note": {
        "text_config": DOTS3,
        "vision_config": {"adapter_in_dim": HIDDEN, "adapter_out_dim": HIDDEN},
        "audio_config": {"adapter_input_size": HIDDEN, "adapter_out_dim": HIDDEN},
    },
    "gemma4_assistant": {"text_config": ASSISTANT | {"model_type": "gemma4_text"}},
    "gemma4_unified_assistant": {"text_config": ASSISTANT | {"model_type": "gemma4_unified_text"}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": MIXED},
    "hrm_text": {"num_layers_per_stack": DEFAULT, "num_hidden_layers": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "moshi": {"audio_vocab_size": 16, "audio_encoder_config": {"model_type": "mimi"}, "sliding_window": LONGEST},
    "qwen4_exp": {"text_config": QWEN4}, "qwen4_exp_text": QWEN4,
    "reformer": {"is_decoder": True, "attn_layers": ["local", "local"], "axial_pos_embds": False},
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 8, "attention_hidden_size": 2 * HIDDEN, "attention_head_dim": 2 * HEAD,
              "layers_block_type": DEFAULT},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"]},
    "xlstm": {"chunk_size": 16, "mode": "inference", "hidden_size": 128, "embedding_dim": 128},
    **{name: {"is_decoder": True} for name in (
        "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
        "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
    )},
}  # fmt: skip
SPECIAL["xmod"]["is_decoder"] = True
"""By family, fields in the place of what the generic rule gives."""


def entries_of(config: PreTrainedConfig, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """What the fields with an entry for each layer have, as many as there are layers with other entries."""
    lists = {name: list(config.__dict__[name]) for name in names if config.__dict__.get(name)}
    if not lists:
        return {}
    rows = list(dict.fromkeys(zip(*lists.values(), strict=False)))
    rows = rows if len(rows) > 1 else rows * 2
    return {name: [row[at] for row in rows] for at, name in enumerate(lists)}


def small(kind: type[PreTrainedConfig], special: dict[str, Any]) -> PreTrainedConfig:
    """A config of this class with small sizes."""
    fields = {field.name for field in dataclasses.fields(kind)}
    given = {name: size for name, size in SIZES.items() if name in fields}
    with quiet():
        try:
            default = kind()
        except Exception:  # some have no defaults that pass their own checks
            default = None
        if "kv_lora_rank" in fields:  # latent attention has keys for each head
            given["num_key_value_heads"] = HEADS
        if default is not None:
            entries = entries_of(default, tuple(name for name in KINDS if name not in special))
            if set(entries.get("layer_types", ())) == {"full_attention"} and "sliding_window" in fields:
                entries["layer_types"][1::2] = ["sliding_attention"] * (len(entries["layer_types"]) // 2)
            given |= entries
            if entries:
                count = len(next(iter(entries.values())))
                given |= {name: count for name in ("num_hidden_layers",) if name in fields}
        names = getattr(kind, "sub_configs", {}).keys() | {name for name in special if name.endswith("_config")}
        parts = {name: getattr(default, name, None) for name in names & fields}
        for name, part in parts.items():
            more = special.get(name, {})
            if isinstance(part, PreTrainedConfig) or "model_type" in more:
                given[name] = small(CONFIG_MAPPING[more["model_type"]] if part is None else type(part), more).to_dict()
        given |= {
            name: value for name, value in special.items() if name not in given or not isinstance(given[name], dict)
        }
        return kind(**{name: value for name, value in given.items() if value is not DEFAULT})


@functools.cache
def model_of(name: str, seed: int = 1) -> PreTrainedModel:
    """The random model of a family, in float64."""
    return random_model(small(CONFIG_MAPPING[name], SPECIAL.get(name, {})), seed)


def random_model(config: PreTrainedConfig, seed: int = 1) -> PreTrainedModel:
    """A model with random weights, which computes in float64."""
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(seed)
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        decoder = [part for part in vars(config).values() if type(part) is kind.config_class]  # of MusicGen
        model = (kind._from_config(decoder[0]) if decoder else AutoModelForCausalLM.from_config(config)).double().eval()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # for float64
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim < 2:  # norms and biases, some of them 0, near what they are
                parameter.data += 0.1 * noise
            else:
                parameter.data = noise * (0.5 if "lm_head" in name or "embed" in name or "wte" in name else 0.3)
    model.forward = in_float64(model.forward)
    return model


def in_float64(forward: Any) -> Any:
    """A forward that computes in float64 throughout, so that forwards of any shape give the same logits."""

    @functools.wraps(forward)
    def called(*arguments: Any, **options: Any) -> Any:
        with ExitStack() as stack:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
            for owner, name, wider in (
                (torch, "float32", torch.float64), (torch, "float", torch.float64),
                (torch.Tensor, "float", torch.Tensor.double),
            ):  # fmt: skip
                stack.enter_context(patch.object(owner, name, wider))
            return forward(*arguments, **options)

    return called

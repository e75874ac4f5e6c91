#!/bin/sh
# One would guess that a sampled text of OpenVINO GenAI has the target's law with a draft model as without. Its page on speculative
# decoding says that the output distribution does not change, and with top_k=1 there is one token to sample: the greedy one.
#
# What happens: with do_sample and a draft model the text follows the draft. With top_k=1 each of 20 texts differs from the greedy
# one after its first token, where the same settings without drafts, and with prompt lookup, write the greedy text. The draft model
# has other weights than the target and agrees with it rarely; greedy texts with it are the target's.
#
# Seen on 2026-11-30, openvino-genai 2026.4.1.0, openvino 2026.4.1 on x86-64; two Llamas of 64 tokens with random weights:
#   of 20 texts of 16 tokens, other than the greedy one: without drafts 0, prompt lookup 0, draft model 20; greedy, draft model 0
#
# What to do: with a draft model take do_sample=False only; where texts are sampled, take prompt lookup, or no drafts.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0
"$folder/venv/bin/pip" install -q transformers==5.5.4 optimum==2.3.0 nncf==3.4.0 requests==2.32.5 setuptools==80.9.0 \
    openvino==2026.4.1 openvino-tokenizers==2026.4.1.0 "openvino-genai==${1:-2026.4.1.0}"
"$folder/venv/bin/pip" install -q --no-deps optimum-intel==2.2.0  # without torchvision, which the export of a Llama does not need
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy
import openvino
import openvino_genai as genai
import torch
from optimum.exporters.openvino import main_export
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

V, EXACT = 64, {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def export(name, seed):
    """A Llama of random weights, with a head that makes its argmaxes clear."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=V, max_position_embeddings=512, **sizes)).eval()
    model.lm_head.weight.data.mul_(60)
    model.save_pretrained(f"hf_{name}")
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(V)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(f"hf_{name}")
    main_export(f"hf_{name}", f"ov_{name}", task="text-generation-with-past", convert_tokenizer=True)


def text(pipe, prompt, **settings):
    config = genai.GenerationConfig(max_new_tokens=16, ignore_eos=True, **settings)
    ids = openvino.Tensor(numpy.array([prompt]))
    mask = openvino.Tensor(numpy.ones((1, len(prompt)), numpy.int64))
    return list(pipe.generate(genai.TokenizedInputs(ids, mask), config).tokens[0])


export("target", 1)
export("draft", 2)
plain = genai.LLMPipeline("ov_target", "CPU", **EXACT)
lookup = genai.LLMPipeline("ov_target", "CPU", prompt_lookup=True, **EXACT)
drafts = genai.LLMPipeline("ov_target", "CPU", draft_model=genai.draft_model("ov_draft", "CPU", **EXACT), **EXACT)
NGRAMS, MODEL = {"num_assistant_tokens": 4, "max_ngram_size": 2}, {"num_assistant_tokens": 4}
ONE = {"do_sample": True, "temperature": 1.0, "top_k": 1}
differ = {"without drafts": 0, "prompt lookup": 0, "draft model": 0, "greedy, draft model": 0}
for seed in range(20):
    prompt = numpy.random.default_rng(seed).integers(4, V, 12).tolist()
    greedy = text(plain, prompt)
    differ["without drafts"] += text(plain, prompt, **ONE) != greedy
    differ["prompt lookup"] += text(lookup, prompt, **ONE, **NGRAMS) != greedy
    differ["draft model"] += text(drafts, prompt, **ONE, **MODEL) != greedy
    differ["greedy, draft model"] += text(drafts, prompt, **MODEL) != greedy
print(*(f"{name} {version(name)}" for name in ("openvino-genai", "openvino", "torch")))
print("of 20 texts of 16 tokens, other than the greedy one:", ", ".join(f"{name} {n}" for name, n in differ.items()))
raise SystemExit(differ != {"without drafts": 0, "prompt lookup": 0, "draft model": 20, "greedy, draft model": 0})
PY

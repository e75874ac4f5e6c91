#!/bin/sh
# One would guess that min_new_tokens=10 means ten tokens in OpenVINO GenAI with drafts as without: prompt lookup and a draft model
# change how fast a greedy text is written, not what it is.
#
# What happens: with prompt lookup a text may end before its tenth token. Of 40 prompts five give texts of 4 to 8 tokens; the others
# are as without drafts, but one. A draft model does the same. Repetition, presence and frequency penalties, stop strings and stop
# tokens gave equal texts.
#
# Seen on 2026-11-30, openvino-genai 2026.4.1.0, openvino 2026.4.1 on x86-64; a Llama of 64 tokens with random weights, 40 prompts:
#   min_new_tokens=0: shorter without drafts 0, by prompt lookup 0 (of [] tokens); texts that differ 0
#   min_new_tokens=10: shorter without drafts 0, by prompt lookup 5 (of [4, 5, 5, 6, 8] tokens); texts that differ 6
#
# What to do: where a shortest length is promised, take no drafts, or look at the length and write the rest by a second call.
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

V, END, EXACT = 64, 1, {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
torch.manual_seed(1)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=V, max_position_embeddings=512, eos_token_id=END, **sizes)).eval()
model.lm_head.weight.data.mul_(60)
model.save_pretrained("hf")
tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(V)}, unk_token="t0"))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0", eos_token="t1").save_pretrained("hf")
main_export("hf", "ov", task="text-generation-with-past", convert_tokenizer=True)
plain = genai.LLMPipeline("ov", "CPU", **EXACT)
lookup = genai.LLMPipeline("ov", "CPU", prompt_lookup=True, **EXACT)


def text(pipe, prompt, shortest, **settings):
    config = genai.GenerationConfig(max_new_tokens=40, min_new_tokens=shortest, eos_token_id=END, **settings)
    ids = openvino.Tensor(numpy.array([prompt]))
    mask = openvino.Tensor(numpy.ones((1, len(prompt)), numpy.int64))
    return list(pipe.generate(genai.TokenizedInputs(ids, mask), config).tokens[0])


print(*(f"{name} {version(name)}" for name in ("openvino-genai", "openvino", "torch")))
seen = {}
for shortest in (0, 10):
    texts = []
    for seed in range(40):
        prompt = numpy.random.default_rng(seed).integers(4, V, 12).tolist()
        given = {"num_assistant_tokens": 4, "max_ngram_size": 2}
        texts.append((text(plain, prompt, shortest), text(lookup, prompt, shortest, **given)))
    short = sorted(len(b) for a, b in texts if len(b) < shortest)
    differ = sum(a != b for a, b in texts)
    seen[shortest] = sum(len(a) < shortest for a, b in texts), len(short), differ
    count = f"shorter without drafts {seen[shortest][0]}, by prompt lookup {len(short)} (of {short} tokens)"
    print(f"min_new_tokens={shortest}: {count}; texts that differ {differ}")
raise SystemExit(not (seen[0] == (0, 0, 0) and seen[10][0] == 0 and seen[10][1] > 0))
PY

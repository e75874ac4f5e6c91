#!/bin/sh
# One would guess that each of num_hypotheses sampled texts of CTranslate2 follows the model's law, the first as the last, as
# transformers' num_return_sequences and vLLM's n have it.
#
# What happens: the texts are sorted by their scores, mean log-probabilities at temperature 1, without a word of it in the
# argument's description. Each draw is fair, and the list as a whole is, but sequences_ids[0] is the likeliest of n draws: of four, a
# token of probability 0.4 is first in 87 % and one of 0.005 never. A law counted by the first text, or a draft taken from it, is
# another one than with num_hypotheses=1.
#
# Seen on 2026-11-30, ctranslate2 4.8.5 on x86-64, 4,000 prompts, a model with one law of eight tokens:
#   law                      0.400 0.250 0.150 0.100 0.050 0.030 0.015 0.005
#   num_hypotheses=1         0.400 0.258 0.145 0.098 0.046 0.032 0.015 0.006
#   first of four            0.871 0.118 0.010 0.001 0.000 0.000 0.000 0.000
#   last of four             0.026 0.159 0.227 0.243 0.165 0.105 0.057 0.018
#   a random one of four     0.392 0.260 0.152 0.094 0.055 0.029 0.012 0.005
#   all four                 0.397 0.254 0.150 0.098 0.053 0.029 0.015 0.005
#
# What to do: shuffle the texts, or take a random one of them, or give each prompt n times with num_hypotheses=1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6 "ctranslate2==${1:-4.8.5}"
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import random

import ctranslate2
import numpy
from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec

LAW, WIDTH, PROMPTS = numpy.array([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005]), 8, 4000
V = len(LAW)


def zeros(*shape):
    return numpy.zeros(shape, numpy.float32)


def set_linear(linear, rows, bias=None):
    linear.weight, linear.bias = zeros(rows, WIDTH), zeros(rows) if bias is None else bias


spec = TransformerDecoderModelSpec.from_config(num_layers=1, num_heads=1)
decoder, layer = spec.decoder, spec.decoder.layer[0]
decoder.scale_embeddings = False
decoder.embeddings.weight, decoder.position_encodings.encodings = zeros(V, WIDTH), zeros(64, WIDTH)
for norm in (decoder.layer_norm, layer.self_attention.layer_norm, layer.ffn.layer_norm):
    norm.gamma, norm.beta = zeros(WIDTH), zeros(WIDTH)
set_linear(layer.self_attention.linear[0], 3 * WIDTH)
for linear in (layer.self_attention.linear[1], layer.ffn.linear_0, layer.ffn.linear_1):
    set_linear(linear, WIDTH)
set_linear(decoder.projection, V, numpy.log(LAW).astype(numpy.float32))  # each step's logits are the bias
spec.register_vocabulary([f"t{i}" for i in range(V)])
spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = "t0", "t0", f"t{V - 1}"
spec.validate()
spec.optimize()
spec.save(".")
generator = ctranslate2.Generator(".", device="cpu", intra_threads=1)
ctranslate2.set_random_seed(1)
random.seed(1)


def drawn(n):
    """The tokens of n texts of one token each, of all prompts; a text that ended at once has the last token."""
    options = {"max_length": 1, "include_prompt_in_result": False, "sampling_topk": 0, "num_hypotheses": n}
    results = generator.generate_batch([["t1"]] * PROMPTS, **options)
    return [[text[0] if text else V - 1 for text in result.sequences_ids] for result in results]


def shares(tokens):
    counts = numpy.bincount(tokens, minlength=V)
    return counts / counts.sum()


four = drawn(4)
rows = {
    "law": LAW,
    "num_hypotheses=1": shares([texts[0] for texts in drawn(1)]),
    "first of four": shares([texts[0] for texts in four]),
    "last of four": shares([texts[3] for texts in four]),
    "a random one of four": shares([random.choice(texts) for texts in four]),
    "all four": shares([token for texts in four for token in texts]),
}
print("ctranslate2", ctranslate2.__version__, "numpy", numpy.__version__)
for name, row in rows.items():
    print(f"{name:24} {' '.join(f'{share:.3f}' for share in row)}")
fair = [abs(rows[name] - LAW).max() < 0.04 for name in ("num_hypotheses=1", "a random one of four", "all four")]
raise SystemExit(not (all(fair) and rows["first of four"][0] > 0.8 and rows["last of four"][0] < 0.1))
PY

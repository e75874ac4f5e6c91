#!/bin/sh
# One would guess that mlx-lm's greedy text is the same with a draft model as without, whatever logits_processors are given: drafts
# are accepted where they are what the target writes.
#
# What happens: without drafts the processors see the prompt and what was written. With a draft model they see the last token
# of the prompt and what was written: the tokens that the prefill reads are not handed to them. So a repetition, presence or
# frequency penalty does not count the prompt, and a processor that takes tokens[n:] as the new ones, with n the prompt's
# length, takes too few. Neither raises an error. With the target as its own draft it is the same.
#
# Seen on 2026-11-29, mlx-lm 0.32.2, mlx 0.32.4 on x86-64, prompt 3 1 4 1 5 9 2 6, presence_penalty 1, random Llamas:
#   no drafts: the first call sees 8 tokens; it writes 17 7 17 8 8 8 18 18 8 13
#   drafts: the first call sees 1 token; it writes 17 7 17 8 9 8 18 13 8 5
#   no penalty: the same text with drafts and without: True
#
# What to do: hand over processors that put prompt[:-1] before the tokens that they are given, as the function below does where
# it has a prefix. Then the text with drafts is the one without:
#   drafts, prompt before the tokens: the first call sees 8 tokens; it writes 17 7 17 8 8 8 18 18 8 13
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "mlx[cpu]==0.32.4" transformers==5.23.0
"$folder/venv/bin/pip" install -q "mlx-lm==${1:-0.32.2}"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_logits_processors

mx.set_default_device(mx.cpu)
PROMPT = mx.array([3, 1, 4, 1, 5, 9, 2, 6])
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 20}


def model(seed):
    mx.random.seed(seed)
    made = Model(ModelArgs("llama", **SIZES, rms_norm_eps=1e-5, tie_word_embeddings=False))
    made.update(tree_map(lambda weight: 3 * weight, made.parameters()))
    return made


target, draft = model(0), model(50)


def written(drafts, penalties, prefix=()):
    """The text, and how many tokens the first call of a processor sees."""
    lengths = []

    def processor(tokens, logits):
        tokens = mx.concatenate([mx.array(prefix, tokens.dtype), tokens])
        lengths.append(len(tokens))
        for penalty in penalties:
            logits = penalty(tokens, logits)
        return logits

    options = {"max_tokens": 10, "logits_processors": [processor]}
    rounds = speculative_generate_step(PROMPT, target, draft, **options) if drafts else generate_step(PROMPT, target, **options)
    return " ".join(str(int(step[0])) for step in rounds), lengths[0]


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
penalties = make_logits_processors(presence_penalty=1.0)
alone, drafted = written(False, penalties), written(True, penalties)
print(f"no drafts: the first call sees {alone[1]} tokens; it writes {alone[0]}")
print(f"drafts: the first call sees {drafted[1]} token; it writes {drafted[0]}")
same = written(False, [])[0] == written(True, [])[0]
print(f"no penalty: the same text with drafts and without: {same}")
whole = written(True, penalties, PROMPT[:-1].tolist())
print(f"drafts, prompt before the tokens: the first call sees {whole[1]} tokens; it writes {whole[0]}")
raise SystemExit(0 if alone[1] == 8 and drafted[1] == 1 and alone[0] != drafted[0] and same and whole == alone else 1)
PY

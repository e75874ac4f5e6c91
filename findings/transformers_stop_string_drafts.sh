#!/bin/sh
# One would guess that greedy generate with prompt_lookup_num_tokens or an assistant ends where greedy generate alone ends, or a
# few accepted drafts later, when stop_strings are given.
#
# What happens: a stop string that ends in the middle of a round's accepted tokens is not seen, then or ever. The criterion looks
# whether the text's last token completes the stop string, once a round, and the next round begins behind it. The text goes on to
# max_new_tokens, or until a stop string happens to end at a round's last token. An EOS token and the length are looked for in
# the middle of a round, too, so these end a text where they should. Better drafts make it worse: a round of K accepted drafts
# sees one token of K + 1. A StopStringCriteria handed over with an assistant does the same (stop_strings is refused there).
#
# Seen on 2026-11-29, transformers 5.23.0, torch 2.13.0 on x86-64, a model that writes the alphabet, prompt a ... p a b c:
#   no drafts: stop string g ends defg; EOS token g ends defg
#   prompt lookup: stop string g ends defghijklmnopabcdefghijk; EOS token g ends defg
#   assistant: stop string g ends defghijklmnopabcdefghijk; EOS token g ends defg
#   prompt lookup, a criterion that searches the whole new text, cut: defg
#
# What to do: hand over a StoppingCriteria that searches the whole new text, as the one below, and cut the text behind the stop
# string.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q "transformers==${1:-5.23.0}"
"$folder/venv/bin/python" - <<'PY'
import copy

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, StoppingCriteria, StopStringCriteria

LETTERS, PROMPT, STOP = "abcdefghijklmnop", "abcdefghijklmnopabc", "g"
SIZE = len(LETTERS)
rules = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="a"))
rules.pre_tokenizer = pre_tokenizers.Split("", "isolated")
rules.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules)
prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
torch.set_num_threads(1)
sizes = {"vocab_size": SIZE, "hidden_size": SIZE, "intermediate_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None)).eval()
with torch.no_grad():
    # Its layer adds nothing, and its head gives each letter the next one: p is followed by a.
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
    model.lm_head.weight.copy_(torch.eye(SIZE).roll(1, 0))


class WholeText(StoppingCriteria):
    def __call__(self, tokens, scores, **others):
        texts = tokenizer.batch_decode(tokens[:, prompt.shape[1] :])
        return torch.tensor([STOP in text for text in texts])


def written(**options):
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=24, **options)
    return tokenizer.decode(tokens[0, prompt.shape[1] :])


print("transformers", transformers.__version__, "torch", torch.__version__)
seen = []
by_name = {"stop_strings": [STOP], "tokenizer": tokenizer}
by_criterion = {"stopping_criteria": [StopStringCriteria(tokenizer, [STOP])]}
ways = {"no drafts": ({}, by_name), "prompt lookup": ({"prompt_lookup_num_tokens": 5}, by_name)}
ways["assistant"] = ({"assistant_model": copy.deepcopy(model)}, by_criterion)
for way, (drafts, stop) in ways.items():
    seen.append((written(**drafts, **stop), written(**drafts, eos_token_id=LETTERS.index(STOP))))
    print(f"{way}: stop string {STOP} ends {seen[-1][0]}; EOS token {STOP} ends {seen[-1][1]}")
whole = written(prompt_lookup_num_tokens=5, stopping_criteria=[WholeText()])
cut = whole[: whole.index(STOP) + 1]
print(f"prompt lookup, a criterion that searches the whole new text, cut: {cut}")
(alone, _), *others = seen
missed = all(STOP in text[:-1] and len(text) == 24 for text, _ in others)
raise SystemExit(0 if missed and {alone, cut, *(text for _, text in seen)} == {"defg"} else 1)
PY

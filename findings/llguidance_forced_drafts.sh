#!/bin/sh
# One would guess that a draft which LLMatcher.validate_tokens counts as valid is one that the mask allows: both tell which
# tokens may come next.
#
# What happens: where the grammar leaves one text, the mask allows the tokenizer's own spelling of it alone, but
# validate_tokens, try_consume_tokens and the masks for drafts go by the text. So an engine that cuts drafts by validate_tokens
# hands on drafts of probability 0, and rows below them are written as if they could be accepted. xgrammar allows both
# spellings, so one grammar has two laws.
#
# Seen on 2026-11-29, llguidance 1.9.1 and xgrammar 0.2.8 on x86-64, grammar abc, tokens a, b, c, ab and a stop token:
#   llguidance allows ab; of the drafts a b c it counts 3 as valid, and writes 4 rows for them
#   xgrammar allows a ab
#
# What to do: cut drafts by the rows themselves; or begin a Lark grammar with %llguidance { "no_forcing": true }.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q llguidance==1.9.1 xgrammar==0.2.8
"$folder/venv/bin/python" - <<'PY'
import llguidance
import torch
import xgrammar
from llguidance.torch import fill_next_token_bitmask, fill_next_token_bitmask_par_with_draft_tokens

WORDS = ["a", "b", "c", "ab", "stop"]


class Tokenizer:
    eos_token_id, bos_token_id, tokens, special_token_ids = 4, None, [word.encode() for word in WORDS], [4]

    def __call__(self, text):
        """The longest token first, as a tokenizer with the merge a b."""
        text, found = text.decode() if isinstance(text, bytes) else text, []
        while text:
            found.append(max((i for i in range(4) if text.startswith(WORDS[i])), key=lambda i: len(WORDS[i]), default=2))
            text = text[len(WORDS[found[-1]]) :]
        return found


def words(row):
    return " ".join(word for i, word in enumerate(WORDS) if row.item() >> i & 1)


tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))
matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex("abc"))
row = torch.zeros(1, 1, dtype=torch.int32)
fill_next_token_bitmask(matcher, row)
ours, valid = words(row), matcher.validate_tokens([0, 1, 2])
rows = torch.zeros(4, 1, dtype=torch.int32)
fill_next_token_bitmask_par_with_draft_tokens(llguidance.LLExecutor(1), [(matcher, 0, [0, 1, 2])], rows)
written = int((rows != 0).sum())
print(f"llguidance allows {ours}; of the drafts a b c it counts {valid} as valid, and writes {written} rows for them")
info = xgrammar.TokenizerInfo(WORDS, stop_token_ids=[4])
xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_regex("abc")).fill_next_token_bitmask(row)
print(f"xgrammar allows {words(row)}")
raise SystemExit(0 if (ours, valid, written, words(row)) == ("ab", 3, 4, "a ab") else 1)
PY

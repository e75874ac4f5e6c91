#!/bin/sh
# One would guess that outlines-core allows each token that keeps a text within the regular expression, as xgrammar does: after
# "5" in [0-9]+(\.[0-9]+)? the token "." is one of them.
#
# What happens: where a text may end, outlines-core leaves out tokens after which it may not. "." is forbidden after "5", and
# no decimal is ever written unless one token holds the point and a digit. With tokens of one byte, (ba)* allows nothing but
# the end. No error is raised. The same tokens are allowed where the text may not end: in [0-9]+\.[0-9]+ the point comes.
#
# Seen on 2026-11-29, outlines-core 0.2.14 and xgrammar 0.2.8 on x86-64, tokens "0", "5", ".", ".5", "a", "b":
#   [0-9]+(\.[0-9]+)? after "5": xgrammar allows . .5 0 5 stop; outlines-core .5 0 5 stop
#   (ba)* after "": xgrammar allows b stop; outlines-core stop
#   [0-9]+\.[0-9]+ after "5": xgrammar allows . .5 0 5; outlines-core . .5 0 5
#
# What to do: compare the masks of a grammar with another library's, or write the regular expression so that the optional rest
# begins where the text may not end yet.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q outlines-core==0.2.14 xgrammar==0.2.8
"$folder/venv/bin/python" - <<'PY'
import torch
import xgrammar
from outlines_core import Guide, Index, Vocabulary

WORDS = ["0", "5", ".", ".5", "a", "b", "stop"]
STOP = 6
info = xgrammar.TokenizerInfo(WORDS, stop_token_ids=[STOP])
vocabulary = Vocabulary(STOP, {word: [i] for i, word in enumerate(WORDS[:STOP])})


def allowed(regex, text):
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_regex(regex))
    guide = Guide(Index(regex, vocabulary))
    for word in text:
        assert matcher.accept_token(WORDS.index(word))
        guide.advance(WORDS.index(word))
    row = torch.zeros(1, 1, dtype=torch.int32)
    matcher.fill_next_token_bitmask(row)
    tokens = [i for i in range(len(WORDS)) if row.item() >> i & 1], guide.get_tokens()
    return [" ".join(sorted(WORDS[i] for i in row)) for row in tokens]


seen = []
for regex, text in ((r"[0-9]+(\.[0-9]+)?", "5"), ("(ba)*", ""), (r"[0-9]+\.[0-9]+", "5")):
    seen.append(allowed(regex, text))
    print(f'{regex} after "{text}": xgrammar allows {seen[-1][0]}; outlines-core {seen[-1][1]}')
expected = [[". .5 0 5 stop", ".5 0 5 stop"], ["b stop", "stop"], [". .5 0 5", ". .5 0 5"]]
raise SystemExit(0 if seen == expected else 1)
PY

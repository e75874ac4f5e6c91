#!/bin/sh
# One would guess that GrammarMatcher.traverse_draft_tree, which "fills the token bitmask for each node" and returns True when
# it has, writes a row for each node of the tree.
#
# What happens: the row of a draft that the grammar forbids, and that of an accepted stop token, is cleared; rows of the nodes
# below it are not written. They hold what the buffer held, all bits in one from allocate_token_bitmask, or another
# request's row in one that is used again. A verifier that does not stop at the forbidden node would take them for the grammar.
#
# Seen on 2026-11-29, xgrammar 0.2.8 on x86-64, grammar ab*c?, tokens a, b, c and a stop token, a chain of three drafts:
#   drafts b a a: rows 0001 0000 not written, not written
#   drafts a stop a: rows 0001 1110 0000 not written
#
# What to do: clear the buffer before each call; a row of zeros forbids all.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q xgrammar==0.2.8
"$folder/venv/bin/python" - <<'PY'
import torch
import xgrammar

WORDS = ["a", "b", "c", "stop"]
info = xgrammar.TokenizerInfo(WORDS, stop_token_ids=[3])
matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_regex("ab*c?"))


def rows(drafts):
    """Of the root and each draft, the stop token's bit first; None where two buffers keep what they held."""
    found = []
    for held in (-1, 0):
        buffer = torch.full((4, 1), held, dtype=torch.int32)
        tokens = torch.tensor([-1, *(WORDS.index(word) for word in drafts)])
        assert matcher.traverse_draft_tree(torch.tensor([1, 2, 3, -1]), torch.full((4,), -1), tokens, buffer)
        found.append(buffer[:, 0].tolist())
    return [None if pair == (-1, 0) else f"{pair[0] & 15:04b}" for pair in zip(*found, strict=True)]


seen = {}
for drafts in ("b a a", "a stop a"):
    seen[drafts] = rows(drafts.split())
    print(f"drafts {drafts}: rows", *(row or "not written" for row in seen[drafts]))
expected = {"b a a": ["0001", "0000", None, None], "a stop a": ["0001", "1110", "0000", None]}
raise SystemExit(0 if seen == expected else 1)
PY

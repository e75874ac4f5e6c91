#!/bin/sh
# One would guess that speculative_decoding of the package speculative-decoding, which takes prompts [B, n], writes texts of the
# target's law for each row of a batch, as it does for one row.
#
# What happens: each row alone has the target's law; of two rows together the second one's texts are others almost always. The
# package's own Decoder is the target and the draft. With models that see the last token alone a batch is right, too.
#
# Seen on 2026-11-29, speculative-decoding 0.2.0 on x86-64, two tokens, 2 new ones, 2,000 texts each way:
#   total variation of each row alone: 0.004 0.002
#   total variation of each row of a batch of two: 0.004 0.936
#
# What to do: call it for one row at a time.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q "speculative-decoding==${1:-0.2.0}" einops==0.8.1 beartype==0.22.2
"$folder/venv/bin/python" - <<'PY'
from collections import Counter

import torch
from speculative_decoding.speculative_decoding import Decoder, speculative_decoding

PROMPTS, TEXTS = [[1, 0], [0, 1]], 2000


def model(seed):
    torch.manual_seed(seed)
    made = Decoder(num_tokens=2, dim=8, depth=1, heads=1, dim_head=8).double().eval()
    for parameter in made.parameters():
        parameter.data *= 3
    return made


target, draft = model(0), model(1)


@torch.no_grad()
def law(prompt):
    """The probabilities of the four texts, by the target alone."""
    shares = {}
    for first in (0, 1):
        one = target(torch.tensor([prompt]))[0, -1].softmax(-1)[first].item()
        rest = target(torch.tensor([[*prompt, first]]))[0, -1].softmax(-1).tolist()
        shares |= {(first, second): one * share for second, share in enumerate(rest)}
    return shares


def written(prompts):
    """What rows of as many calls emit, and how far that is from the target's law: the total variation of each row."""
    counts = [Counter() for _ in prompts]
    for _ in range(TEXTS):
        texts = speculative_decoding(target, draft, torch.tensor(prompts), 4, gamma=1, filter_thres=0.0)[0]
        for count, text in zip(counts, texts.tolist()):
            count[tuple(text)] += 1
    laws = [law(prompt) for prompt in prompts]
    return [sum(abs(count[x] / TEXTS - p) for x, p in row.items()) / 2 for count, row in zip(counts, laws)]


torch.manual_seed(2)
torch.set_num_threads(1)
alone = [written([prompt])[0] for prompt in PROMPTS]
together = written(PROMPTS)
print("total variation of each row alone:", " ".join(f"{x:.3f}" for x in alone))
print("total variation of each row of a batch of two:", " ".join(f"{x:.3f}" for x in together))
raise SystemExit(0 if max(alone) < 0.05 and max(together) > 0.2 else 1)
PY

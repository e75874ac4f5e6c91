"""Speculative decoding inside of transformers' own generate. Run it: python examples/transformers_generate.py

The models are the pair of this package; any causal language model of transformers with an assistant will do.
"""

import time

import torch

from specdec_kernels.engines import transformers
from specdec_kernels.generate import load_model

PROMPTS = ("ROMEO:", "First Citizen:\nBefore we proceed")
NEW = 24


def main() -> None:
    # In float64 a model gives the same logits however many tokens it reads at once, so that a race is plain sampling.
    target, draft = load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")
    tokenizer = target.tokenizer
    assert tokenizer is not None
    texts = [target.encode(prompt) for prompt in PROMPTS]
    width = max(map(len, texts))
    batch = {
        "input_ids": torch.tensor([[0] * (width - len(text)) + text for text in texts]),
        "attention_mask": torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts]),
    }
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": NEW, "pad_token_id": 0}

    found = {}
    for method in ("plain", "race", "rejection"):
        start = time.perf_counter()
        found[method] = target.model.generate(
            **batch, **options, custom_generate=transformers.generate, assistant_model=draft.model, method=method, k=4,
            seed=2026,
        )  # fmt: skip
        print(f"{method}: {len(texts) * NEW / (time.perf_counter() - start):.0f} tokens/s")
    if not torch.equal(found["race"], found["plain"]):
        raise SystemExit("race: expected the text of plain sampling")
    for row in found["race"]:
        print(repr(tokenizer.decode(row[row > 0], skip_special_tokens=True)))

    # transformers' own loop with our verification in it.
    transformers.install()
    torch.manual_seed(2026)
    one = torch.tensor([texts[0]])
    row = target.model.generate(one, assistant_model=draft.model, do_sample=True, max_new_tokens=NEW)[0]
    transformers.uninstall()
    print(repr(tokenizer.decode(row, skip_special_tokens=True)))


if __name__ == "__main__":
    main()

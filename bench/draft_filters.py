"""Tokens for each call of the target, by drafts with filters and without: ``python bench/draft_filters.py``.

It runs the generator on the embedded pair. No figure is a time, so every machine gives the same.
"""

from harness import RESULTS, write_json

from specdec_kernels import Sampling
from specdec_kernels.generate import ModelDrafter, generate, load_model
from specdec_kernels.generate.protocols import Drafts

PROMPTS = ["ROMEO:\n", "JULIET:\n", "First Citizen:\n", "KING RICHARD III:\n"]
TEXTS, TOKENS, DRAFTS, TEMPERATURE = 16, 150, 4, 0.8
FILTERS = ({"top_k": 5}, {"top_p": 0.9}, {"top_p": 0.7}, {"min_p": 0.05})


class UnfilteredDrafts(Drafts):
    """Drafts sampled by the temperature alone."""

    def laws(self, sampling):
        return super().laws(Sampling(temperature=sampling.temperature))


class Unfiltered(ModelDrafter):
    """A drafter that samples by the temperature alone."""

    def propose(self, text, length, counts, slots, noise, sampling, record=None):
        unfiltered = Sampling(temperature=sampling.temperature)
        return UnfilteredDrafts(*super().propose(text, length, counts, slots, noise, unfiltered, record))


def main():
    target, draft = load_model("embedded:target"), load_model("embedded:draft")
    prompts, rows = PROMPTS * (TEXTS // len(PROMPTS)), []
    for chosen in FILTERS:
        sampling = Sampling(temperature=TEMPERATURE, **chosen)
        row = {"filter": chosen}
        for method in ("race", "rejection", "block"):
            row[method] = []
            for drafter in (Unfiltered(draft), ModelDrafter(draft)):
                texts = generate(
                    prompts, target, drafter, method=method, k=DRAFTS, sampling=sampling, max_new_tokens=TOKENS,
                    eos_token_ids=[], seed=0,
                )  # fmt: skip
                calls = sum(text.target_calls for text in texts)
                row[method].append(sum(len(text.tokens) for text in texts) / calls)
        rows.append(row)
    write_json(RESULTS / "draft_filters.json", rows)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()

"""Speculative decoding of one text by chains of drafts, on one page: draft, read, verify, crop.

    python -m specdec_kernels.generate.minimal --method rejection --k 4

It runs every method of `verify_chain`, and plain sampling, with any Hugging Face model whose cache can be cropped.
`specdec_kernels.generate.generate` writes the same tokens for the same seed, and has batches, trees, filters, recurrent
layers and learned draft lengths besides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

import specdec_kernels as specdec

METHODS = ("race", "rejection", "block", "plain")
COLOURS = {"accepted": "\x1b[32m", "replaced": "\x1b[1;31m", "bonus": "\x1b[1;36m"}
MARKS = {"accepted": "{}", "replaced": "‹{}›", "bonus": "«{}»"}  # where a terminal shows no colours


class Reader:
    """A causal language model of transformers, and its cache of one text."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache, self.cached = model, DynamicCache(config=model.config), 0
        self.cache.activate_past_recording()  # windows keep entries that rejected drafts would push out

    @torch.no_grad()
    def read(self, text: list[int], rows: int) -> torch.Tensor:
        """Read what the cache lacks of `text`: the logits [rows, V] of the tokens after each of its last `rows`."""
        unread = torch.tensor([text[self.cached :]], dtype=torch.int64, device=self.model.device)
        logits = self.model(unread, past_key_values=self.cache, use_cache=True).logits[0, -rows:]
        self.cached = len(text)
        if not self.cache.is_croppable:
            layers = ", ".join({type(layer).__name__ for layer in self.cache.layers if not layer.is_croppable})
            raise TypeError(f"{type(self.model).__name__}: expected a cache that can be cropped; got {layers}")
        return logits.float() if logits.dtype == torch.float64 else logits

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if self.cached:
            self.cache.crop(min(length - self.cached, 0))
        self.cached = min(length, self.cached)


def draft_by_model(
    drafter: Reader, text: list[int], k: int, vocabulary: int, law: dict[str, Any]
) -> tuple[list[int], torch.Tensor | None]:
    """`k` tokens that a smaller model writes after `text`, and the logits [1, k, V'] that they were sampled from."""
    drafts: list[int] = []
    rows = []
    for slot in range(k):
        logits = drafter.read(text + drafts, rows=1)[:, :vocabulary]
        rows.append(logits)
        drafts += specdec.race_sample(logits, position=len(text) + slot, **law).tolist()
    return drafts, torch.stack(rows, dim=1) if rows else None


def draft_by_ngrams(text: list[int], k: int, longest: int = 4) -> list[int]:
    """At most `k` tokens that followed the last earlier occurrence of the text's longest suffix."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return text[start + size : start + size + k]
    return []


def generate(
    prompt: list[int], target: Any, draft: Any = None, *, method: str = "race", k: int = 4, temperature: float = 1.0,
    seed: int = 0, max_new_tokens: int = 128, eos_token_ids: tuple[int, ...] = (),
) -> Iterator[tuple[str, int]]:  # fmt: skip
    """Write on from a prompt, token by token.

    Parameters
    ----------
    prompt : list of int
        Token ids, at least one.
    target, draft : PreTrainedModel
        Models of transformers with one vocabulary. A draft that is None drafts by n-grams of the text.
    method : {"race", "rejection", "block", "plain"}
        How `verify_chain` verifies; "plain" drafts nothing.
    k, max_new_tokens : int
        Draft tokens a round; the most tokens written.
    temperature : float
        That of target and draft; 0 is greedy.
    seed : int
        All randomness is a function of it and of a token's position.
    eos_token_ids : tuple of int
        Tokens that end the text.

    Yields
    ------
    (str, int)
        What the token is ("accepted": a draft; "replaced": instead of a rejected one; "bonus": after the last
        draft), and the token.

    Raises
    ------
    TypeError
        A model whose cache cannot be cropped, with the names of its layers.
    FloatingPointError
        Logits that are NaN, +inf, or nothing but -inf.

    References
    ----------
    Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding": the loop, and rejection.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}; got {method!r}")
    text, end, rounds = list(prompt), len(prompt) + max_new_tokens, 0
    reader, drafter = Reader(target), None if draft is None else Reader(draft)
    vocabulary, device = target.config.get_text_config().vocab_size, target.device
    while len(text) < end:
        # In a block later drafts decide about earlier tokens, so each round has other noise.
        rounds += 1
        law = {"seed": seed, "nonce": 2**16 * rounds if method == "block" else 0, "temperature": temperature}

        # Draft. The round emits one token more than it accepts.
        count = 0 if method == "plain" else min(k, end - len(text) - 1)
        if drafter is None:
            drafts, rows = draft_by_ngrams(text, count), None
        else:
            drafts, rows = draft_by_model(drafter, text, count, vocabulary, law)

        # Read: the target's logits at every draft and after the last, in one pass.
        logits = reader.read(text + drafts, rows=len(drafts) + 1)

        # Verify. A race compares its winners with the drafts, and plain sampling is a race without any.
        verdict = specdec.verify_chain(
            torch.tensor([drafts], dtype=torch.int64, device=device), logits[None],
            rows if method in ("rejection", "block") else None, position=len(text),
            method="race" if method == "plain" else method, **law,
        )  # fmt: skip
        if int(verdict.status) & specdec.Status.NON_FINITE:
            raise FloatingPointError(f"expected finite logits after {len(text)} tokens; got others")
        accepted = int(verdict.num_accepted)
        emitted = verdict.tokens[0, : accepted + 1].tolist()

        # Crop: no cache holds a rejected draft. The last token emitted was read by neither model.
        reader.crop(len(text) + accepted)
        if drafter is not None:
            drafter.crop(len(text) + accepted)

        for index, token in enumerate(emitted):
            text.append(token)
            yield "accepted" if index < accepted else "bonus" if accepted == len(drafts) else "replaced", token
            if token in eos_token_ids:
                return


def main() -> None:
    """Write one text with the models in the package, or with others from a folder."""
    from specdec_kernels.generate import load_model

    parser = argparse.ArgumentParser(description="Speculative decoding of one text by chains of drafts.")
    parser.add_argument("--prompt", default="ROMEO:")
    parser.add_argument("--target", default="embedded:target", help="folder of a model")
    parser.add_argument("--draft", default="embedded:draft", help="folder of a model, or ngram")
    parser.add_argument("--method", default="rejection", choices=METHODS)
    for name, default in (("k", 4), ("temperature", 1.0), ("seed", 0), ("max-new-tokens", 128)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = vars(parser.parse_args())
    prompt, folder, drafter = (options.pop(name) for name in ("prompt", "target", "draft"))
    target, draft = load_model(folder), None if drafter == "ngram" else load_model(drafter).model
    colours, ids = sys.stdout.isatty(), target.tokenizer.encode(prompt)
    print(prompt, end="")
    for kind, token in generate(ids, target.model, draft, **options):
        piece = target.tokenizer.decode([token])
        print(f"{COLOURS[kind]}{piece}\x1b[0m" if colours else MARKS[kind].format(piece), end="", flush=True)
    print()


if __name__ == "__main__":
    main()

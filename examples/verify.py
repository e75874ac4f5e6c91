"""One request decoded by a target and a draft model, chains of K tokens at a time. Run it: python examples/verify.py

Both models are tables here, a row of logits for each last token; an engine has its own.
"""

from typing import Literal

import torch

import specdec_kernels as sd

VOCABULARY, K, SEED, TEMPERATURE = 100, 4, 2026, 0.8
TARGET = 2 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
DRAFT = TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(2))


def drafted(token: int, position: int) -> list[int]:
    """K tokens of the draft model after ``token``, the first of them at ``position``."""
    tokens = [token]
    for step in range(K):
        row = DRAFT[tokens[-1]]
        found = sd.race_sample(row, seed=SEED, position=position + step, temperature=TEMPERATURE)
        tokens.append(int(found))
    return tokens[1:]


def decode(count: int, method: Literal["rejection", "race"] = "rejection") -> list[int]:
    """At least ``count`` tokens, and their law is the target's own, whatever the draft model is worth."""
    tokens, rounds = [0], 0
    while len(tokens) <= count:
        drafts = drafted(tokens[-1], position=len(tokens))
        context = torch.tensor([tokens[-1], *drafts])
        verdict = sd.verify_chain(
            context[None, 1:],
            TARGET[context][None],
            DRAFT[context[:-1]][None] if method == "rejection" else None,
            method=method,
            seed=SEED,
            position=len(tokens),
            sampling=sd.Sampling(temperature=TEMPERATURE),
            check=True,
        )
        tokens += verdict.tokens[0, : int(verdict.num_accepted) + 1].tolist()
        rounds += 1
    print(f"{method}: {len(tokens) - 1} tokens in {rounds} rounds")
    return tokens[1:]


def plain(count: int) -> list[int]:
    """The target alone."""
    tokens = [0]
    while len(tokens) <= count:
        row = TARGET[tokens[-1]]
        tokens.append(int(sd.race_sample(row, seed=SEED, position=len(tokens), temperature=TEMPERATURE)))
    return tokens[1:]


def main() -> None:
    print(f"backends: {', '.join(sd.available_backends())}")
    decode(100)
    found = decode(100, method="race")
    if found[:100] != plain(100):
        raise SystemExit("race: expected the tokens of plain sampling")
    tree = sd.DraftTree.alternatives(3)
    mask = sd.tree_mask(tree.tensor(), prefix_len=2, layout="bool")
    print(f"mask of {len(tree.parents)} nodes: {list(mask.shape)}")
    drafts = sd.uniform(torch.arange(4), position=7) < 0.5
    print(f"requests that draft: {drafts.nonzero().flatten().tolist()}")


if __name__ == "__main__":
    main()

"""Speculative decoding with models of llama.cpp. Run it: python examples/llamacpp_generate.py [TARGET DRAFT]

It needs llama-cpp-python, and gguf to write the pair of this package where no models are given.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from llama_cpp import Llama, LogitsProcessorList

from specdec_kernels import Sampling
from specdec_kernels.engines.llamacpp import LlamaDraft, LlamaModel, RaceProcessor, generate, write_gguf
from specdec_kernels.generate import NgramDrafter

PROMPT, NEW, K, SEED = "ROMEO:", 120, 4, 2026
# The filters of llama.cpp's default chain.
SAMPLING = Sampling.llamacpp(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = sys.argv[1:] or [
            str(write_gguf(f"embedded:{name}", Path(folder, f"{name}.gguf"))) for name in ("target", "draft")
        ]
        run(*map(opened, paths))


def opened(path: str, **options: Any) -> Llama:
    return Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **options)


def run(target: Llama, draft: Llama) -> None:
    models = LlamaModel(target, name="target"), LlamaModel(draft, name="draft")
    written = {}
    for name, drafter, options in (
        ("plain", None, {"method": "plain"}),
        ("look-up, race", NgramDrafter(), {"method": "race", "k": K}),
        ("draft, race", models[1], {"method": "race", "k": K}),
        ("draft, rejection", models[1], {"method": "rejection", "k": K}),
        ("draft, race, tree", models[1], {"method": "race", "tree": [-1, 0, 0, 1, 1, 2]}),
    ):
        start = time.perf_counter()
        (found,) = generate([PROMPT], models[0], drafter, sampling=SAMPLING, seed=SEED, max_new_tokens=NEW, **options)
        rate = len(found.tokens) / (time.perf_counter() - start)
        print(f"{name}: {found.tokens_per_call:.2f} tokens a call, {rate:.0f} tokens/s")
        written[name] = found
    print(written["plain"].text)

    # llama-cpp-python's own loop, coupled: the draft and the target draw with the same noise.
    coupled = opened(target.model_path, draft_model=LlamaDraft(models[1], K, seed=SEED, sampling=SAMPLING))
    race = LogitsProcessorList([RaceProcessor(seed=SEED, sampling=SAMPLING)])
    rounds = coupled.generate(target.tokenize(PROMPT.encode()), temp=0.0, logits_processor=race)
    tokens = [next(rounds) for _ in range(len(written["plain"].tokens))]
    same = sum(pair[0] == pair[1] for pair in zip(tokens, written["plain"].tokens, strict=True))
    print(f"its own loop, coupled: {same} of {len(tokens)} tokens are those of plain sampling")


if __name__ == "__main__":
    main()

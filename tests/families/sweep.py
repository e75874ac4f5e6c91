"""Every causal family of the installed transformers, tiny and random, beside the generator: `make test-models`.

A text is right if it is the one that forwards over the whole text write, without a cache, token by token. Prompts of 3
and 21 tokens share a batch, and texts go on past every window, chunk and index. All is in float64.

    python -m tests.families.sweep [FAMILY ...] [--json FILE [--resume]] [--part 1/2]

It exits with 1 if a text is wrong, or if what is refused is not refused by name.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel

import specdec_kernels as specdec
from specdec_kernels.engines.transformers import generate as adapter
from specdec_kernels.generate import LanguageModel, ModelDrafter, NgramDrafter, TextEdits, generate
from specdec_kernels.generate.models import apart_by
from specdec_kernels.generate.reader import CACHES
from tests.families.build import NAMES, SPECIAL, VOCAB, random_model, small

NEW, SEED, TREE = 20, 5, [-1, 0, 0, 1, 1, 2, 3]
PROMPTS = [[7, 3, 9], [3 + 11 * index % (VOCAB - 4) for index in range(21)]]
"""What every family writes on from."""
PADDING = TextEdits(bias={0: float("-inf")})
"""Some families count no position where padding is: no text has it."""


def nearby(model: PreTrainedModel, config: Any, distance: float = 0.02) -> PreTrainedModel:
    """A model of the same config with the weights of another, and a little noise."""
    draft = random_model(config)
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += distance * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return draft


def is_true(model: LanguageModel, prompt: list[int], tokens: list[int], seed: int, temperature: float) -> bool:
    """Whether each token of a text is the one that a forward over all of it draws behind those before it."""
    text = torch.tensor([prompt + tokens])
    rows = model.whole(text)[0, len(prompt) - 1 : -1, :VOCAB].float()
    rows[:, 0] = float("-inf")
    position = torch.arange(len(prompt), text.shape[1])
    drawn = specdec.race_sample(rows, seed=seed, position=position, temperature=temperature)
    return drawn.tolist() == tokens


def reading_of(model: LanguageModel) -> str:
    """How the generator reads a model."""
    if model.layers is None:
        return "text by text" if model.cache_argument else "anew"
    return "masks"


def trees_of(model: LanguageModel) -> str:
    """ "yes", or why no trees are read."""
    try:
        model.check_trees()
    except ValueError as error:
        return str(error).split(", which ")[1].split(";")[0]
    return "yes"


def positions_of(model: LanguageModel) -> str:
    """Which positions the model is given, from what its forward takes and what the check has chosen."""
    if "position_ids" not in inspect.signature(model.model.forward).parameters:
        return "none"
    return "behind padding" if model.first_position else "from 0"


def read_in(
    model: LanguageModel, text: torch.Tensor, counts: list[int], cache: Any = None, begin: int = 0
) -> tuple[torch.Tensor, Any]:
    """The logits of text[:, begin:] in pieces of so many tokens behind what a cache of transformers holds, and that."""
    takes_positions, logits = "position_ids" in inspect.signature(model.model.forward).parameters, []
    for count in counts:
        inputs = {"input_ids": text[:, begin : begin + count], "use_cache": True, "return_dict": True}
        if takes_positions:
            inputs["position_ids"] = torch.arange(begin, begin + count)[None] + model.first_position
        output = model.model(**inputs, **({} if cache is None else {model.cache_argument: cache}))
        cache, begin = next(output[name] for name in CACHES if output.get(name) is not None), begin + count
        logits.append(output.logits)
    return torch.cat(logits, dim=1), cache


@torch.no_grad()
def by_itself(model: LanguageModel) -> dict[str, str]:
    """What a model gives with transformers' own cache: read in pieces, and behind tokens that were taken back."""
    text = torch.tensor([PROMPTS[1]])
    last = text.shape[1]

    def judged(read: Callable[[], torch.Tensor]) -> str:
        try:
            return "no" if apart_by(read(), steps[:, last - 7 :]) > 1e-6 else "yes"
        except Exception:
            return "no"

    def cropped() -> torch.Tensor:
        cache = read_in(model, text, [last - 7])[1]
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        cache = read_in(model, text.flip(1), [4], cache, last - 7)[1]
        cache.crop(-4)
        return read_in(model, text, [1] * 7, cache, last - 7)[0]

    try:
        steps = read_in(model, text, [1] * last)[0]
    except StopIteration:
        return dict.fromkeys(("chunk = steps", "crop"), "no cache")
    except Exception as error:
        return dict.fromkeys(("chunk = steps", "crop"), f"raises {type(error).__name__}")
    return {
        "chunk = steps": judged(lambda: read_in(model, text, [3, 11, last - 14])[0][:, -7:]),
        "crop": judged(cropped),
    }


def by_transformers(model: LanguageModel, prompt: list[int], **options: Any) -> list[int]:
    """The greedy text of `model.generate`."""
    text = torch.tensor([prompt])
    options |= dict(do_sample=False, max_new_tokens=NEW, suppress_tokens=[0], pad_token_id=0)
    options |= dict.fromkeys(("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"))
    return model.model.generate(text, attention_mask=torch.ones_like(text), **options)[0, len(prompt) :].tolist()


def wrong_texts(target: LanguageModel, draft: LanguageModel, trees: bool) -> list[str]:
    """Which texts of the generator are not those of whole forwards, and passes that are more than plain sampling's."""
    options = dict(seed=SEED, max_new_tokens=NEW, eos_token_ids=[], edits=PADDING)
    runs = {
        "plain": (None, dict(method="plain")),
        "race": (ModelDrafter(draft), dict(k=4)),
        "n-grams": (NgramDrafter(2), dict(k=4, max_pending=4)),
        "rejection": (ModelDrafter(draft), dict(k=3, method="rejection", temperature=0)),
        "block": (ModelDrafter(draft), dict(k=5, method="block", temperature=0)),
    }
    if trees:
        runs["tree"] = ModelDrafter(draft), dict(tree=TREE)
    wrong, calls = [], {}
    for name, (drafter, more) in runs.items():
        texts = generate(PROMPTS, target, drafter, **options, **more)
        calls[name] = max(text.target_calls for text in texts)
        temperature = more.get("temperature", 1.0)
        true = [is_true(target, text.prompt, text.tokens, SEED + i, temperature) for i, text in enumerate(texts)]
        wrong += [] if all(true) else [name]
    if calls["n-grams"] > calls["plain"] + 1:
        wrong.append(f"n-grams: {calls['n-grams']} passes for {calls['plain']}")
    if not target.model.config.is_encoder_decoder:
        ours = by_transformers(target, PROMPTS[1], custom_generate=adapter, drafter=draft.model)
        wrong += [] if is_true(target, PROMPTS[1], ours, 0, 0.0) else ["adapter"]
    return wrong


def tried(name: str) -> dict[str, Any]:
    """What the generator makes of a family."""
    begun = time.process_time()
    try:
        config = small(CONFIG_MAPPING[name], SPECIAL.get(name, {}))
        model = random_model(config)
        target, draft = LanguageModel(model, name=name), LanguageModel(nearby(model, config), name=f"{name} nearby")
    except Exception as error:
        return {"ours": "not built", "why": one_line(error)}
    traits: dict[str, Any] = {}
    try:
        target.check_readable()
        traits = {"positions": positions_of(target), "tree masks": trees_of(target), "reading": reading_of(target)}
        wrong = wrong_texts(target, draft, traits["tree masks"] == "yes")
        entry = {"ours": "wrong" if wrong else "right"} | ({"why": ", ".join(wrong)} if wrong else {})
    except Exception as error:
        refused = isinstance(error, ValueError) and str(error).startswith(name)  # not a draft's, nor another error
        entry = {"ours": "refused" if refused else "raised", "why": one_line(error)}
    try:
        same = is_true(target, PROMPTS[1], by_transformers(target, PROMPTS[1]), 0, 0.0)
        entry["transformers"] = "same" if same else "other text"
    except Exception as error:
        entry["transformers"] = one_line(error)
    return by_itself(target) | traits | entry | {"seconds": round(time.process_time() - begun, 1)}


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def main() -> None:
    """Try families, print each, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="FAMILY")
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--resume", action="store_true", help="keep what that file has of the same versions")
    parser.add_argument("--part", default="1/1", help="1/2: each second family")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
    part, parts = map(int, options.part.split("/"))
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    table: dict[str, Any] = {}
    if options.resume:
        before = json.loads(options.json.read_text())
        table = before["families"] if {name: before[name] for name in versions} == versions else {}
    for name in options.names[part - 1 :: parts]:
        if name in table:
            continue
        entry = table[name] = tried(name)
        print(name, json.dumps(entry), flush=True)
        if options.json:
            seen = versions | {"date": str(date.today()), "families": table}
            options.json.write_text(json.dumps(seen, indent=1) + "\n")
    count = Counter(entry["ours"] for entry in table.values())
    print(count)
    raise SystemExit(bool(count["wrong"] + count["raised"]))


if __name__ == "__main__":
    main()

"""Kinds of layers: what they remember of a token, what they see, and how a token is taken back."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

FULL, SLIDING, CHUNKED, STATE = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"

LENDING = threading.Lock()  # held while a module has buffers that are lent to it: every thread that reads sees them


class Kind(NamedTuple):
    """Layers of a kind.

    `mask`: the name of the mask that they take; "": none. `limit`: the field of the config that says how few tokens
    they see; "": all before. `state`: a state is put back, while slots are overwritten.
    """

    mask: str = FULL
    limit: str = ""
    state: bool = False


KINDS = {
    FULL: Kind(),
    SLIDING: Kind(SLIDING, "sliding_window"),
    CHUNKED: Kind(CHUNKED, "attention_chunk_size"),
    "indexed_attention": Kind("indexed_attention"),  # a slot holds a key of the indexer, too
    STATE: Kind("", state=True),
    "conv": Kind("", state=True),
    "hybrid": Kind(FULL, state=True),
    "hybrid_sliding": Kind(SLIDING, "sliding_window", state=True),
    "moe": Kind(""),
    "mlp": Kind(""),
}


class Layers(NamedTuple):
    """A model's layers: by the name of a mask, how many tokens they see (None: all); whether some have states."""

    windows: dict[str, int | None]
    recurrent: bool


def layers_of(model: PreTrainedModel) -> Layers | None:
    """The layers of a model; None if one is of no kind that a mask can express."""
    config = model.config.get_text_config()
    if config.model_type == "gpt_neo":
        seen = {kind: config.window_size if kind == "local" else None for kind in config.attention_layers}
        return Layers(seen, False)
    names = getattr(config, "layer_types", None)
    if not names:
        # Some models have a window in their config and do not use it.
        masked = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
        names = [SLIDING if getattr(config, "sliding_window", None) and masked else FULL]
    if not KINDS.keys() >= set(names):
        return None
    kinds = {KINDS[name] for name in names}
    windows = {kind.mask: getattr(config, kind.limit) if kind.limit else None for kind in kinds if kind.mask}
    recurrent = any(kind.state for kind in kinds)
    if recurrent:  # a model that has no such layer may ask for the mask all the same
        windows.setdefault(FULL, None)
    return Layers(dict(sorted(windows.items())), recurrent)


def cache_window(model: PreTrainedModel, layers: Layers) -> int | None:
    """The shortest window that transformers' cache has, and none of the masks; None if there is none."""
    with suppress(AttributeError):  # of configs that no cache is made of
        kept = (getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers)
        return min((window for window in kept if window and window not in layers.windows.values()), default=None)
    return None


class Visibility:
    """What queries at positions [B, T] do not see: `hidden` [B, T, S] and, by window, keys at positions [B, S]."""

    def __init__(self, hidden: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor) -> None:
        self.hidden, self.positions, self.keys = hidden, positions, keys

    def within(self, kind: str, window: int | None) -> torch.Tensor:
        """What is hidden from layers of this kind."""
        if window is None or self.hidden.shape[2] <= window:
            return self.hidden
        queries, keys = self.positions[:, :, None], self.keys[:, None, :]
        beyond = queries // window != keys // window if kind == CHUNKED else queries - keys >= window
        return self.hidden | beyond


def logits_of(model: PreTrainedModel, layers: Layers, seen: Visibility, **inputs: Any) -> torch.Tensor:
    """The logits of a forward whose layers see what they are to see."""
    hidden = {kind: seen.within(kind, window) for kind, window in layers.windows.items()}
    if model.config.model_type == "gpt_neo":
        return _gpt_neo_logits(model, hidden, **inputs)
    masks: dict[str, torch.Tensor | None] = {kind: _additive(out, model.dtype) for kind, out in hidden.items()}
    if layers.recurrent:
        masks |= {STATE: None, "conv": None, "hybrid": masks[FULL], "hybrid_sliding": masks.get(SLIDING)}
    # Models with layers of one kind take its mask, those with several a mask by kind.
    return model(attention_mask=masks if len(masks) > 1 else masks.popitem()[1], **inputs).logits


def _additive(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask [B, 1, T, S] to add to scores."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)[:, None]


def _gpt_neo_logits(model: PreTrainedModel, hidden: dict[str, torch.Tensor], **inputs: Any) -> torch.Tensor:
    """GPT-Neo cuts its masks out of buffers of its layers, where it takes queries for the last keys: lend it others."""
    seen = {kind: pad(~out, (0, 0, out.shape[2] - out.shape[1], 0))[:, None] for kind, out in hidden.items()}
    lent = {
        f"{name}.bias": seen[layer.attention_type]
        for name, layer in model.named_modules()
        if hasattr(layer, "attention_type") and hasattr(layer, "bias")
    }
    nothing = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)
    with LENDING:
        return torch.func.functional_call(model, lent, kwargs=inputs | {"attention_mask": nothing}).logits

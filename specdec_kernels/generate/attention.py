"""What the layers of a model see: all tokens before them, a window, or a state of their own."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"
RECURRENT = {"linear_attention", "conv"}
BESIDE = {"hybrid": FULL, "hybrid_sliding": SLIDING}  # layers with attention and a state, side by side
FORGETFUL = {"moe", "mlp"}  # layers that remember nothing


def windows_of(model: PreTrainedModel, name: str) -> dict[str, int | None]:
    """How many tokens the layers of each kind see, the newest included; None: all, or a state, which takes no mask.

    Raises
    ------
    ValueError
        Layers or positions that a mask cannot express.
    """
    config = model.config.get_text_config()
    if getattr(config, "alibi", False):
        raise ValueError(f"{name}: expected positions that the tokens bring; got ALiBi, which is in the mask")
    if config.model_type == "gpt_neo":
        return {kind: config.window_size if kind == "local" else None for kind in config.attention_layers}
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        # Some models have a window in their config and do not use it.
        masked = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
        kinds = [SLIDING if window and masked else FULL]
    found = {BESIDE.get(kind, kind) for kind in kinds} - FORGETFUL
    if not RECURRENT.isdisjoint(kinds) or not BESIDE.keys().isdisjoint(kinds):
        found |= {FULL, "linear_attention"}  # what models with layers of other kinds than attention ask for
    if unknown := found - {FULL, SLIDING, *RECURRENT}:
        raise ValueError(
            f"{name}: expected layers of full or sliding attention, or recurrent ones; got {', '.join(sorted(unknown))}"
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(found)}


class Visibility:
    """What queries at positions [B, T] do not see: `hidden` [B, T, S] and, by window, keys at positions [B, S]."""

    def __init__(self, hidden: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor) -> None:
        self.hidden, self.positions, self.keys = hidden, positions, keys

    def within(self, window: int | None) -> torch.Tensor:
        """What is hidden from layers with this window."""
        if window is None or self.hidden.shape[2] <= window:
            return self.hidden
        return self.hidden | (self.positions[:, :, None] - self.keys[:, None, :] >= window)


def logits_of(model: PreTrainedModel, windows: dict[str, int | None], seen: Visibility, **inputs: Any) -> torch.Tensor:
    """The logits of a forward whose layers, of the kinds that `windows` has, see what they are to see."""
    hidden = {kind: seen.within(window) for kind, window in windows.items()}
    if model.config.model_type == "gpt_neo":
        return _gpt_neo_logits(model, hidden, **inputs)
    masks = {kind: None if kind in RECURRENT else _additive(out, model.dtype) for kind, out in hidden.items()}
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
    return torch.func.functional_call(model, lent, kwargs=inputs | {"attention_mask": nothing}).logits

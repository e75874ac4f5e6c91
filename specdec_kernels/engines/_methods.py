"""The settings of an engine: a method, switches, and options that our ops have no rule for."""

import os

METHODS = ("rejection", "race", "block")
SHARDED = "SPECDEC_VLLM_SHARDED"  # vLLM's ranks compute on their slices of the logits
SGLANG_SHARDED = "SPECDEC_SGLANG_SHARDED"


def checked_method(method: str | None, name: str) -> str | None:
    """The method, checked, of the setting ``name``; None if there is none."""
    if method and method not in METHODS:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, METHODS))}; got {method!r}")
    return method or None


def filters_drafts() -> bool:
    """Whether drafts are drawn with their requests' filters: unless ``SPECDEC_DRAFT_FILTERS=0``."""
    return switched("SPECDEC_DRAFT_FILTERS", "1")


def switched(name: str, usual: str = "0") -> bool:
    """Whether a switch in the environment is on."""
    word = os.environ.get(name, usual)
    if word not in ("0", "1"):
        raise ValueError(f"{name}: expected '0' or '1'; got {word!r}")
    return word == "1"


def method_of() -> str | None:
    """The method in SGLang's environment; None if there is none."""
    return checked_method(os.environ.get("SPECDEC_SGLANG"), "SPECDEC_SGLANG")


def refuse(**options: bool) -> None:
    """Raise NotImplementedError that names an option that is on."""
    for name, on in options.items():
        if on:
            raise NotImplementedError(f"{name}: expected it to be off, for our ops have no such rule")

"""Models made from another one: its first layers, or some rows of its head. Weights of layers are shared."""

from __future__ import annotations

import copy

import torch

from specdec_kernels.generate.checks import whole_number
from specdec_kernels.generate.models import LanguageModel


def early_exit(target: LanguageModel, layers: int) -> LanguageModel:
    """A draft made from the target: its first layers, then its last norm and its head. Weights are shared.

    Parameters
    ----------
    target : LanguageModel
        The model to draft for.
    layers : int
        How many of its layers, from 1 to one less than all.

    Raises
    ------
    TypeError, ValueError
        If `layers` is no such number, or the model has no list of layers of the length that its config says.

    References
    ----------
    Zhang et al. (2023), Draft & Verify; Elhoushi et al. (2024), LayerSkip.

    Examples
    --------
    >>> from specdec_kernels.generate import load_model
    >>> target = load_model("embedded:target")
    >>> early_exit(target, 2).name
    'embedded:target (2 of 6 layers)'
    """
    layers, depth = whole_number("layers", layers, 1), target.config.num_hidden_layers
    if layers >= depth:
        raise ValueError(f"layers: expected 1 to {depth - 1}, less than {target.name} has; got {layers}")
    lists = (
        name for name, module in target.model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth
    )  # fmt: skip
    list_name = next(lists, None)
    if list_name is None:
        raise ValueError(f"{target.name}: expected a list of {depth} layers to leave early; got none")
    model = holder = twin(target.model)
    *path, last = list_name.split(".")
    for part in path:
        holder._modules[part] = twin(holder._modules[part])
        holder = holder._modules[part]
    holder._modules[last] = holder._modules[last][:layers]
    return LanguageModel(model, target.tokenizer, f"{target.name} ({layers} of {depth} layers)")


def twin(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the same parts, any of which can be replaced without changing the first."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


def of_tokens(language_model: LanguageModel, tokens: slice | torch.Tensor) -> LanguageModel:
    """The model with the rows of these tokens in its LM head alone: its logits are theirs."""
    head = language_model.model.get_output_embeddings()
    part = twin(head)
    part._parameters = dict(head._parameters)
    part.weight = torch.nn.Parameter(head.weight[tokens], requires_grad=False)
    if getattr(head, "bias", None) is not None:
        part.bias = torch.nn.Parameter(head.bias[tokens], requires_grad=False)
    model = twin(language_model.model)
    model.set_output_embeddings(part)
    return LanguageModel(model, language_model.tokenizer, language_model.name)

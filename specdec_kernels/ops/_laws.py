"""Checks of what makes rows laws, and of whose they are: sampling, draft vocabulary, noise, requests by index."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._declaration import Law, Noise
from specdec_kernels.sampling import Sampling


def target_law(space, temperature, sampling, shape, device, seen=None):
    """``space`` and one of ``temperature=`` and ``sampling=`` as a Law; what is no number has this shape."""
    if sampling is None:
        name, temperature = "temperature", 1.0 if temperature is None else temperature
    else:
        if temperature is not None:
            raise ValueError(
                f"temperature: expected None beside sampling=, which has one; got {inputs.shown(temperature)}"
            )
        name, temperature = "sampling.temperature", _temperature_of("sampling", sampling)
    inputs.check_choice("space", space, inputs.SPACES)
    temperature = inputs.number(name, temperature, shape, device, seen=seen)
    inputs.check_final(name, temperature, "space", space)
    return Law(space, temperature)


def draft_law(law, space, sampling, shape, device, seen=None):
    """The draft's Law: that of the target but for what was said of the draft."""
    if space is None and sampling is None:
        return law
    if space is None:
        space = law.space
    else:
        inputs.check_choice("draft_space", space, inputs.SPACES)
    if sampling is None:  # a temperature of the target's says of final laws only whether they are argmax
        return law if space == law.space else Law(space, law.temperature)
    name = "draft_sampling.temperature"
    temperature = inputs.number(name, _temperature_of("draft_sampling", sampling), shape, device, seen=seen)
    inputs.check_final(name, temperature, "draft_space", space)
    return Law(space, temperature)


def _temperature_of(name, sampling):
    if not isinstance(sampling, Sampling):
        raise TypeError(f"{name}: expected a Sampling; got {inputs.shown(sampling)}")
    return sampling.temperature


def check_no_draft(**arguments):
    """What is said of a draft needs one."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name}: expected None without draft laws; got {inputs.shown(value)}")


def noise_of(requests, seed, position, nonce, shape, device, seen=None):
    """The Noise of so many requests."""
    inputs.check_noise(requests, seed, position, nonce)
    return Noise(
        inputs.counter("seed", seed, shape, device, seen),
        inputs.counter("position", position, shape, device, seen),
        inputs.counter("nonce", nonce, shape, device, seen),
    )


def check_draft_map(draft_map, draft_vocab, vocab, device):
    """int32, one token of the target for each of the draft's, rising. ``vocab`` is None where there is no target."""
    inputs.check_tensor("draft_map", draft_map, (torch.int32,), 1)
    inputs.check_device("draft_map", draft_map, device)
    if draft_map.shape[0] != draft_vocab or not draft_map.is_contiguous():
        raise ValueError(
            f"draft_map: expected contiguous int32 [{draft_vocab}], a token of the target for each of the draft's; "
            f"got {inputs.shown(draft_map)}"
        )
    if not inputs.host_sees(draft_map):
        return
    least, most = int(draft_map[0]), int(draft_map[-1])
    if least < 0 or (vocab is not None and most >= vocab):
        inside = "tokens of 0 or more" if vocab is None else f"tokens inside [0, {vocab})"
        raise ValueError(f"draft_map: expected {inside}; got {least} to {most}")
    falls = (draft_map[1:] <= draft_map[:-1]).nonzero()
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"draft_map: expected rising tokens; got {int(draft_map[at + 1])} after {int(draft_map[at])}")


def check_index(request_index, requests, device):
    """int32, one for each batch row."""
    inputs.check_tensor("request_index", request_index, (torch.int32,), 1)
    inputs.check_device("request_index", request_index, device)
    if request_index.shape[0] != requests or not request_index.is_contiguous():
        raise ValueError(f"request_index: expected contiguous int32 [{requests}]; got {inputs.shown(request_index)}")


def entries(draft, leading, *numbers):
    """S, of how many requests there are numbers and draft rows: the draft's, or those of the first tensor of numbers
    with as many dimensions as ``leading``. 1 without any, where all requests have the same numbers.
    """
    if draft is not None:
        return draft.shape[0]
    sizes = [x.shape[0] for x in numbers if isinstance(x, torch.Tensor) and x.ndim >= leading]
    return next((size for size in sizes if size != 1), 1)


def temperatures(*given):
    """The temperatures in what was given, each a number, a tensor, a Sampling or None."""
    return [x.temperature if isinstance(x, Sampling) else x for x in given]


def number_shapes(target, rows, request_index, draft, *numbers):
    """For ops on rows: the shape of numbers as callers give them, and as backends see them beside rows [A, R, V]."""
    lead = target.shape[:-1]
    if request_index is None:
        return lead, rows.shape[:2]
    if len(lead) not in (1, 2):
        raise ValueError(f"request_index: expected None, or rows [B, V] or [B, R, V]; got {inputs.shown(target)}")
    check_index(request_index, lead[0], target.device)
    requests = entries(draft, len(lead), *numbers)
    return (requests, *lead[1:]), (requests, rows.shape[1])

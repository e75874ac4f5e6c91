"""Checks of arguments that make laws of rows: sampling, draft vocabulary, noise, request index."""

import torch

from specdec_kernels.calls import inputs, kinds, values
from specdec_kernels.calls.values import Law, Noise
from specdec_kernels.layout import InputPositions
from specdec_kernels.sampling import Draft, Sampling

NUMBERS = kinds.law().kinds
OF_CHECKPOINTS = "draft_map() makes a map of a checkpoint's d2t, which holds offsets, or t2d"


def target_law(space, temperature, sampling, shape, device, seen=None):
    """``space`` and either ``temperature=`` or ``sampling=`` as a Law; tensors in it get this shape."""
    inputs.check_choice("space", space, inputs.SPACES)
    check_one_temperature(temperature, sampling)
    if sampling is not None:
        return _law("sampling", sampling, "space", space, shape, device, seen)
    temperature = 1.0 if temperature is None else temperature
    temperature = NUMBERS["temperature"].taken("temperature", temperature, shape, device, seen)
    inputs.check_final("temperature", temperature, "space", space)
    return Law(space, temperature)


def drafted(draft):
    """The argument as a Draft, and the name of its rows."""
    if not isinstance(draft, Draft):
        return Draft(draft), "draft"
    if draft.rows is None:
        raise TypeError(f"draft.rows: expected a tensor of {inputs.named(inputs.ROW_DTYPES)}; got None")
    return draft, "draft.rows"


def draft_law(law, draft, shape, device, seen=None):
    """The draft's Law: the Draft's settings, and for the others the target's space and temperature."""
    space, sampling = draft.space, draft.sampling
    if space is None:
        space = law.space
    else:
        inputs.check_choice("draft.space", space, inputs.SPACES)
    if sampling is None:  # for probabilities the target's temperature only says whether it is 0
        return Law(space, law.temperature, rules=law.rules & values.DIVIDED if space == "logits" else 0)
    return _law("draft.sampling", sampling, "draft.space", space, shape, device, seen)


def _law(name, sampling, space_name, space, shape, device, seen):
    """The Law of a Sampling, the argument called ``name``."""
    inputs.check_type(name, sampling, Sampling)

    def number(part, x):
        return NUMBERS[part].taken(f"{name}.{part}", x, shape, device, seen)

    temperature, top_k, top_p, min_p, top_p_after, ties, at_temperature, divided = sampling
    temperature = number("temperature", temperature)
    inputs.check_final(f"{name}.temperature", temperature, space_name, space)
    rules = _rules(name, top_p_after, ties, at_temperature)
    divided = inputs.flag(f"{name}.divided", divided)
    top_k, top_p, min_p = number("top_k", top_k), number("top_p", top_p), number("min_p", min_p)
    if not isinstance(top_k, torch.Tensor) and top_k <= 0:
        top_k = 0
    rules |= values.DIVIDED * (divided and space == "logits")
    law = Law(space, temperature, top_k, top_p, min_p, rules)
    filters = values.filters_of(law)
    if space == "probs" and filters:
        raise ValueError(
            f"{name}.{filters[0]}: expected none with {space_name}='probs', whose laws are final (filter before the "
            f"softmax); got {inputs.shown(getattr(sampling, filters[0]))}"
        )
    filtered = rules | values.FILTERED if filters else rules & values.DIVIDED
    return Law(space, temperature, top_k, top_p, min_p, filtered)


def _rules(name, top_p_after, ties, at_temperature):
    if not isinstance(top_p_after, (tuple, list)):
        raise TypeError(f"{name}.top_p_after: expected a tuple of words; got {inputs.shown(top_p_after)}")
    rules = 0
    for cut in top_p_after:
        inputs.check_choice(f"{name}.top_p_after", cut, tuple(values.AFTER))
        rules |= values.AFTER[cut]
    inputs.check_choice(f"{name}.ties", ties, ("first", "all"))
    at_temperature = inputs.flag(f"{name}.at_temperature", at_temperature)
    return rules | values.TOGETHER * (ties == "all") | values.BEFORE_TEMPERATURE * (not at_temperature)


def slot_numbers(op, draft_prob, requests, slots, ragged, device):
    """``draft_prob`` as a number, or as [requests, slots]; if ragged, as [slots of all requests]."""
    if isinstance(draft_prob, torch.Tensor):
        if not ragged:
            draft_prob = draft_prob.unsqueeze(1) if draft_prob.ndim == 1 else draft_prob
        elif draft_prob.ndim == 1 and draft_prob.shape[0] != 1 and draft_prob.shape[0] != slots[0]:
            raise ValueError(
                f"draft_prob: expected shape {list(slots)} (one a slot) or {[requests, 1]} (one a request); "
                f"got {inputs.shown(draft_prob)}"
            )
    return op.number("draft_prob", draft_prob, (requests, *slots) if ragged else slots, device)


def noise_of(requests, seed, position, nonce, shape, device, seen=None):
    """seed, position and nonce as the Noise of this many requests."""
    noise = Noise(
        inputs.counter("seed", seed, shape, device, seen),
        inputs.counter("position", position, shape, device, seen),
        inputs.counter("nonce", nonce, shape, device, seen),
    )
    inputs.check_noise(requests, noise)
    return noise


def noise_of_requests(op, sizes, method, seed, position, nonce, batch, shape, device):
    """The noise of a verification, and the parts of it that have an item for each row, as arguments of the op."""
    by_row = {"row_seeds": None, "input_positions": None}
    if "input_nonces" in op.arguments:
        by_row["input_nonces"] = None
    if isinstance(seed, torch.Tensor) and seed.ndim == 2:
        if method != "race" or inputs.integer(position) != 0 or inputs.integer(nonce) != 0:
            raise ValueError(
                f"seed: expected [B] but with method='race', position=0 and nonce=0; got {inputs.shown(seed)} with "
                f"{method!r}, {inputs.shown(position)} and {inputs.shown(nonce)}"
            )
        op.check(sizes, row_seeds=seed)
        return by_row | {"noise": Noise(0, 0, 0), "row_seeds": seed}
    if not isinstance(position, InputPositions):
        return {"noise": noise_of(batch, seed, position, nonce, shape, device), **by_row}
    positions, nonces = position
    op.check(sizes, input_positions=positions)
    if nonces is not None:
        if "input_nonces" not in op.arguments:
            raise ValueError(f"position.nonces: expected None for trees; got {inputs.shown(nonces)}")
        op.check(sizes, input_nonces=nonces)
        if inputs.integer(nonce) != 0:
            raise ValueError(f"nonce: expected 0 beside position.nonces; got {inputs.shown(nonce)}")
        by_row["input_nonces"] = nonces
    return by_row | {"noise": noise_of(1, seed, 0, nonce, shape, device), "input_positions": positions}


def check_method(method, draft, draft_prob=1.0, epsilon=0.0):
    """Raise if a method, draft rows and numbers exclude each other."""
    if method == "race" and draft is not None:
        raise ValueError("draft: expected None with method='race', which needs no draft laws")
    if method != "rejection" and not (inputs.real(draft_prob) == 1 and inputs.real(epsilon) == 0):
        raise ValueError(f"draft_prob, epsilon: expected 1 and 0 with method={method!r}, which has no use for them")
    if draft is None and inputs.real(draft_prob) != 1:
        raise ValueError("draft_prob: expected 1 without draft laws, which its residual needs")


def check_one_temperature(temperature, sampling):
    """Raise for a temperature beside a Sampling, which has one."""
    if sampling is not None and temperature is not None:
        raise ValueError(f"temperature: expected None beside sampling=, which has one; got {inputs.shown(temperature)}")


def check_draft(name, draft, target, rows, more=False):
    """Check a Draft, whose rows are called ``name``. ``rows``: its leading shape, or with ``more`` the least."""
    inputs.check_rows(name, draft.rows, len(rows) + 1)
    inputs.check_device(name, draft.rows, target.device)
    lead = draft.rows.shape[:-1]
    if lead != rows and not (more and len(rows) == 2 and lead[0] == rows[0] and lead[1] > rows[1]):
        raise ValueError(f"{name}: expected shape {[*rows, 'V']}; got {inputs.shown(draft.rows)}")
    check_vocabularies(name, draft, target)


def check_vocabularies(name, draft, target):
    """Check that the draft's vocabulary is no larger than the target's, and that its map fits both."""
    draft_vocab, vocab = draft.rows.shape[-1], target.shape[-1]
    if draft_vocab > vocab:
        raise ValueError(
            f"{name}: expected a vocabulary no larger than the target's {vocab}; got {draft_vocab} (cut the draft's "
            f"logits to [..., :{vocab}] before tokens are drawn from them: rows that are cut afterwards are not the "
            "drafts' law)"
        )
    if draft.map is not None:
        check_draft_map("draft.map", draft.map, draft_vocab, vocab, target.device)


def check_draft_map(name, draft_map, draft_vocab, vocab, device):
    """Check an int32 map, rising, from the draft's tokens to the target's. ``vocab``: None without a target."""
    if isinstance(draft_map, torch.Tensor) and draft_map.dtype in (torch.int64, torch.bool):
        raise TypeError(f"{name}: expected a tensor of int32; got {inputs.shown(draft_map)} ({OF_CHECKPOINTS})")
    inputs.check_tensor(name, draft_map, (torch.int32,), 1)
    inputs.check_device(name, draft_map, device)
    if draft_map.shape[0] != draft_vocab or not draft_map.is_contiguous():
        raise ValueError(
            f"{name}: expected contiguous int32 [{draft_vocab}], a token of the target for each of the draft's; "
            f"got {inputs.shown(draft_map)}"
        )
    if not inputs.host_sees(draft_map):
        return
    least, most = int(draft_map[0]), int(draft_map[-1])
    if least < 0 or (vocab is not None and most >= vocab):
        inside = "tokens of 0 or more" if vocab is None else f"tokens inside [0, {vocab})"
        raise ValueError(f"{name}: expected {inside}; got {least} to {most}")
    falls = (draft_map[1:] <= draft_map[:-1]).nonzero()
    if len(falls):
        at = int(falls[0])
        raise ValueError(
            f"{name}: expected rising tokens; got {int(draft_map[at + 1])} after {int(draft_map[at])} "
            f"({OF_CHECKPOINTS}; tokens in another order become one by order = map.argsort(), with rows[..., order])"
        )


def check_index(request_index, requests, device):
    """Check that there is an index for each batch row."""
    kinds.REQUEST_INDEX.check("request_index", request_index, {"B": requests, "device": device})


def entries(draft, leading, *numbers):
    """S, the number of entries: of the draft, or else of the first tensor of numbers with ``leading`` dimensions or
    more. 1 without such tensors: all requests share the numbers.
    """
    if isinstance(draft, torch.Tensor) and draft.ndim:
        return draft.shape[0]
    sizes = [x.shape[0] for x in numbers if isinstance(x, torch.Tensor) and x.ndim >= leading]
    return next((size for size in sizes if size != 1), 1)


def numbers_in(*given):
    """The numbers in arguments, each a number, a tensor, a Sampling or None."""
    return [number for x in given for number in (x[:4] if isinstance(x, Sampling) else (x,))]


def number_shapes(target, rows, request_index, draft, *numbers):
    """For ops on rows: the shape of numbers as callers give them, and the backends' shape beside rows [A, R, V]."""
    lead = target.shape[:-1]
    if request_index is None:
        return lead, rows.shape[:2]
    if len(lead) not in (1, 2):
        raise ValueError(f"request_index: expected None, or rows [B, V] or [B, R, V]; got {inputs.shown(target)}")
    check_index(request_index, lead[0], target.device)
    requests = entries(draft, len(lead), *numbers)
    return (requests, *lead[1:]), (requests, rows.shape[1])

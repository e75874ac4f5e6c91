"""Hard inputs, and calls whose unused memory is poisoned."""

import torch
from torch.utils._pytree import tree_leaves

import specdec_kernels

SIZES = (1, 2, 7, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4097)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNTOUCHED = -77
FAR_ELEMENTS = 2**31 + 2**14  # elements of the room that far_chain needs


def seeds(count, first=0):
    return torch.arange(first, first + count)


def adversarial_rows(size, seed=0):
    """Rows of logits [named][size] on which a race that dismisses groups could err."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(size, generator=generator)
    at = torch.randperm(size, generator=generator)
    spiked = normal.clone()
    spiked[at[:2]] = 12.0
    together = torch.full((size,), -20.0)
    together[size // 64 * 64 :] = 0.0
    group = at[0] // 64 * 64
    together[group : group + 2] = 5.0
    sparse = torch.full((size,), -torch.inf)
    sparse[at[: max(1, size // 10)]] = normal[: max(1, size // 10)]
    peak = torch.full((size,), -30.0)
    peak[at[0]] = 0.0
    return {
        "normal": normal,
        "wide": 8 * normal,
        "flat": torch.zeros(size),
        "one peak": peak,
        "two peaks": spiked,
        "two peaks in one group": together,
        "ties": (2 * normal).round(),
        "rising": torch.linspace(-10, 10, size),
        "falling": torch.linspace(10, -10, size),
        "sparse": sparse,
        "only the last": torch.where(torch.arange(size) == size - 1, 0.0, -torch.inf),
        "1e4": 1e4 + normal,
        "-1e4": -1e4 + normal,
        "1e30": 1e30 * normal.sign() + normal,
        "infinite peak": torch.where(torch.arange(size) == at[0], torch.inf, normal),
        "with NaN": torch.where(torch.arange(size) % 3 == 1, torch.nan, normal),
        "largest": torch.full((size,), torch.finfo(torch.float32).max),
    }


def adversarial_pairs(size):
    """Pairs of rows of logits (target, draft), [n, size] both: every pair of kinds where they are narrow."""
    rows = torch.stack(list(adversarial_rows(size).values()))
    shifts = range(len(rows)) if size == 65 else (0, 1, 5)
    return rows.repeat(len(shifts), 1), torch.cat([rows.roll(shift, dims=0) for shift in shifts])


def assert_same(found, expected):
    """The tensors of two results are equal, one after the other, whatever holds them."""
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.equal(one, other), f"{one}, expected {other}"


def by_the_oracle(op, **call):
    with specdec_kernels.backend("reference"):
        return op(**call)


def assert_as_the_oracle(op, call):
    assert_same(op(**call), by_the_oracle(op, **call))


def poisoned(tensor, pad=5, start=3):
    """A tensor's values in rows with a padded stride and a misaligned start, NaN all around them."""
    *rows, last = tensor.shape
    room = torch.full((tensor[..., 0].numel() * (last + pad) + start,), torch.nan, dtype=tensor.dtype)
    view = room[start:].unflatten(0, (*rows, last + pad))[..., :last]
    return view.copy_(tensor)


def untouched_verdict(requests, width):
    return (
        torch.full((requests, width), UNTOUCHED),
        torch.full((requests,), UNTOUCHED, dtype=torch.int32),
        torch.full((requests,), UNTOUCHED, dtype=torch.int32),
    )


def chain_call(seed, requests=32, slots=4, vocabulary=65, draft_vocabulary=None, dtype=torch.float32, space="logits"):
    """Arguments of a verify_chain call with padded drafts, as a draft model makes them, and some that it never should.

    Some chains end early, some hold a token out of range or one the draft cannot make; temperatures are mixed.
    """
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(requests, slots + 1, vocabulary, generator=generator)
    draft = (target[:, :-1] + torch.randn(requests, slots, vocabulary, generator=generator))[..., :draft_vocabulary]
    if space == "probs":
        target, draft = target.softmax(-1), draft.softmax(-1)
    request_seeds = torch.randint(-(2**63), 2**63 - 1, (requests,), generator=generator)
    position = torch.randint(0, 2**31, (requests,), generator=generator)
    temperature = torch.tensor([1.0, 0.6, 0.0, 1.7])[torch.arange(requests) % 4]
    with specdec_kernels.backend("reference"):
        drafts = specdec_kernels.race_sample(
            draft, seed=request_seeds[:, None], position=position[:, None] + torch.arange(slots), space=space,
            temperature=temperature[:, None],
        )  # fmt: skip
    unlikely = torch.rand(requests, slots, generator=generator)
    drafts = torch.where(unlikely < 0.06, torch.randint(0, vocabulary, drafts.shape, generator=generator), drafts)
    drafts = torch.where(unlikely > 0.97, -1, drafts)
    drafts = torch.where((unlikely > 0.94) & (unlikely < 0.955), vocabulary + 3, drafts)
    drafts = torch.where((unlikely > 0.955) & (unlikely < 0.97), -9, drafts)
    return {
        "draft_tokens": drafts, "target": target.to(dtype), "draft": draft.to(dtype), "space": space,
        "temperature": temperature, "seed": request_seeds, "position": position,
    }  # fmt: skip


def spoilt(call):
    """A call with NaN, infinities, negative probabilities and rows without weight, anywhere."""
    generator = torch.Generator().manual_seed(7)
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, 0.0])
    for name in ("target", "draft"):
        where = torch.rand(call[name].shape, generator=generator) < 0.005
        kinds = strange[torch.randint(0, 5, call[name].shape, generator=generator)]
        call[name] = torch.where(where, kinds, call[name])
        for nothing in (torch.nan, -torch.inf if call["space"] == "logits" else 0.0):
            call[name][torch.rand(call[name].shape[:2], generator=generator) < 0.05] = nothing
    return call


def chain_as_tree(call):
    """Arguments of ``verify_tree`` for the drafts of ``chain_call``, each of which has one child."""
    tokens, draft, slots = call["draft_tokens"], call["draft"], call["draft_tokens"].shape[1]
    tokens = torch.cat([torch.full_like(tokens[:, :1], -1), tokens], 1)
    draft = torch.cat([draft, draft[:, -1:]], 1)  # a row for the leaf, which is not read
    return call | {"draft_tokens": tokens, "draft": draft, "parents": torch.arange(slots + 1) - 1, "max_depth": slots}


def ragged(call, counts):
    """A call with only the first counts[b] slots of request b, laid out one after the other."""
    bounds = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    pieces = {
        "draft_tokens": [row[:n] for row, n in zip(call["draft_tokens"], counts, strict=True)],
        "target": [row[: n + 1] for row, n in zip(call["target"], counts, strict=True)],
    }
    if call["draft"] is not None:
        pieces["draft"] = [row[:n] for row, n in zip(call["draft"], counts, strict=True)]
    return {**call, **{name: torch.cat(rows) for name, rows in pieces.items()}, "packing.cu_drafts": bounds}


def beside_threshold(op, call, name, index, accepted, high=1.0):
    """Two calls that differ by one unit in the last place of ``call[name][index]``, a float32 for each request, between
    0 and ``high``. The first is that of ``not accepted(verdict)``, the second that of ``accepted(verdict)``.
    """

    def at(bits):
        values = call[name].clone()
        values[index] = bits.view(torch.float32)
        return call | {name: values}

    with specdec_kernels.backend("cpu"):
        low = torch.zeros(len(call["target"])).int()
        high = torch.full(low.shape, high).view(torch.int32)  # ordered as the floats are
        while (high - low > 1).any():
            middle = low + (high - low) // 2
            yes = accepted(op(**at(middle)))
            high, low = torch.where(yes, middle, high), torch.where(yes, low, middle)
    return at(low), at(high)


def far_chain(room=None):
    """One request of two drafts that are accepted; its bfloat16 rows spread over all of ``room``, if there is one."""
    vocabulary, device = 1000, "cpu" if room is None else room.device
    rows = torch.full((5, vocabulary), -20.0, dtype=torch.bfloat16)
    rows[torch.arange(5), torch.tensor([5, 6, 7, 5, 6])] = 20.0
    target, draft = rows[None, :3], rows[None, 3:]
    if room is not None:
        target = room.as_strided((1, 3, vocabulary), (0, 2**30 + 2**12, 1)).copy_(target)
        draft = room.as_strided((1, 2, vocabulary), (0, 2**31, 1), 2048).copy_(draft)
    one = torch.ones(1, dtype=torch.int64, device=device)
    tokens = torch.tensor([[5, 6]], device=device)
    return {"draft_tokens": tokens, "target": target, "draft": draft, "seed": one, "position": one}

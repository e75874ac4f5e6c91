"""LogitEdits of logits by their definition: one token at a time, from sets and lists of tokens; and such cases
packed."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec_kernels import LogitEdits

FLOAT = np.float32


@dataclass
class Place:
    """The edits of one request, or of one row in ops on rows."""

    bias: dict = field(default_factory=dict)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    prompt: list = field(default_factory=list)
    output: list = field(default_factory=list)
    pending: list = field(default_factory=list)

    def edited(self, row, drafted=(), allowed=None):
        """The float32 logits of a row that comes after ``drafted``; ``allowed`` is a set."""
        z = row.float().numpy().copy()
        count = Counter([*self.output, *self.pending, *drafted])
        r, f, g = FLOAT(self.repetition), FLOAT(self.frequency), FLOAT(self.presence)
        with np.errstate(over="ignore", invalid="ignore"):
            for token in range(len(z)):
                if token in self.bias:
                    z[token] += FLOAT(self.bias[token])
                if token in self.prompt or count[token]:
                    z[token] *= FLOAT(1) / r if z[token] > 0 else r
                if count[token]:
                    z[token] -= f * FLOAT(count[token])
                    z[token] -= g
                if allowed is not None and token not in allowed:
                    z[token] = -np.inf
        return torch.from_numpy(z)


def bits_of(lists, vocabulary, words=None):
    """int32 [len(lists), words]: the tokens of each list. Bits past the vocabulary are set."""
    words = -(-vocabulary // 32) if words is None else words
    mask = np.zeros((len(lists), 32 * words), dtype=bool)
    for row, tokens in zip(mask, lists, strict=True):
        row[list(tokens)] = True
    mask[:, vocabulary:] = True
    return torch.from_numpy(np.packbits(mask, axis=-1, bitorder="little").view(np.int32).copy())


def bias_of(dictionaries):
    """(tokens, values, cu)."""
    entries = [sorted(one.items()) for one in dictionaries]
    flat = [entry for one in entries for entry in one]
    cu = np.cumsum([0, *(len(one) for one in entries)])
    return (
        torch.tensor([token for token, _ in flat], dtype=torch.int32),
        torch.tensor([value for _, value in flat], dtype=torch.float32),
        torch.tensor(cu, dtype=torch.int32),
    )


def packed(places, vocabulary, allowed=None):
    """The LogitEdits of places, [len(places), ...]; ``allowed`` is not changed."""
    counts = torch.zeros(len(places), vocabulary, dtype=torch.int32)
    for row, place in zip(counts, places, strict=True):
        for token in place.output:
            row[token] += 1
    width = max(len(place.pending) for place in places)
    return LogitEdits(
        allowed=allowed,
        bias=bias_of([place.bias for place in places]),
        repetition=torch.tensor([place.repetition for place in places]),
        frequency=torch.tensor([place.frequency for place in places]),
        presence=torch.tensor([place.presence for place in places]),
        prompt_mask=bits_of([place.prompt for place in places], vocabulary),
        output_mask=bits_of([place.output for place in places], vocabulary),
        # Counts without a bit must not be read.
        output_counts=torch.where(counts == 0, -(2**31), counts),
        pending=torch.tensor([place.pending + [-1] * (width - len(place.pending)) for place in places]).long(),
    )


def random_places(count, vocabulary, seed):
    """Places of all kinds: some with all edits, some with none."""
    rng = np.random.default_rng(seed)

    def tokens(most):
        return rng.integers(0, vocabulary, rng.integers(0, most)).tolist()

    found = []
    for i in range(count):
        bias = {token: float(rng.choice([-np.inf, rng.normal(), 0.0], p=[0.2, 0.7, 0.1])) for token in tokens(9)}
        place = Place(
            bias, *(float(FLOAT(x)) for x in (rng.choice([1.2, 0.8, 1.5]), rng.normal(0, 0.4), rng.normal(0, 0.4))),
            tokens(vocabulary // 4), tokens(vocabulary // 4), tokens(4),
        )  # fmt: skip
        found.append(place if i % 4 else Place())
    return found


def random_allowed(*lead, vocabulary, seed):
    """(int32 [*lead, words], the sets of tokens [lead flattened]): most of the vocabulary, once only one token."""
    rng = np.random.default_rng(seed)
    sets = [set(np.flatnonzero(rng.random(vocabulary) < 0.9).tolist()) or {0} for _ in range(int(np.prod(lead)))]
    sets[0] = {int(rng.integers(vocabulary))}
    return bits_of(sets, vocabulary).view(*lead, -1), sets


def random_edits(requests, *slots, vocabulary, seed, bias_by_row=False):
    """LogitEdits with everything, of rows [requests, *slots]: one mask of what is allowed for each row.

    Masks and counts are rows of wider tensors. Counts without a bit, and what lies past the vocabulary, are -1.
    """
    generator = torch.Generator().manual_seed(seed)
    words = -(-vocabulary // 32)

    def bits(*lead, share):
        found = (torch.rand(*lead, 32 * words, generator=generator) < share).numpy()
        found[..., vocabulary:] = True
        packed = torch.from_numpy(np.packbits(found, axis=-1, bitorder="little").view(np.int32))
        return wide(packed), torch.from_numpy(found[..., :vocabulary])

    def wide(x):
        return torch.cat([x, torch.full_like(x[..., :1], -1)], -1)[..., :-1]

    def number(low, high):
        return low + (high - low) * torch.rand(requests, generator=generator)

    output, in_output = bits(requests, share=0.02)
    counts = torch.randint(1, 5, (requests, vocabulary), generator=generator, dtype=torch.int32)
    rows = (requests, *slots) if bias_by_row else (requests,)
    size = max(1, vocabulary // 100)
    tokens = (
        torch.rand(torch.Size(rows).numel(), vocabulary, generator=generator).topk(size, -1).indices.sort(-1).values
    )
    begins = size * torch.arange(len(tokens) + 1, dtype=torch.int32)
    return LogitEdits(
        allowed=bits(requests, *slots, share=0.8)[0],
        bias=(
            tokens.flatten().int(),
            torch.randn(tokens.numel(), generator=generator),
            torch.stack([begins[:-1], begins[1:]], -1).view(*rows, 2) if bias_by_row else begins,
        ),
        repetition=number(0.7, 1.5),
        frequency=number(-0.2, 0.5),
        presence=number(-0.2, 0.5),
        prompt_mask=bits(requests, share=0.05)[0],
        output_mask=output,
        output_counts=wide(torch.where(in_output, counts, -1)),
        pending=torch.randint(-1, vocabulary, (requests, 3), generator=generator),
    )


def spoiled(edits, vocabulary):
    """Edits with values out of range in some requests, and tokens that are none or do not rise."""
    numbers = edits.repetition.clone(), edits.frequency.clone(), edits.presence.clone()
    for i, (x, bad, off) in enumerate(zip(numbers, (0.0, torch.nan, torch.inf), (1.0, 0.0, 0.0), strict=True)):
        x[i::5], x[3::5] = bad, off
    tokens, values, spans = (x.clone() for x in edits.bias)
    for i, bad in enumerate((-1, vocabulary, 0)):
        tokens[3 + i :: 7] = bad
    spans.view(-1)[-1] = 2**31 - 1
    pending = edits.pending.clone()
    pending[::2, 1], pending[:, -1] = vocabulary, pending[:, 0]
    return edits._replace(
        bias=(tokens, values, spans), repetition=numbers[0], frequency=numbers[1], presence=numbers[2], pending=pending
    )  # fmt: skip

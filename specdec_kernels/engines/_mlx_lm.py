"""Reading, rewinding and rounds with mlx-lm's models, for `engines.mlx_lm`. It imports mlx and mlx_lm."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.cache import make_prompt_cache

import specdec_kernels as specdec
from specdec_kernels import Draft, Sampling
from specdec_kernels.engines import counters
from specdec_kernels.status import raise_for_status

generation = importlib.import_module("mlx_lm.generate")  # the package has a function of that name


def caches_of(model: Any, draft_model: Any, given: list[Any] | None) -> tuple[list[Any], list[Any]]:
    """The caches of the target and of the draft."""
    if given is not None:
        layers = len(model.layers)
        return given[:layers], given[layers:]
    return make_prompt_cache(model), [] if draft_model is None else make_prompt_cache(draft_model)


def new_seed() -> int:
    """64 bits from mlx's generator."""
    return sum(part << 16 * at for at, part in enumerate(mx.random.randint(0, 2**16, (4,)).tolist())) - 2**63


def to_torch(array: mx.array) -> torch.Tensor:
    """The array without a copy, in memory that mlx shares with the CPU. NumPy has no bfloat16."""
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.asarray(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array))


class Text:
    """The tokens of this call, the first at position `start` of the whole text, and processors of its logits."""

    def __init__(self, prompt: mx.array | Sequence[int], start: int, processors: Sequence[Callable[..., Any]]) -> None:
        self.tokens = prompt.tolist() if isinstance(prompt, mx.array) else list(prompt)
        self.start, self.processors = start, processors

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self.start + len(self.tokens)

    def processed(self, rows: mx.array, drafts: list[int]) -> mx.array:
        """Logits [R, V] after the last R of text and drafts, processed, each with the tokens before it."""
        if not self.processors:
            return rows
        tokens, chunks = mx.array(self.tokens + drafts, mx.uint32), []
        for row, end in enumerate(range(tokens.size - len(rows) + 1, tokens.size + 1)):
            logits = rows[row : row + 1]
            for processor in self.processors:
                logits = processor(tokens[:end], logits)
            chunks.append(logits)
        return mx.concatenate(chunks)


class Reader:
    """A model and its cache, which holds the first `length` tokens of a text, after the entries that it had before.

    Recurrent states and full windows cannot remove a token. Where an entry may be such a one, the states before each
    read of a round are saved, in `before`: tokens accepted since the newest state that serves are read again, with the
    next ones.
    """

    def __init__(
        self, model: Any, cache: list[Any], name: str, stream: mx.Stream | None, step: int,
        quantization: tuple[int, int, int | None], drafting: bool, most: int,
    ) -> None:  # fmt: skip
        self.model, self.cache, self.name, self.step, self.quantization = model, cache, name, step, quantization
        self.stateful = drafting and not all(map(rewinds, flat(cache)))
        self.most, self.before = most if self.stateful else 2, []
        self.stream = generation.generation_stream if stream is None else stream
        self.length, self.offset = 0, max((int(getattr(each, "offset", 0)) for each in flat(cache)), default=0)
        self.vocabulary = model(mx.zeros((1, 1), mx.uint32)).shape[-1]  # mlx is lazy: nothing is computed

    def read(self, tokens: list[int], rows: int) -> mx.array:
        """Logits [rows, V] after each of the last `rows` tokens, of which the cache has none."""
        with mx.stream(self.stream):
            # A few tokens more cost less than a call; logits for every token of a prompt would cost more.
            while (more := len(tokens) - rows - self.length) >= self.most:
                self._forward(tokens[self.length : self.length + min(more, self.step)])
                mx.eval([each.state for each in self.cache])
                mx.clear_cache()
            return self._forward(tokens[self.length :])[0, -rows:]

    def _forward(self, tokens: list[int]) -> mx.array:
        if self.stateful:
            self.before.append(
                (self.length, [None if rewinds(each) else copied(each.state) for each in flat(self.cache)])
            )
        in_range = [token if token < self.vocabulary else 0 for token in tokens]
        logits = self.model(mx.array([in_range], mx.uint32), cache=self.cache)
        generation.maybe_quantize_kv_cache(self.cache, *self.quantization)
        self.length += len(tokens)
        return logits

    def rewind(self, length: int) -> None:
        """Remove the tokens from position `length` on."""
        parts = flat(self.cache)
        states, whole = [None] * len(parts), all(each.is_trimmable() for each in parts)
        if self.length > length and not whole:
            length, states = next(entry for entry in reversed(self.before) if entry[0] <= length)
        count = self.length - length
        if count <= 0:
            return
        for each, state in zip(parts, states, strict=True):
            if state is not None:
                each.state = copied(state)
            elif (trimmed := each.trim(count)) != count:
                raise RuntimeError(
                    f"{self.name}: expected a cache that rewinds by {count}; {type(each).__name__} did by {trimmed}"
                )
        self.length = length

    def catch_up(self, tokens: list[int]) -> None:
        """Read all of these tokens that the cache lacks."""
        self.rewind(len(tokens))
        if self.length < len(tokens):
            self.read(tokens, 1)
            mx.eval([each.state for each in self.cache])


def flat(cache: list[Any]) -> list[Any]:
    """The entries, with those inside of a CacheList."""
    return [part for each in cache for part in (flat(each.caches) if hasattr(each, "caches") else [each])]


def rewinds(entry: Any) -> bool:
    """Whether an entry can remove tokens, however long the text is."""
    return entry.is_trimmable() and not hasattr(entry, "max_size")


def copied(state: Any) -> Any:
    """A copy of an entry's state: later writes to the entry do not change it, although mlx shares memory."""
    if isinstance(state, (list, tuple)):
        return type(state)(map(copied, state))
    return mx.array(state) if isinstance(state, mx.array) else state


def rounds(
    text: Text, readers: list[Reader], method: str, most: int, left: int, sampling: Sampling, seed: int, kept: bool
) -> Iterator[tuple[int, mx.array, bool]]:
    """Draft, read, verify, rewind. With `kept` the caches hold all yielded tokens, wherever the caller stops."""
    target, count = readers[0], 0
    try:
        while left:
            count += 1
            for reader in readers:
                reader.before = []
            # A block's refused draft decides about tokens before it, so each round needs other noise.
            noise = dict(seed=seed, nonce=count if method == "block" else 0, sampling=sampling)
            wanted = most if left < 0 else min(most, left - 1)
            drafts, laws = draft(text, readers[-1], wanted, target.vocabulary, noise)
            rows = text.processed(target.read(text.tokens + drafts, wanted + 1), drafts)
            verdict = specdec.verify_chain(
                torch.tensor([drafts], dtype=torch.int64, device="cpu"), to_torch(rows)[None],
                Draft(torch.stack(laws)[None], sampling=sampling) if laws and method != "race" else None,
                method=method, position=text.position, **noise,
            )  # fmt: skip
            raise_for_status("verify_chain", verdict.status)  # check=True would read the rows once more
            accepted, end = int(verdict.num_accepted), len(text.tokens)
            counters.count("mlx-lm", len(drafts), accepted)
            for reader in readers:
                reader.rewind(end + accepted)
            for slot, token in enumerate(verdict.tokens[0, : accepted + 1].tolist()):
                text.tokens.append(token)
                yield token, rows[slot] - mx.logsumexp(rows[slot]), slot < accepted
            left -= accepted + 1 if left > 0 else 0
    finally:
        for reader in readers if kept else ():
            reader.catch_up(text.tokens)


def draft(
    text: Text, reader: Reader, count: int, vocabulary: int, noise: dict[str, Any]
) -> tuple[list[int], list[torch.Tensor]]:
    """Tokens drawn by the race with the noise of their positions, and the logits [V'] that they were drawn from."""
    drafts: list[int] = []
    laws: list[torch.Tensor] = []
    for _ in range(count):
        rows = text.processed(reader.read(text.tokens + drafts, 1), drafts)
        laws.append(to_torch(rows)[0, :vocabulary])
        drafts.append(int(specdec.race_sample(laws[-1], position=text.position + len(drafts), **noise)))
    return drafts, laws

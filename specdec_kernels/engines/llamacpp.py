"""llama.cpp, by llama-cpp-python, under our generator. Seen: llama-cpp-python 0.3.36.

- `generate` writes texts by any of our methods, with one or two models in GGUF. It replaces ``Llama.generate`` and
  ``Llama(draft_model=...)``, which verify a draft by sampling afresh and comparing.
- `install` makes a Llama write so, and with it ``llama_cpp.server``.
- `LlamaModel` and `LlamaDrafter` are a model and a drafter for `specdec_kernels.generate`.
- `LlamaDraft` and `RaceProcessor` bring the race into llama-cpp-python's loop.
- `write_gguf` writes the embedded pair as GGUF.

For C++ see ``examples/llamacpp_sampler.cpp``.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import counters
from specdec_kernels.generate.drafters import ModelDrafter
from specdec_kernels.generate.rounds import PENDING

if TYPE_CHECKING:
    from llama_cpp import Llama

    from specdec_kernels.engines._llamacpp import Context, LlamaReader
    from specdec_kernels.generate import Drafter, Generation

__all__ = [
    "LlamaDraft", "LlamaDrafter", "LlamaModel", "RaceProcessor", "generate", "install", "uninstall", "write_gguf",
]  # fmt: skip

# Arguments of ``Llama.generate`` without a rule in ours, with the values that switch them off.
OFF = {
    "typical_p": 1.0, "mirostat_mode": 0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "logits_processor": None, "stopping_criteria": None, "grammar": None,
}  # fmt: skip


class LlamaModel:
    """A Llama for our loop, which reads in other contexts, so that the Llama's context stays unchanged.

    They take the Llama's settings (threads, batch sizes, types of the cache, flash attention, RoPE) and share its
    weights. A context has room for the texts of a call, and is used again by the next call that fits. The Llama's
    context is not used: make it small (``Llama(..., n_ctx=32)``), and give `n_ctx`, the longest text in tokens, where
    memory is short. The Llama must stay open. Errors call it `name`. NotImplementedError that names it: models with
    an encoder or of diffusion; LoRA adapters, which belong to the Llama's context.
    """

    device = torch.device("cpu")  # the logits' device, wherever the layers are
    shard = None  # its rows are whole

    def __init__(self, llama: Llama, *, n_ctx: int | None = None, name: str = "model") -> None:
        lib = importlib.import_module("llama_cpp")
        self.llama, self.name, self.max_length = llama, name, n_ctx or llama.n_ctx()
        for kind, has_kind in ("an encoder", lib.llama_model_has_encoder), ("diffusion", lib.llama_model_is_diffusion):
            if has_kind(llama.model):
                raise NotImplementedError(f"{name}: expected a decoder; got a model with {kind}")
        self.recurrent = lib.llama_model_is_recurrent(llama.model) or lib.llama_model_is_hybrid(llama.model)
        if llama.lora_path:
            raise NotImplementedError(f"{name}: expected no lora_path; got {llama.lora_path}")
        self.vocab = lib.llama_model_get_vocab(llama.model)
        self.config = SimpleNamespace(vocab_size=llama.n_vocab())
        self.tokens_read = llama.n_vocab()
        self.tokenizer = None if lib.llama_vocab_type(self.vocab) == lib.LLAMA_VOCAB_TYPE_NONE else _Text(llama)
        self.spare: list[Context] = []

    @functools.cached_property
    def eos_token_ids(self) -> set[int]:
        """The tokens that end a generation (``llama_vocab_is_eog``)."""
        ends = importlib.import_module("llama_cpp").llama_vocab_is_eog
        return {token for token in range(self.tokens_read) if self.tokenizer and ends(self.vocab, token)}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with the BOS that the model is configured to have."""
        if self.tokenizer is None:
            raise ValueError(f"expected token ids for {self.name}, which has no tokenizer; got a text")
        return self.llama.tokenize(text.encode())

    def text_of(self, token: int) -> str:
        """The text of one token; its number without a tokenizer."""
        return str(token) if self.tokenizer is None else self.tokenizer.decode([token])

    def reader(self, batch: int, capacity: int, keeps: bool = False) -> LlamaReader:
        """A reader for a batch of texts of at most `capacity` tokens; with `keeps` its logits outlast the next read."""
        parts = importlib.import_module("specdec_kernels.engines._llamacpp")
        spec = parts.ModelSpec(self.llama, self.name, self.recurrent, self.spare)
        return parts.LlamaReader(spec, batch, capacity, keeps)

    def check_readable(self) -> None:
        """Does nothing: models that cannot be read were refused."""

    def check_trees(self) -> None:
        """Raise ValueError if some layers have a state, which cannot branch."""
        if self.recurrent:
            raise ValueError(f"tree: expected chains with {self.name}, which has recurrent layers; got a tree")


class _Text:
    """A tokenizer's decoder, without special tokens, which caches each token's bytes."""

    def __init__(self, llama: Llama) -> None:
        self.piece = functools.cache(lambda token: llama.detokenize([token]))

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")


class LlamaDrafter(ModelDrafter):
    """Drafts chains and trees by sampling from a Llama: a `ModelDrafter` of `specdec_kernels.generate`.

    It has the target's tokens. Where its vocabulary is the smaller one, the others are never drafted.
    """

    def __init__(self, draft: Llama | LlamaModel) -> None:
        super().__init__(_model(draft, "draft"))

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        # A drafter returns the laws of all its tokens at once; llama.cpp holds those of the last read alone.
        self.reader, self.vocabulary = self.language_model.reader(batch, capacity, keeps=True), vocabulary


def _model(llama: Llama | LlamaModel, name: str) -> LlamaModel:
    return llama if isinstance(llama, LlamaModel) else LlamaModel(llama, name=name)


def generate(
    prompts: Sequence[str | Sequence[int]],
    target: Llama | LlamaModel,
    draft: Llama | LlamaModel | Drafter | None = None,
    **options: Any,
) -> list[Generation]:
    """Write on from every prompt: `specdec_kernels.generate.generate`, with models of llama.cpp.

    The law is the target's, in every method. "race" writes the text of "plain" with the same seed, whatever the draft,
    if llama.cpp gives the same logits however many tokens it reads at once. The tokens differ from those of
    llama.cpp's ``dist`` with the same seed. ``sampling=Sampling.llamacpp(temperature, top_k, top_p, min_p)`` has the
    order of llama.cpp's default chain, and its ties except those that its sort leaves open.

    Parameters
    ----------
    prompts : list of str or of list of int
        Texts, or lists of token ids: a batch of any size.
    target : Llama or LlamaModel
        Make a LlamaModel once to use its contexts again.
    draft : Llama, LlamaModel or Drafter, optional
        A model that drafts, or for instance an ``NgramDrafter()``, which looks up. Method "plain" does not use it.
    **options : optional
        All others of `specdec_kernels.generate.generate`, whose results and errors these are.

    Raises
    ------
    NotImplementedError, ValueError, RuntimeError
        Models as in `LlamaModel`; a draft whose tokens are others than the target's, more than 256 texts times leaves
        of a tree, or more rows a call than the target's ``n_batch``; llama.cpp cannot decode.
    """
    from specdec_kernels.generate import generate as write

    target = _model(target, "target")
    texts = write(prompts, target, _drafter(target, draft, options), **options)
    for entry in itertools.chain.from_iterable(text.rounds for text in texts):
        counters.count("llama.cpp", entry.drafted, entry.accepted)
    return texts


def _drafter(target: LlamaModel, draft: Llama | LlamaModel | Drafter | None, options: dict[str, Any]) -> Drafter | None:
    """The drafter for these options, checked."""
    from specdec_kernels.generate import Drafter

    if options.get("method") == "plain":
        return None
    drafter = draft if isinstance(draft, Drafter | None) else LlamaDrafter(draft)
    if isinstance(drafter, LlamaDrafter):
        check_vocabularies(target, drafter.language_model)
    return drafter


def install(target: Llama | LlamaModel, draft: Llama | LlamaModel | Drafter | None = None, **options: Any) -> None:
    """Make a Llama write by our loop: its ``generate``, and so its completions, its chats and ``llama_cpp.server``.

    Seeds, temperature, top-k, top-p and min-p are those of the Llama's call; texts are those of our `generate`, with
    its ``draft``, ``method``, ``k``, ``tree``, ``policy`` and errors, and no longer than the draft's context. A call
    with options that ours lacks (`OFF`: penalties, grammars, processors such as a bias, typical, mirostat) writes as
    before, and so does one with a temperature below 0. Several threads may write texts at once. A prompt is read anew
    for each text. A Llama with ``logits_all``, which the log-probabilities of llama-cpp-python's loop need, is a
    NotImplementedError.
    """
    from specdec_kernels.generate import stream

    target = _model(target, "target")
    llama, drafter = target.llama, _drafter(target, draft, options)
    if llama._logits_all:
        raise NotImplementedError("target: expected a Llama with logits_all=False; got one with logits_all")
    generate = type(llama).generate.__get__(llama)
    signature = inspect.signature(generate)
    most = min(model.max_length for model in (target, drafter and drafter.language_model) if model)

    @functools.wraps(generate)
    def write(*args: Any, **keywords: Any) -> Iterator[int]:
        given = signature.bind(*args, **keywords)
        given.apply_defaults()
        arguments = given.arguments
        if arguments["temp"] < 0 or any(arguments[name] != off for name, off in OFF.items()):
            return generate(*args, **keywords)
        tokens = list(arguments["tokens"])
        rounds = stream(
            [tokens], target, copy.copy(drafter), seed=llama._seed, max_new_tokens=most - len(tokens),
            sampling=Sampling.llamacpp(arguments["temp"], arguments["top_k"], arguments["top_p"], arguments["min_p"]),
            eos_token_ids=[], **options,
        )  # fmt: skip

        def tokens_of() -> Iterator[int]:
            for entry in rounds:
                counters.count("llama.cpp", entry.drafted, entry.accepted)
                yield from entry.tokens

        return tokens_of()

    llama.generate = write


def uninstall(target: Llama | LlamaModel) -> None:
    """Restore a Llama's ``generate``."""
    vars(_model(target, "target").llama).pop("generate", None)


def check_vocabularies(target: LlamaModel, draft: LlamaModel) -> None:
    """Raise ValueError unless both models agree on all tokens of both vocabularies."""
    if target.tokenizer is None or draft.tokenizer is None or target.llama is draft.llama:
        return
    lib = importlib.import_module("llama_cpp")
    for token in range(min(target.tokens_read, draft.tokens_read)):
        ours, theirs = (lib.llama_vocab_get_text(model.vocab, token) for model in (target, draft))
        if ours != theirs:
            raise ValueError(f"draft: expected the target's tokens; token {token} is {ours!r}, got {theirs!r}")


class LlamaDraft:
    """Drafts for llama-cpp-python's loop, drawn by a race: ``Llama(..., draft_model=LlamaDraft(draft))``.

    A ``LlamaDraftModel`` of ``llama_cpp.llama_speculative``. That loop draws every token from the target and accepts a
    draft that is equal. With a `RaceProcessor` of the same seed and sampling the target draws with the noise of the
    draft, so that they are equal more often; without one a draft is accepted with its probability. There are `k`
    drafts a round, fewer where the draft's context ends. ``seed`` and ``sampling`` are those of ``race_sample``.
    """

    def __init__(
        self, draft: Llama | LlamaModel, k: int = 4, *, seed: int = 0, sampling: Sampling | None = None
    ) -> None:
        self.model, self.k, self.seed, self.sampling = _model(draft, "draft"), k, seed, sampling or Sampling()
        self.read_tokens: list[int] = []

    def __call__(self, input_ids: np.ndarray, /, **_: Any) -> np.ndarray:
        """Drafts, int32, after these tokens."""
        length, most = len(input_ids), self.model.max_length
        count = max(0, min(self.k, most - length))
        if not self.read_tokens:
            self.reader = self.model.reader(1, most)
        text = torch.zeros(1, length + count, dtype=torch.int64, device="cpu")
        text[0, :length] = torch.from_numpy(np.asarray(input_ids, np.int64))
        pairs = zip(self.read_tokens, text[0, : length - 1].tolist(), strict=False)
        self.reader.roll_back([next((at for at, (old, new) in enumerate(pairs) if old != new), length - 1)])
        self.reader.settle(text, [length], PENDING)
        for end in range(length, length + count):
            logits = self.reader.read(text, [end], rows=1)[0, 0]
            text[0, end] = specdec.race_sample(logits, seed=self.seed, position=end, sampling=self.sampling)
        self.read_tokens = text[0].tolist()
        return text[0, length:].numpy().astype(np.intc)


class RaceProcessor:
    """A logits processor that makes llama-cpp-python's loop draw by our race.

    ``llama.generate(tokens, logits_processor=LogitsProcessorList([RaceProcessor(seed=1)]), temp=0.0)``. It leaves one
    token in each row, that which the race draws: the text is that of `generate` with method "plain" and the same seed.
    Samplers that follow have no choice left; ``temp=0.0`` makes them cheap. That loop passes a processor neither the
    row of a round nor the beginning of a text: use one for each generation. ``seed`` and ``sampling`` are those of
    ``race_sample``; filters are ours, so switch off those of the loop.
    """

    def __init__(self, *, seed: int = 0, sampling: Sampling | None = None) -> None:
        self.seed, self.sampling = seed, sampling or Sampling()
        self.position: int | None = None

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Scores [V] with -inf for all tokens but one."""
        self.position = len(input_ids) if self.position is None else self.position + 1
        row = torch.from_numpy(np.ascontiguousarray(scores, np.float32))
        token = specdec.race_sample(row, seed=self.seed, position=self.position, sampling=self.sampling)
        alone = np.full(len(scores), -np.inf, np.float32)
        alone[int(token)] = 0.0
        return alone


def write_gguf(name: str, path: str | Path) -> Path:
    """Write "embedded:target" or "embedded:draft" as GGUF, in float32; the path. It needs the package ``gguf``."""
    importlib.import_module("specdec_kernels.engines._gguf").write(name, Path(path))
    return Path(path)

"""Hugging Face causal language models behind one call: logits after the last tokens of every text of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer
from transformers.utils import logging

import specdec_kernels as specdec

EMBEDDED = Path(__file__).resolve().parent.parent / "models"


class SlotCache(Cache):
    """Keys and values of a batch of texts, stored by absolute position in one preallocated tensor per layer.

    The entry of the token at position i lies in slot i, whatever the other texts of the batch hold. A query at
    position i sees slots 0..i, all written by the text as it now stands. So rolling a text back costs nothing: rejected
    tokens lie beyond its end, where no query looks until they are overwritten.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.batch, self.capacity, self.used = batch, capacity, 0
        self.entries: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rows = self.slots = torch.empty(0)

    def write_at(self, slots: torch.Tensor, used: int) -> None:
        """Send the next entries to `slots`, int64 [batch, T]; queries are shown slots 0..used - 1."""
        self.rows, self.slots, self.used = torch.arange(self.batch, device=slots.device)[:, None], slots, used

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == len(self.entries):
            self.entries.append((self._empty(keys), self._empty(values)))
        for kept, new in zip(self.entries[layer_idx], (keys, values), strict=True):
            kept[self.rows, :, self.slots] = new.transpose(1, 2)
        known_keys, known_values = self.entries[layer_idx]
        return known_keys[:, :, : self.used], known_values[:, :, : self.used]

    def _empty(self, new: torch.Tensor) -> torch.Tensor:
        # Zeros, not garbage: a masked slot has weight 0, and 0 times NaN is NaN.
        return new.new_zeros(self.batch, new.shape[1], self.capacity, new.shape[3])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.used

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every text but those of index `rows`."""
        self.batch = len(rows)
        self.entries = [(keys[rows], values[rows]) for keys, values in self.entries]


class LanguageModel:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    model : a transformers causal language model with full attention
    tokenizer : its tokenizer, or None where only token ids are used
    name : what errors call it
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str = "model"
    ) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.config = model.config.get_text_config()
        self.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self.keeps_logits = "logits_to_keep" in parameters
        if "position_ids" not in parameters or "past_key_values" not in parameters:
            raise ValueError(f"{name}: expected a model with position_ids and a cache; got {type(model).__name__}")

    @property
    def max_length(self) -> int | None:
        """The longest text, in tokens: learnt positions, or the window of the layers that have one."""
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        if unknown := kinds - {"full_attention", "sliding_attention"}:
            raise ValueError(f"{self.name}: expected attention layers; got {', '.join(sorted(unknown))}")
        window = getattr(self.config, "sliding_window", None) if "sliding_attention" in kinds else None
        lengths = [length for length in (getattr(self.config, "max_position_embeddings", None), window) if length]
        return min(lengths, default=None)

    @property
    def eos_token_ids(self) -> set[int]:
        eos = self.model.generation_config.eos_token_id
        return set(eos) if isinstance(eos, list) else set() if eos is None else {eos}

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]

    def reader(self, batch: int, capacity: int) -> Reader:
        return Reader(self, batch, capacity)


class Reader:
    """A model that is reading a batch of texts: `cached[b]` tokens of text b are in its cache."""

    def __init__(self, language_model: LanguageModel, batch: int, capacity: int) -> None:
        self.language_model, self.cache, self.cached = language_model, SlotCache(batch, capacity), [0] * batch
        self.last_position = (language_model.max_length or capacity) - 1
        self.calls = 0

    @torch.no_grad()
    def read(self, text: torch.Tensor, end: list[int], rows: int) -> torch.Tensor:
        """Read text[b, cached[b]:end[b]] and give the logits [B, rows, V] after each of its last `rows` tokens.

        Texts that have fewer tokens to read than others are padded on the right: what is computed and cached there is
        never looked at, and overwritten when the text gets there.
        """
        begin, device = torch.tensor(self.cached), text.device
        lengths = torch.tensor(end) - begin
        width = int(lengths.max())
        used = min(int(begin.max()) + width, self.cache.capacity)
        slots = (begin[:, None] + torch.arange(width)).clamp_(max=self.cache.capacity - 1).to(device)
        hidden = torch.arange(used, device=device) > slots[:, :, None]
        first = int((lengths - rows).min())
        logits = self._forward(text.gather(1, slots), slots, slots, hidden, width - first)
        self.cached = list(end)
        offset = (lengths - rows - first).to(device)
        if logits.shape[1] == rows:
            return logits
        wanted = offset[:, None] + torch.arange(rows, device=device)
        return logits[torch.arange(len(end), device=device)[:, None], wanted]

    @torch.no_grad()
    def read_tree(
        self, text: torch.Tensor, length: list[int], parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor
    ) -> torch.Tensor:
        """Read `nodes` of a draft tree rooted at the last of `length[b]` tokens: the logits [B, nodes, V] after each.

        The tree has one shape, `parents` [N], for all texts, and `tokens` [B, N] by node, -1 where absent. Node i of
        text b goes to slot length[b] - 1 + i, at the position of its depth, and sees the tokens before the root, its
        ancestors and itself; those must have been read, or be among `nodes`. What was not read of the text before the
        root is read with them.

        Texts with less left to read than others repeat, on the left, tokens that are in their cache.
        """
        root = torch.tensor(length, device=text.device) - 1
        unread = max(end - 1 - cached for end, cached in zip(length, self.cached, strict=True))
        before = (root[:, None] + torch.arange(-unread, 0, device=text.device)).clamp_(min=0)
        used = max(length) - 1 + parents.shape[-1]
        hidden = torch.arange(used, device=text.device) > before[:, :, None]
        seen = specdec.tree_mask(parents, prefix_len=root, columns=used)[:, nodes]
        logits = self._forward(
            torch.cat([text.gather(1, before), tokens[:, nodes].clamp(min=0)], dim=1),
            torch.cat([before, root[:, None] + nodes], dim=1),
            torch.cat([before, specdec.tree_positions(parents, prefix_len=root)[:, nodes]], dim=1),
            torch.cat([hidden, ~seen], dim=1),
            len(nodes),
        )
        self.cached = [end - 1 for end in length]
        return logits

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        """Make the first `read[b]` nodes of path [B, D + 1] the continuation of the text before the root."""
        root = torch.tensor(length, device=path.device) - 1
        specdec.compact_kv(self.cache.entries, path, prefix_len=root)
        self.cached = [end - 1 + count for end, count in zip(length, read, strict=True)]

    def _forward(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor, rows: int
    ) -> torch.Tensor:
        """Logits [B, rows, V] after the last of `tokens` [B, T], which go to cache slots and see those not hidden."""
        model = self.language_model.model
        self.cache.write_at(slots, hidden.shape[2])
        mask = torch.zeros_like(hidden, dtype=model.dtype).masked_fill_(hidden, torch.finfo(model.dtype).min)
        keep = {"logits_to_keep": rows} if self.language_model.keeps_logits else {}
        logits = model(
            input_ids=tokens, attention_mask=mask[:, None], past_key_values=self.cache, use_cache=True,
            position_ids=positions.clamp(max=self.last_position), **keep,
        ).logits[:, -rows:]  # fmt: skip
        self.calls += 1
        return logits.float() if logits.dtype == torch.float64 else logits

    def roll_back(self, length: list[int]) -> None:
        """Forget what was read at positions length[b] and beyond."""
        self.cached = [min(cached, end) for cached, end in zip(self.cached, length, strict=True)]

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.cached = [self.cached[row] for row in rows]
        self.cache.keep(torch.tensor(rows, dtype=torch.int64, device=self.language_model.device))


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_model(directory: str | Path, *, dtype: str | torch.dtype = "float32", device: str = "cpu") -> LanguageModel:
    """Load a causal language model and its tokenizer from a directory or the local Hugging Face cache, not the network.

    Parameters
    ----------
    directory : a Hugging Face model directory; "embedded:target" and "embedded:draft" are the pair in this package
    dtype : what the model computes in; with float64, forwards of any shape give the same float32 logits
    device : "cpu" or "cuda"

    Raises
    ------
    ValueError : nothing there, or not a causal language model

    Examples
    --------
    >>> model = load_model("embedded:draft")
    >>> model.encode("To be")
    [256, 84, 111, 32, 98, 101]
    """
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    name = str(directory)
    path = EMBEDDED / name.removeprefix("embedded:") if name.startswith("embedded:") else name
    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0] if Path(path).is_dir() else "no such directory"
        raise ValueError(f"{name}: expected a Hugging Face causal language model directory ({reason})") from error
    return LanguageModel(model.to(device), tokenizer, name)


def check_vocabularies(target: LanguageModel, draft: LanguageModel) -> None:
    """Raise ValueError unless every token of the draft's tokenizer has the same id in the target's."""
    if target.tokenizer is None or draft.tokenizer is None:
        if draft.config.vocab_size > target.config.vocab_size:
            raise ValueError(
                f"draft {draft.name}: expected a vocabulary of at most {target.config.vocab_size} tokens, "
                f"that of target {target.name}; got {draft.config.vocab_size}"
            )
        return
    known = target.tokenizer.get_vocab()
    strangers = [token for token, index in draft.tokenizer.get_vocab().items() if known.get(token) != index]
    if strangers:
        raise ValueError(
            f"draft {draft.name}: expected the vocabulary of target {target.name}; "
            f"got {len(strangers)} tokens that are not in it under the same id (such as {strangers[0]!r})"
        )

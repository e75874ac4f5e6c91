"""Models that read: a cache by position, and forwards over what is new of every text of a batch."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

import specdec_kernels as specdec

CACHES = "past_key_values", "cache", "cache_params", "state"
"""What models call their caches; those of the first two names are filled by `Cache.update`."""
FULL, SLIDING, CHUNKED, STATE = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
LENDING = threading.Lock()  # held while a module has buffers that are lent to it: every thread that reads sees them


class Layers(NamedTuple):
    """A model's layers: by the name of a mask, how many tokens they see (None: all); whether some have states."""

    windows: dict[str, int | None]
    recurrent: bool


class ModelSpec(NamedTuple):
    """What a reader takes of a `models.LanguageModel`: its attributes of these names, and `last_position`."""

    model: PreTrainedModel
    layers: Layers | None
    first_position: int
    last_position: int | None  # the highest, from 0, that an entry of a text may have; None: that of the cache's end
    recurrent: bool
    cache_argument: str
    keeps_logits: bool
    may_cache: bool


class SlotCache(Cache):
    """Keys and values of a batch of texts, stored by absolute position in one preallocated tensor per layer.

    The entry of the token at position i lies in slot i, whatever the other texts of the batch hold. A query at
    position i sees slots 0..i, all written by the text as it now stands. So rolling a text back costs nothing: no query
    sees rejected tokens before they are overwritten. Layers with a window hold the whole text, too; masks cut it.

    A recurrent layer has states instead of slots, [batch, ...] after the last token that was read. A forward makes
    new tensors of them and leaves the old ones as they are, so that these can be put back.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.batch, self.capacity, self.used = batch, capacity, 0
        self.entries: dict[tuple[str, int], torch.Tensor] = {}
        self.states: dict[tuple[str, int, int], torch.Tensor] = {}
        self.rows = self.slots = torch.empty(0, dtype=torch.int64, device="cpu")

    def write_at(self, slots: torch.Tensor, used: int) -> None:
        """Send the next entries to `slots`, int64 [batch, T]; queries are shown slots 0..used - 1."""
        self.rows = torch.arange(self.batch, device=slots.device, dtype=torch.int64)[:, None]
        self.slots, self.used = slots, used

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._put("keys", layer_idx, key_states), self._put("values", layer_idx, value_states)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        return self._put("indexer", layer_idx, indexer_key_states[:, None])[:, 0]

    def _put(self, what: str, layer: int, new: torch.Tensor) -> torch.Tensor:
        """Put [batch, H, T, E] into the slots of the next entries; what all slots hold that queries are shown."""
        if (what, layer) not in self.entries:
            # Zeros, not garbage: a masked slot has weight 0, and 0 times NaN is NaN.
            self.entries[what, layer] = new.new_zeros(self.batch, new.shape[1], self.capacity, new.shape[3])
        entries = self.entries[what, layer]
        entries[self.rows, :, self.slots] = new.transpose(1, 2)
        return entries[:, :, : self.used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.used

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._state("conv", layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._state("recurrent", layer_idx, state_idx)

    def _state(self, *key: Any) -> torch.Tensor | None:
        """A state; None before the first token. Models that read one token write into it, so it is a copy then."""
        if key in self.states and self.slots.shape[1] == 1:
            self.states[key] = self.states[key].clone()
        return self.states.get(key)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor:  # fmt: skip
        self.states["recurrent", layer_idx, state_idx] = recurrent_states
        return recurrent_states

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0, **_: object
    ) -> torch.Tensor:  # fmt: skip
        key = "conv", layer_idx, state_idx
        before = self.states.get(key)
        if before is None:
            before = conv_states.new_zeros(*conv_states.shape[:-1], conv_kernel_size)
        inputs = torch.cat([before, conv_states], dim=-1)
        self.states[key] = inputs[..., -before.shape[-1] :].contiguous()
        return inputs

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def put_back(self, rows: list[int], states: dict[tuple[str, int, int], torch.Tensor]) -> None:
        """Give these texts the states that they had; where there are none, those of nothing read, which are zeros."""
        if len(rows) == self.batch:
            self.states = states.copy()
            return
        for key, now in self.states.items():
            index = torch.tensor(rows, dtype=torch.int64, device=now.device)
            before = states[key][index] if key in states else torch.zeros_like(now[index])
            self.states[key] = now.index_copy(0, index, before)

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every text but those of index `rows`."""
        self.batch = len(rows)
        self.entries = {key: entries[rows] for key, entries in self.entries.items()}
        self.states = {key: state[rows] for key, state in self.states.items()}


class Visibility:
    """What queries at positions [B, T] do not see: `hidden` [B, T, S] and, by window, keys at positions [B, S]."""

    def __init__(self, hidden: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor) -> None:
        self.hidden, self.positions, self.keys = hidden, positions, keys

    def within(self, kind: str, window: int | None) -> torch.Tensor:
        """What is hidden from layers of this kind."""
        if window is None or self.hidden.shape[2] <= window:
            return self.hidden
        queries, keys = self.positions[:, :, None], self.keys[:, None, :]
        beyond = queries // window != keys // window if kind == CHUNKED else queries - keys >= window
        return self.hidden | beyond


def logits_of(model: PreTrainedModel, layers: Layers, seen: Visibility, **inputs: Any) -> torch.Tensor:
    """The logits of a forward whose layers see what they are to see."""
    hidden = {kind: seen.within(kind, window) for kind, window in layers.windows.items()}
    if model.config.model_type == "gpt_neo":
        return _gpt_neo_logits(model, hidden, **inputs)
    masks: dict[str, torch.Tensor | None] = {kind: _additive(out, model.dtype) for kind, out in hidden.items()}
    if layers.recurrent:
        masks |= {STATE: None, "conv": None, "hybrid": masks[FULL], "hybrid_sliding": masks.get(SLIDING)}
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
    with LENDING:
        return torch.func.functional_call(model, lent, kwargs=inputs | {"attention_mask": nothing}).logits


class Reader:
    """A model that is reading a batch of texts: `cached[b]` tokens of text b are in its cache.

    A state cannot forget a token, nor stop where a shorter text of the batch ends. So the states before each read are
    stored until `roll_back`, which puts back the newest that know nothing of what is forgotten; what was accepted since
    then is pending, and read again in front of what comes next. `passes` has the tokens of each forward.
    """

    def __init__(self, spec: ModelSpec, batch: int, capacity: int) -> None:
        self.spec, self.cache, self.cached = spec, self._cache(batch, capacity), [0] * batch
        self.last_position = capacity - 1 if spec.last_position is None else spec.last_position
        self.passes: list[int] = []
        self.before: list[tuple[list[int], dict[tuple[str, int, int], torch.Tensor]]] = []

    def _cache(self, batch: int, capacity: int) -> Any:
        return SlotCache(batch, capacity)

    def settling(self, length: list[int], most: int) -> list[int]:
        """The tokens of each forward that is needed for fewer than `most` to be pending of text[b, :length[b] - 1].

        A forward reads as many of each text that has so many; it takes as many of all texts as one can.
        """
        if not self.spec.recurrent:
            return []
        counts, pending = [], [end - 1 - cached for end, cached in zip(length, self.cached, strict=True)]
        while max(pending) >= most:
            counts.append(max(pending, key=lambda count: count * sum(each >= count for each in pending)))
            pending = [each - counts[-1] * (each >= counts[-1]) for each in pending]
        return counts

    def settle(self, text: torch.Tensor, length: list[int], most: int) -> None:
        """Read tokens of text[b, :length[b] - 1] now where as many as `most` of them, or more, are pending."""
        for count in self.settling(length, most):
            whole = [end - 1 - cached >= count for end, cached in zip(length, self.cached, strict=True)]
            self.read(text, [cached + count for cached in self.cached], 1, whole)
            self.before = []  # what is in the text is not taken back

    @torch.no_grad()
    def read(
        self, text: torch.Tensor, end: list[int], rows: int, whole: list[bool] | None = None
    ) -> torch.Tensor:  # fmt: skip
        """Read text[b, cached[b]:end[b]] and give the logits [B, rows, V] after each of its last `rows` tokens.

        Texts that have fewer tokens to read than others are padded on the right: what is computed and cached there is
        never looked at, and overwritten when the text gets there. Their states are put back; with `whole`, those of
        the texts that are not.
        """
        begin, device = torch.tensor(self.cached, dtype=torch.int64, device="cpu"), text.device
        lengths = torch.tensor(end, dtype=torch.int64, device="cpu") - begin
        width = int(lengths.max())
        used = min(int(begin.max()) + width, self.cache.capacity)
        slots = begin[:, None] + torch.arange(width, dtype=torch.int64, device="cpu")
        slots = slots.clamp_(max=self.cache.capacity - 1).to(device)
        keys = torch.arange(used, device=device, dtype=torch.int64)[None]
        first = int((lengths - rows).min())
        seen = Visibility(keys > slots[:, :, None], slots, keys)
        states = self.cache.states.copy()
        logits = self._forward(text.gather(1, slots), slots, seen, width - first)
        if self.spec.recurrent:
            self.before.append((self.cached, states))
            behind = (lengths < width).tolist() if whole is None else [not each for each in whole]
            end = [was if late else now for late, was, now in zip(behind, self.cached, end, strict=True)]
            if any(behind):
                self.cache.put_back([row for row, late in enumerate(behind) if late], states)
        self.cached = list(end)
        offset = (lengths - rows - first).to(device)
        if logits.shape[1] == rows:
            return logits
        wanted = offset[:, None] + torch.arange(rows, device=device, dtype=torch.int64)
        return logits[torch.arange(len(end), device=device, dtype=torch.int64)[:, None], wanted]

    @torch.no_grad()
    def read_tree(
        self, text: torch.Tensor, length: list[int], parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor
    ) -> torch.Tensor:
        """Read `nodes` of a draft tree rooted at the last of `length[b]` tokens: the logits [B, nodes, V] after each.

        A tree is `parents`, [N] for all texts or [B, N], and `tokens` [B, N] by node, -1 where absent. Node i of
        text b goes to slot length[b] - 1 + i, at the position of its depth, and sees the tokens before the root, its
        ancestors and itself; those must have been read, or be among `nodes`. What was not read of the text before the
        root is read with them.

        Texts with less left to read than others repeat, on the left, tokens that are in their cache.
        """
        root = torch.tensor(length, device=text.device, dtype=torch.int64) - 1
        unread = max(end - 1 - cached for end, cached in zip(length, self.cached, strict=True))
        before = (root[:, None] + torch.arange(-unread, 0, device=text.device, dtype=torch.int64)).clamp_(min=0)
        nodes_in_all = parents.shape[-1]
        used = max(length) - 1 + nodes_in_all
        slots = torch.arange(used, device=text.device, dtype=torch.int64)
        positions = specdec.tree_positions(parents, prefix_len=root)
        node_slots = root[:, None] + torch.arange(nodes_in_all, device=text.device, dtype=torch.int64)
        keys = slots.repeat(len(length), 1).scatter_(1, node_slots, positions)
        inside = specdec.tree_mask(parents, prefix_len=root, columns=used)[:, nodes]
        seen = Visibility(
            torch.cat([slots > before[:, :, None], ~inside], dim=1),
            torch.cat([before, positions[:, nodes]], dim=1),
            keys,
        )
        read = torch.cat([text.gather(1, before), tokens[:, nodes].clamp(min=0)], dim=1)
        logits = self._forward(read, torch.cat([before, root[:, None] + nodes], dim=1), seen, len(nodes))
        self.cached = [end - 1 for end in length]
        return logits

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        """Make the first `read[b]` nodes of path [B, D + 1] the continuation of the text before the root."""
        root = torch.tensor(length, device=path.device, dtype=torch.int64) - 1
        specdec.compact_kv(list(self.cache.entries.values()), path, prefix_len=root)
        self.cached = [end - 1 + count for end, count in zip(length, read, strict=True)]

    def _forward(self, tokens: torch.Tensor, slots: torch.Tensor, seen: Visibility, rows: int) -> torch.Tensor:
        """Logits [B, rows, V] after the last of `tokens` [B, T], which go to cache slots and see what they may."""
        self.cache.write_at(slots, seen.hidden.shape[2])
        positions = seen.positions.clamp(max=self.last_position) + self.spec.first_position
        inputs = {"position_ids": positions, self.spec.cache_argument: self.cache}
        if self.spec.keeps_logits:
            inputs["logits_to_keep"] = rows
        model, layers = self.spec.model, self.spec.layers
        logits = logits_of(model, layers, seen, input_ids=tokens, use_cache=True, **inputs)[:, -rows:]
        self.passes.append(tokens.shape[1])
        return logits.float() if logits.dtype == torch.float64 else logits

    def roll_back(self, length: list[int]) -> None:
        """Forget what was read at positions length[b] and beyond."""
        if not self.spec.recurrent:
            self.cached = [min(cached, end) for cached, end in zip(self.cached, length, strict=True)]
            return
        stored, rows = [([0] * len(length), {}), *self.before], defaultdict(list)
        for row, (cached, end) in enumerate(zip(self.cached, length, strict=True)):
            if cached > end:
                rows[max(at for at, (read, _) in enumerate(stored) if read[row] <= end)].append(row)
        cached = list(self.cached)
        for at, several in rows.items():
            self.cache.put_back(several, stored[at][1])
            for row in several:
                cached[row] = stored[at][0][row]
        self.cached, self.before = cached, []

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.cached = [self.cached[row] for row in rows]
        self.cache.keep(torch.tensor(rows, dtype=torch.int64, device=self.spec.model.device))


class TextCaches:
    """The caches of a batch of texts, each as its model makes it. One that was read stays as it is, to be put back."""

    def __init__(self, batch: int) -> None:
        self.states: dict[int, Any] = {}
        self.batch = batch

    def put_back(self, rows: list[int], states: dict[int, Any]) -> None:
        """Give these texts the caches that they had; none where nothing was read."""
        for row in rows:
            self.states.pop(row, None)
            self.states |= {row: states[row]} if row in states else {}

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every text but those of index `rows`."""
        self.states = {now: self.states[row] for now, row in enumerate(rows.tolist()) if row in self.states}


class TextReader(Reader):
    """Reads each text in separate forwards, with the masks, the positions and the cache that its model makes.

    So it reads what takes no mask of ours. A cache is put back whole, as a state is; where a model has none, a text is
    read anew. A pass is a forward for each text.
    """

    def _cache(self, batch: int, capacity: int) -> TextCaches:
        return TextCaches(batch)

    @torch.no_grad()
    def read(
        self, text: torch.Tensor, end: list[int], rows: int, whole: list[bool] | None = None
    ) -> torch.Tensor:  # fmt: skip
        states, logits, begin = self.cache.states, [], self.cached
        if self.spec.recurrent:
            self.before.append((begin, states.copy()))
        self.cached = [now if whole is None or whole[row] else begin[row] for row, now in enumerate(end)]
        for row, (known, now) in enumerate(zip(begin, self.cached, strict=True)):
            if now > known:
                begin_at = known if row in states else 0
                output = self._forward_alone(text[row : row + 1, begin_at:now], states.get(row), rows)
                logits.append(output.logits[:, -rows:])
                cache = next((output[name] for name in CACHES if output.get(name) is not None), None)
                states |= {} if cache is None else {row: cache}
        self.passes.append(max(now - known for known, now in zip(begin, end, strict=True)))
        every = torch.cat(logits)
        return every.float() if every.dtype == torch.float64 else every

    def _forward_alone(self, tokens: torch.Tensor, cache: Any, rows: int) -> Any:
        """What a model gives after tokens [1, T] that come behind those in its cache."""
        spec = self.spec
        inputs = {"use_cache": True} if spec.may_cache else {}
        if cache is not None:
            inputs[spec.cache_argument] = copied(cache)
        if spec.keeps_logits:
            inputs["logits_to_keep"] = rows
        return spec.model(input_ids=tokens, return_dict=True, **inputs)


def copied(value: Any) -> Any:
    """A cache that can be read on from while this one stays: states are overwritten, entries are joined with others."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(copied(part) for part in value)
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, (type, PreTrainedConfig)) or not hasattr(value, "__dict__"):
        return value
    twin = copy.copy(value)
    twin.__dict__ |= {name: copied(part) for name, part in vars(value).items() if not isinstance(part, torch.Tensor)}
    return twin

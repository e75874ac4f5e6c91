"""The sources of draft tokens; `protocols.Drafter` is their interface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

import specdec_kernels as specdec
from specdec_kernels.generate.checks import whole_number, whole_numbers
from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Noise, Sampling, keywords, marked, of_races, per_row
from specdec_kernels.generate.protocols import Drafts, widened
from specdec_kernels.generate.rounds import PENDING
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel


class ModelDrafter:
    """Drafts by sampling from a language model with the noise that the target's race will use.

    Ids beyond the model's vocabulary (one tokenizer, vocabularies padded to other sizes) are read as 0. A draft may
    have any law, as long as its tokens are drawn from it.

    Parameters
    ----------
    language_model : LanguageModel
        The model that drafts.
    vocabulary : iterable of int, optional
        The only tokens it drafts, such as frequent ones: its head has no rows for others, which are most of what a
        small model computes and reads (Zhao et al. 2025, "FR-Spec"). The target alone writes the others.
    """

    laws = True

    def __init__(self, language_model: LanguageModel, vocabulary: Iterable[int] | None = None) -> None:
        self.language_model, self.map = language_model, None
        if vocabulary is None:
            return
        from specdec_kernels.generate.derived import of_tokens

        tokens, size = sorted({*whole_numbers(vocabulary)}), language_model.config.vocab_size
        if not tokens or tokens[0] < 0 or tokens[-1] >= size:
            raise ValueError(f"vocabulary: expected token ids from 0 to {size - 1}; got {tokens[:1] + tokens[-1:]}")
        self.map = torch.tensor(tokens, dtype=torch.int32, device=language_model.device)
        self.language_model = of_tokens(language_model, self.map.long())

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        if self.map is not None and int(self.map[-1]) >= vocabulary:
            raise ValueError(f"vocabulary: expected tokens below the target's {vocabulary}; got {int(self.map[-1])}")
        self.reader, self.vocabulary = self.language_model.reader(batch, capacity), vocabulary

    def edited(self, record: Record | None, logits: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Logits [B, R, V] with the edits of texts that continue with these tokens [B, R, L]."""
        if record is None:
            return logits
        if self.map is None:
            return record.edited(logits, pending)
        return record.edited(widened(logits, self.map, self.vocabulary), pending)[..., self.map.long()]

    def propose(
        self, text: torch.Tensor, length: list[int], counts: list[int], slots: int, noise: Noise, sampling: Sampling,
        record: Record | None = None,
    ) -> Drafts:  # fmt: skip
        each, begin = torch.arange(len(length), device=text.device, dtype=torch.int64), noise.position
        drafts, laws = torch.full((len(length), slots), -1, device=text.device, dtype=torch.int64), []
        wanted = torch.tensor(counts, device=text.device, dtype=torch.int64)
        self.reader.settle(self.readable(text), length, PENDING)
        for slot in range(slots):
            logits = self.row(text, length, slot)[:, : self.vocabulary]
            logits = self.edited(record, logits[:, None], drafts[:, None, :slot])[:, 0]
            laws.append(logits)
            if slot < max(counts):
                noise_of_slot = noise._replace(position=begin + slot)
                rows = marked(noise_of_slot, text, drafts[:, :0])
                law = keywords(noise_of_slot, sampling, None if rows is None else rows[:, 0])
                token = specdec.race_sample(logits, draft_map=self.map, **law)
                text[each, begin + slot] = token
                drafts[:, slot] = torch.where(slot < wanted, token, -1)
        return Drafts(drafts, torch.stack(laws, dim=1) if laws else None, self.map)

    def propose_tree(
        self, text: torch.Tensor, length: list[int], tree: DraftTree, limit: list[int], noise: Noise,
        sampling: Sampling, replacement: bool, record: Record | None = None,
    ) -> Drafts:  # fmt: skip
        """One forward per depth. Below an absent node all are absent."""
        device, batch, nodes = text.device, len(length), len(tree.parents)
        parents = tree.tensor(device, torch.int64)
        tokens = torch.full((batch, nodes), -1, device=device, dtype=torch.int64)
        tokens[:, 0] = text[torch.arange(batch, device=device, dtype=torch.int64), noise.position - 1]
        most, laws = torch.tensor(limit, device=device, dtype=torch.int64), None
        for depth in range(tree.depth):
            inner = [node for node, at in enumerate(tree.depths) if at == depth and tree.children[node]]
            positions = torch.tensor(inner, device=device, dtype=torch.int64)
            logits = self.node_rows(text, length, parents, tokens, positions, depth)[..., : self.vocabulary]
            if record is not None or replacement:
                paths = torch.tensor([path_to(node, tree) for node in inner], dtype=torch.int64, device=device)
                said = tokens[:, paths]
            if replacement:  # equal beginnings share a row: two reads of one text might differ in rounding
                alike = (said[:, :, None] == said[:, None]).all(-1)
                logits = logits.take_along_dim(alike.int().argmax(-1)[..., None], 1)
            if record is not None:
                logits = self.edited(record, logits, said)
            if laws is None:
                laws = logits.new_zeros(batch, nodes, logits.shape[-1])
            laws[:, inner] = logits
            width = max(len(tree.children[node]) for node in inner)
            noise_at_depth = noise._replace(position=noise.position + depth)
            if replacement:
                drawn = draw_independent(logits, width, noise_at_depth, sampling, self.map)
            else:
                seeds_of_text, races = marked(noise, text, tokens, parents), of_races(noise_at_depth, 0, len(inner))
                if seeds_of_text is not None:
                    races = Noise(seeds_of_text[:, inner], torch.zeros_like(seeds_of_text[:, inner]))
                drawn = draw_children(logits, width, races, sampling, self.map)
            below = [(node, row, index) for row, parent in enumerate(inner)
                     for index, node in enumerate(tree.children[parent])]  # fmt: skip
            children, rows, indices = torch.tensor(below, device=device, dtype=torch.int64).unbind(1)
            absent = (tokens[:, parents[children]] < 0) | (most <= depth)[:, None]
            tokens[:, children] = drawn[:, rows, indices].masked_fill(absent, -1)
        return Drafts(tokens, laws, self.map)

    def row(self, text: torch.Tensor, length: list[int], slot: int) -> torch.Tensor:
        """Logits [B, V] of slot `slot`; the slots before it are in `text`."""
        return self.reader.read(self.readable(text), [end + slot for end in length], rows=1)[:, 0]

    def node_rows(
        self, text: torch.Tensor, length: list[int], parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor,
        depth: int,
    ) -> torch.Tensor:  # fmt: skip
        """Logits [B, nodes, V] after nodes of a tree, all of one depth."""
        return self.reader.read_tree(self.readable(text), length, parents, self.readable(tokens), nodes)

    def readable(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens with 0 instead of ids beyond the model's vocabulary."""
        most = self.language_model.tokens_read
        return tokens if self.vocabulary <= most else tokens.masked_fill(tokens >= most, 0)

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        self.reader.keep_path(path, length, read)

    def roll_back(self, length: list[int]) -> None:
        self.reader.roll_back(length)

    def keep(self, rows: list[int]) -> None:
        self.reader.keep(rows)


class ParallelDrafter(ModelDrafter):
    """Drafts by a model that gives the laws of several tokens in one pass: behind the text it reads look-ahead tokens.

    So its laws do not depend on drafted tokens, and chains and trees cost no further pass. It has one law more than
    look-ahead tokens. Drafts of a greater depth are drawn from the last.

    Parameters
    ----------
    language_model : LanguageModel
        The model that drafts. Its config has ``look_ahead_token_ids``, as that of "embedded:parallel".
    vocabulary : iterable of int, optional
        As for `ModelDrafter`.

    References
    ----------
    Monea, Joulin, Grave (2023), "PaSS: Parallel Speculative Sampling".
    """

    def __init__(self, language_model: LanguageModel, vocabulary: Iterable[int] | None = None) -> None:
        super().__init__(language_model, vocabulary)
        if not looks_ahead(language_model):
            raise ValueError(f"{language_model.name}: expected look_ahead_token_ids in its config; got none")

    def propose(self, text: torch.Tensor, length: list[int], counts: list[int], slots: int, *how: Any) -> Drafts:
        self.look(text, length, slots)
        return super().propose(text, length, counts, slots, *how)

    def propose_tree(self, text: torch.Tensor, length: list[int], tree: DraftTree, *how: Any) -> Drafts:
        self.look(text, length, tree.depth)
        return super().propose_tree(text, length, tree, *how)

    def look(self, text: torch.Tensor, length: list[int], count: int) -> None:
        """Compute the rows of the next `count` tokens."""
        if not count:
            return
        ahead = self.language_model.config.look_ahead_token_ids[: count - 1]
        ahead = torch.tensor(ahead, dtype=torch.int64, device=text.device)
        behind = torch.arange(len(ahead), device=text.device, dtype=torch.int64)
        positions = torch.tensor(length, device=text.device, dtype=torch.int64)[:, None] + behind
        read = self.readable(text).scatter(1, positions, ahead.expand_as(positions))
        self.reader.settle(read, length, PENDING)
        self.rows = self.reader.read(read, [end + len(ahead) for end in length], rows=1 + len(ahead))
        self.reader.roll_back(length)

    def row(self, text: torch.Tensor, length: list[int], slot: int) -> torch.Tensor:
        return self.rows[:, min(slot, self.rows.shape[1] - 1)]

    def node_rows(
        self, text: torch.Tensor, length: list[int], parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor,
        depth: int,
    ) -> torch.Tensor:  # fmt: skip
        return self.row(text, length, depth)[:, None].expand(-1, len(nodes), -1)

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        """Does nothing: the model has read no draft."""


def looks_ahead(language_model: LanguageModel) -> bool:
    """Whether a model has look-ahead tokens, for a `ParallelDrafter`."""
    return bool(getattr(language_model.config, "look_ahead_token_ids", None))


def path_to(node: int, tree: DraftTree) -> list[int]:
    """The nodes on the path from the root, which is left out, to this one.

    Examples
    --------
    >>> path_to(4, DraftTree.from_parents([-1, 0, 0, 1, 3]))
    [1, 3, 4]
    """
    path = []
    while node:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


def draw_children(
    logits: torch.Tensor, width: int, noise: Noise, sampling: Sampling, draft_map: torch.Tensor | None = None
) -> torch.Tensor:
    """Children int64 [B, R, width] of nodes with logits [B, R, V]; -1 where the vocabulary has no more.

    They are the first arrivals of each node's race. ``draft_map``: the tokens of the logits' columns.
    """
    law = keywords(noise, per_row(sampling))
    arrivals = specdec.race_topk(logits, min(width, logits.shape[-1]), draft_map=draft_map, **law)
    return torch.nn.functional.pad(arrivals, (0, width - arrivals.shape[-1]), value=-1)


def draw_independent(
    logits: torch.Tensor, width: int, noise: Noise, sampling: Sampling, draft_map: torch.Tensor | None = None
) -> torch.Tensor:
    """Children int64 [B, R, width] that are independent of each other: the winners of different races.

    These have nonces 1, 2, … or, for methods that look ahead, nonces used by no other race.
    """
    nodes, drawn = logits.shape[1], []
    for index in range(width):
        race = of_races(noise, index * nodes, nodes) if noise.nonce else per_row(noise)._replace(nonce=1 + index)
        drawn.append(specdec.race_sample(logits, draft_map=draft_map, **keywords(race, per_row(sampling))))
    return torch.stack(drawn, dim=-1)


def suffix_lengths(longest: int, shortest: int) -> tuple[int, int]:
    """The lengths of a text's suffix to search for, from the longest down."""
    longest, shortest = whole_number("longest", longest), whole_number("shortest", shortest)
    if not 1 <= shortest <= longest:
        raise ValueError(f"shortest: expected 1 <= shortest <= longest; got {shortest} and {longest}")
    return longest, shortest


class NgramDrafter:
    """Drafts the continuation of the last earlier occurrence of the text's longest suffix of at most `longest` tokens.

    Prompt look-up: deterministic, so that its law is one-hot and no draft law is passed to the verifier.
    """

    language_model = None
    laws = False

    def __init__(self, longest: int = 4, shortest: int = 1) -> None:
        self.longest, self.shortest = suffix_lengths(longest, shortest)

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        pass

    def follow(self, text: list[int], count: int) -> list[int]:
        """At most `count` tokens that followed the last earlier occurrence of the text's end.

        Examples
        --------
        >>> NgramDrafter(longest=2).follow([7, 1, 2, 3, 4, 1, 2], 3)
        [3, 4, 1]
        """
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            suffix = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == suffix:
                    return text[start + size : start + size + count]
        return []

    def propose(
        self, text: torch.Tensor, length: list[int], counts: list[int], slots: int, noise: Noise, sampling: Sampling,
        record: Record | None = None,
    ) -> Drafts:  # fmt: skip
        drafts = torch.full((len(length), slots), -1, dtype=torch.int64, device="cpu")
        for row, (end, wanted) in enumerate(zip(length, counts, strict=True)):
            tokens = self.follow(text[row, :end].tolist(), wanted)
            drafts[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64, device="cpu")
            text[row, end : end + len(tokens)] = drafts[row, : len(tokens)].to(text.device)
        return Drafts(drafts.to(text.device), None)

    def roll_back(self, length: list[int]) -> None:
        pass

    def keep(self, rows: list[int]) -> None:
        pass


class NgramCache:
    """The continuations of the last `longest` tokens, and fewer, in all texts added; the latest of several wins.

    It clears itself when it holds `most` tokens, so its memory is bounded.

    Examples
    --------
    >>> cache = NgramCache(longest=2)
    >>> cache.add("first text", [7, 1, 2, 3, 4])
    >>> cache.follow([9, 1, 2], 3)
    [3, 4]
    """

    def __init__(self, longest: int = 4, shortest: int = 2, most: int = 1_000_000) -> None:
        self.longest, self.shortest = suffix_lengths(longest, shortest)
        self.most = whole_number("most", most, 1)
        self.clear()

    def clear(self) -> None:
        """Remove all texts."""
        self.texts: dict[object, list[int]] = {}
        self.after: dict[tuple[int, ...], tuple[list[int], int]] = {}
        self.size = 0

    def add(self, name: object, text: list[int]) -> None:
        """Add a text; a text of the same name is one that has grown."""
        if self.size > self.most:
            self.clear()
        history = self.texts.setdefault(name, [])
        for token in text[len(history) :]:
            end = len(history)
            for size in range(self.shortest, min(self.longest, end) + 1):
                self.after[tuple(history[end - size :])] = history, end
            history.append(token)
            self.size += 1

    def follow(self, text: list[int], count: int) -> list[int]:
        """At most `count` tokens that followed the longest end of this text that is in the cache."""
        for size in range(min(self.longest, len(text)), self.shortest - 1, -1):
            entry = self.after.get(tuple(text[-size:]))
            if entry is not None:
                history, index = entry
                return history[index : index + count]
        return []


CACHE = NgramCache()
"""The cache of this process: texts are drafts for later ones."""


class CachedNgramDrafter(NgramDrafter):
    """Drafts the continuation of the same tokens in any text of this process, prompts and finished texts included.

    A race writes the text of plain sampling, whatever is drafted. With "rejection" use another seed for every text: the
    noise that drew an earlier text with the same seed is that of the uniforms, so its tokens are not independent of
    them.

    Parameters
    ----------
    cache : NgramCache
        The cache to use; by default that of the process.
    """

    def __init__(self, cache: NgramCache | None = None) -> None:
        self.cache = CACHE if cache is None else cache

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        self.names, self.vocabulary = [object() for _ in range(batch)], vocabulary

    def follow(self, text: list[int], count: int) -> list[int]:
        """The continuation in the cache, up to the first token outside of the target's vocabulary."""
        drafts = self.cache.follow(text, count)
        return drafts[: next((index for index, token in enumerate(drafts) if token >= self.vocabulary), count)]

    def propose(self, text: torch.Tensor, length: list[int], *how: Any) -> Drafts:
        for row, (name, end) in enumerate(zip(self.names, length, strict=True)):
            self.cache.add(name, text[row, :end].tolist())
        return super().propose(text, length, *how)

    def keep(self, rows: list[int]) -> None:
        self.names = [self.names[row] for row in rows]

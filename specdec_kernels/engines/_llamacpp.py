"""The reader of `engines.llamacpp`: contexts of llama.cpp that read texts for our loop. It imports llama_cpp."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import llama_cpp
import torch

from specdec_kernels.trees import DraftTree

SPARE_LEAVES = 8  # sequences for each text of a new context: a tree with more leaves makes a new context


class Entry(NamedTuple):
    """A token to read: its position in the text, its sequences, and whether its logits are wanted."""

    token: int
    position: int
    sequences: tuple[int, ...]
    wanted: bool


class Context:
    """A llama_context with the weights and settings of a Llama, for so many tokens in so many sequences."""

    def __init__(self, llama: llama_cpp.Llama, tokens: int, sequences: int) -> None:
        params = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_ctx, params.n_seq_max, params.embeddings = tokens, sequences, False
        # One cache for all sequences, which share tokens; full windows, so that rejected tokens can be removed.
        params.kv_unified = params.swa_full = True
        self.llama, self.tokens, self.sequences = llama, tokens, sequences
        self.pointer = llama_cpp.llama_init_from_model(llama.model, params)
        if not self.pointer:
            raise MemoryError(f"llama_init_from_model: expected a context of {tokens} tokens; got none")
        weakref.finalize(self, llama_cpp.llama_free, self.pointer)
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self.most, self.vocabulary = llama_cpp.llama_n_batch(self.pointer), llama.n_vocab()

    def decode(self, entries: Sequence[Entry]) -> None:
        """Read tokens by one call of llama.cpp."""
        tokens, positions, sequences, wanted = zip(*entries, strict=True)
        size, pointer = len(entries), ctypes.POINTER(ctypes.c_int32)
        batch = llama_cpp.llama_batch(
            n_tokens=size,
            token=(ctypes.c_int32 * size)(*tokens),
            pos=(ctypes.c_int32 * size)(*positions),
            n_seq_id=(ctypes.c_int32 * size)(*map(len, sequences)),
            seq_id=(pointer * size)(*map(numbers, sequences)),
            logits=(ctypes.c_int8 * size)(*wanted),
        )
        if code := llama_cpp.llama_decode(self.pointer, batch):
            raise RuntimeError(f"llama_decode: expected 0; got {code}")

    def logits(self, entry: int, rows: int) -> torch.Tensor:
        """Float32 [rows, V] of the last decode, from this entry on, in llama.cpp's memory: valid until the next one.

        Rows lie one after the other, in the order of their entries (llama.h).
        """
        first = llama_cpp.llama_get_logits_ith(self.pointer, entry)
        there = (ctypes.c_float * (rows * self.vocabulary)).from_address(ctypes.addressof(first.contents))
        return torch.frombuffer(there, dtype=torch.float32).view(rows, self.vocabulary)

    def remove(self, sequence: int, begin: int) -> None:
        """Remove the tokens of a sequence from this position on."""
        if not llama_cpp.llama_memory_seq_rm(self.memory, sequence, begin, -1):
            raise RuntimeError(f"llama_memory_seq_rm: expected a memory that forgets from position {begin}; got none")

    def copy(self, source: int, target: int, begin: int) -> None:
        """Add the tokens of a sequence, from this position on, to another one, too. No data moves."""
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, begin, -1)

    def clear(self) -> None:
        """Remove all tokens."""
        llama_cpp.llama_memory_clear(self.memory, False)


class ModelSpec(NamedTuple):
    """What a reader takes of a `llamacpp.LlamaModel`: its attributes of these names. `spare` has unused contexts."""

    llama: llama_cpp.Llama
    name: str
    recurrent: bool
    spare: list[Context]

    def context(self, tokens: int, sequences: int) -> Context:
        """A spare context that is large enough, else a new one."""
        spare = self.spare.pop() if self.spare else None
        if spare is not None and spare.tokens >= tokens and spare.sequences >= sequences:
            return spare
        del spare  # frees its memory before the new one is made
        return Context(self.llama, tokens, sequences)


@functools.lru_cache(4096)
def numbers(sequence: tuple[int, ...]) -> ctypes.Array[ctypes.c_int32]:
    """A list as a C array."""
    return (ctypes.c_int32 * len(sequence))(*sequence)


class Below:
    """The leaves below each node of a tree, by number; a leaf is below itself.

    Examples
    --------
    >>> Below((-1, 0, 0, 1)).leaves, Below((-1, 0, 0, 1)).depths
    ([(0, 1), (1,), (0,), (1,)], (0, 1, 1, 2))
    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        tree = DraftTree.from_parents(parents)
        ends = [node for node, children in enumerate(tree.children) if not children]
        self.depths, self.count = tree.depths, len(ends)
        above = tree.mask()[ends].T.tolist()  # whether a node is on the path to each leaf
        self.leaves = [tuple(leaf for leaf in range(self.count) if leaves[leaf]) for leaves in above]


below = functools.lru_cache(64)(Below)


class LlamaReader:
    """A reader of a batch of texts (`generate.reader.Reader`), in a context of llama.cpp.

    Each text has one sequence for every leaf of its tree. A token of the text is in all of them, a node in those of the
    leaves below it; so a node attends to its ancestors and the text. Logits lie in llama.cpp's memory, until the next
    read; with `keeps` they are copies.

    A recurrent state cannot remove tokens. So before a text is read beyond its settled part, a second sequence gets its
    state, which llama.cpp copies when the text moves on. `roll_back` restores it, and the tokens accepted since then
    are read again in front of the next ones.
    """

    def __init__(self, model: ModelSpec, batch: int, capacity: int, keeps: bool) -> None:
        self.model, self.batch, self.capacity, self.keeps = model, batch, capacity, keeps
        self.texts, self.width = list(range(batch)), 1
        self.passes: list[int] = []
        self.settled, self.saved = [0] * batch, dict[int, int]()  # saved: tokens in a text's second sequence
        spare = 2 if model.recurrent else SPARE_LEAVES  # each sequence takes memory for a state
        self._new_context(min(batch * spare, max(batch, llama_cpp.llama_max_parallel_sequences())))

    def _new_context(self, sequences: int) -> None:
        """Take an empty context."""
        most = llama_cpp.llama_max_parallel_sequences()
        if sequences > most:
            raise ValueError(f"prompts: expected at most {most} texts, times leaves of a tree; got {sequences}")
        self.context = self.model.context(self.batch * self.capacity, sequences)
        self.context.clear()
        self.release = weakref.finalize(self, self.model.spare.append, self.context)
        self.cached = [0] * len(self.texts)

    def sequences(self, row: int, leaves: Sequence[int] | None = None) -> tuple[int, ...]:
        """The sequences of a text, all or for some leaves."""
        text = self.texts[row]
        return tuple(leaf * self.batch + text for leaf in (range(self.width) if leaves is None else leaves))

    def pending(self, length: list[int]) -> int:
        """The most tokens before the last of text[b, :length[b]] that are to be read again."""
        pending = [end - 1 - cached for end, cached in zip(length, self.cached, strict=True)]
        return max(pending) if self.model.recurrent else 0

    def settling(self, length: list[int], most: int) -> list[int]:
        """The tokens that `settle` would read of a text, for each of its passes: there is one at most."""
        pending = self.pending(length)
        return [pending] if self.model.recurrent and pending >= most else []

    def settle(self, text: torch.Tensor, length: list[int], most: int) -> None:
        """Mark text[b, :length[b]] as final; read it but for its last token where `most` tokens are pending."""
        self.settled = list(length)
        late = [row for row, end in enumerate(length) if end - 1 - self.cached[row] >= most]
        if self.model.recurrent and late:
            entries = [entry for row in late for entry in self._entries(text, row, length[row] - 1, 0)]
            for first in range(0, len(entries), self.context.most):
                self.context.decode(entries[first : first + self.context.most])
            for row in late:
                self.cached[row] = length[row] - 1
            self.passes.append(-(-len(entries) // len(self.texts)))

    def read(self, text: torch.Tensor, end: list[int], rows: int) -> torch.Tensor:
        """Read text[b, cached[b]:end[b]]; returns the logits [B, rows, V] after each of its last `rows` tokens."""
        self._read_ahead(text, [last - rows for last in end], rows * len(end))
        entries = []
        for row, last in enumerate(end):
            if self.model.recurrent and last > self.settled[row] and self.texts[row] not in self.saved:
                self._save(row)
            entries += self._entries(text, row, last, rows)
        self.cached = list(end)
        return self._logits(entries, rows)

    def read_tree(
        self, text: torch.Tensor, length: list[int], parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor
    ) -> torch.Tensor:
        """Read `nodes` of a draft tree rooted at the last of `length[b]` tokens: the logits [B, nodes, V] after each.

        Arguments as in `Reader.read_tree`: one shape for all texts, `parents` [N]; `tokens` [B, N], -1 where absent.
        """
        tree, wanted, given = below(tuple(parents.tolist())), nodes.tolist(), tokens.tolist()
        self._widen(tree.count)
        roots = [last - 1 for last in length]
        self._read_ahead(text, roots, len(wanted) * len(roots))
        entries = []
        for row, root in enumerate(roots):
            entries += self._entries(text, row, root, 0)
            for node in wanted:
                leaves = None if node == 0 else tree.leaves[node]
                token = max(given[row][node], 0)
                entries.append(Entry(token, root + tree.depths[node], self.sequences(row, leaves), True))
        self.tree, self.cached = tree, roots
        return self._logits(entries, len(wanted))

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        """Make the first `read[b]` nodes of path [B, D + 1] the continuation of the text before the root."""
        for row, (nodes, last, count) in enumerate(zip(path.tolist(), length, read, strict=True)):
            (source, *_), root = self.sequences(row, self.tree.leaves[nodes[count - 1]]), last - 1
            self.context.remove(source, root + count)
            for sequence in self.sequences(row):
                if sequence != source:
                    self.context.remove(sequence, root)
                    self.context.copy(source, sequence, root)
            self.cached[row] = root + count

    def roll_back(self, length: list[int]) -> None:
        """Remove the tokens at positions length[b] and beyond."""
        for row, end in enumerate(length):
            if end < self.cached[row]:
                self.cached[row] = self._restored(row, end) if self.model.recurrent else end
                self._forget(row, self.cached[row])
        self.saved.clear()

    def _save(self, row: int) -> None:
        """Save the state of a text."""
        text = self.texts[row]
        self.saved[text] = self.cached[row]
        self.context.remove(self.batch + text, 0)
        self.context.copy(text, self.batch + text, 0)

    def _restored(self, row: int, end: int) -> int:
        """The number of tokens of a text after its saved state is restored; 0 if that has more than `end`."""
        text = self.texts[row]
        length = self.saved.get(text, 0)
        if not 0 < length <= end:
            return 0
        self.context.remove(text, 0)
        self.context.copy(self.batch + text, text, 0)
        return length

    def keep(self, rows: list[int]) -> None:
        """Drop all texts but those of indices `rows`."""
        for row in {*range(len(self.texts))} - {*rows}:
            self._forget(row, 0)
        self.texts, self.cached = [self.texts[row] for row in rows], [self.cached[row] for row in rows]

    def _forget(self, row: int, begin: int) -> None:
        """Remove the tokens of a text from this position on; with all of them the saved state, too."""
        saved = () if begin or not self.model.recurrent else (self.batch + self.texts[row],)
        for sequence in self.sequences(row) + saved:
            self.context.remove(sequence, begin)

    def _widen(self, leaves: int) -> None:
        """Make sequences for so many leaves. If the context has too few, a new one reads the texts again."""
        if leaves * self.batch > self.context.sequences:
            self.release()
            self._new_context(leaves * self.batch)
        for row in range(len(self.texts)):
            first, *new = self.sequences(row, [0, *range(self.width, leaves)])
            for sequence in new:
                self.context.copy(first, sequence, 0)
        self.width = max(self.width, leaves)

    def _entries(self, text: torch.Tensor, row: int, end: int, rows: int) -> list[Entry]:
        """The unread tokens of a text, with logits for the last `rows` tokens."""
        begin, sequences = self.cached[row], self.sequences(row)
        tokens = text[row, begin:end].tolist()
        return [Entry(token, at, sequences, at >= end - rows) for at, token in enumerate(tokens, start=begin)]

    def _read_ahead(self, text: torch.Tensor, end: list[int], more: int) -> None:
        """If one decode cannot take all of text[b, :end[b]] and `more` tokens, read the text first, in pieces."""
        left = [max(0, last - cached) for last, cached in zip(end, self.cached, strict=True)]
        if sum(left) + more <= self.context.most:
            return
        if more > self.context.most:
            raise ValueError(
                f"k: expected at most {self.context.most} rows a call, n_batch of {self.model.name}; got {more}"
            )
        for row, last in enumerate(end):
            while self.cached[row] < last:
                stop = min(last, self.cached[row] + self.context.most)
                self.context.decode(self._entries(text, row, stop, 0))
                self.cached[row] = stop

    def _logits(self, entries: list[Entry], rows: int) -> torch.Tensor:
        """Read the entries; returns the wanted logits [B, rows, V]."""
        self.context.decode(entries)
        self.passes.append(-(-len(entries) // len(self.texts)))
        first = next(index for index, entry in enumerate(entries) if entry.wanted)
        logits = self.context.logits(first, len(self.texts) * rows).view(len(self.texts), rows, -1)
        return logits.clone() if self.keeps else logits

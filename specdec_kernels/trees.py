"""Draft trees: shapes, their expected tokens, and the formats of other engines."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch

from specdec_kernels import _C
from specdec_kernels.ops.tree_mask import tree_mask

TOLERANCE = 1e-6
USUAL_ACCEPTANCE = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)  # by child index, where none is measured
Device = torch.device | str | None
Acceptance = Sequence[float] | Callable[[tuple[int, ...]], float | None]


class RetrievalArrays(NamedTuple):
    """SGLang's linked arrays of a batch of trees, int64 [B, N] each.

    Attributes
    ----------
    retrive_index : Tensor
        ``b N + i``: the index of node i of request b in the flat batch.
    retrive_next_token : Tensor
        The first child of a node, -1 if it has none.
    retrive_next_sibling : Tensor
        The next sibling of a node, -1 if it is the last.
    """

    retrive_index: torch.Tensor
    retrive_next_token: torch.Tensor
    retrive_next_sibling: torch.Tensor


@dataclass(frozen=True)
class DraftTree:
    """The shape of a draft: each node continues its parent, and siblings are alternatives.

    Node 0 is the root, the last committed token; every other node holds one drafted token. Children of a node are
    ordered by index. Trees are values: equal shapes are equal, and can be keys.

    Parameters
    ----------
    parents : sequence of int
        ``parents[0] = -1`` and ``0 <= parents[i] < i`` for every other node.

    Raises
    ------
    ValueError
        If an entry is neither.

    Examples
    --------
    >>> from specdec_kernels import DraftTree
    >>> tree = DraftTree.from_parents([-1, 0, 0, 1])
    >>> tree.depths, tree.children[0], tree.size
    ((0, 1, 1, 2), (1, 2), 3)
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        parents = tuple(map(operator.index, self.parents))
        for node, parent in enumerate(parents):
            if parent != -1 if node == 0 else not 0 <= parent < node:
                allowed = "-1 (the root)" if node == 0 else f"a node before it, 0 to {node - 1}"
                raise ValueError(f"parents[{node}]: expected {allowed}; got {parent}")
        if not parents:
            raise ValueError("parents: expected a root at least; got none")
        object.__setattr__(self, "parents", parents)

    @classmethod
    def from_parents(cls, parents: Iterable[int]) -> DraftTree:
        """A tree from the parents of its nodes, a tensor or any other sequence of ints."""
        return cls(tuple(parents.tolist() if hasattr(parents, "tolist") else parents))

    @classmethod
    def chain(cls, k: int) -> DraftTree:
        """One token after the other: the shape that ``verify_chain`` verifies.

        Examples
        --------
        >>> DraftTree.chain(3).parents
        (-1, 0, 1, 2)
        """
        return cls(tuple(range(-1, _count("k", k))))

    @classmethod
    def chains(cls, n: int, k: int) -> DraftTree:
        """``n`` chains of ``k`` tokens, one after the other; ``merge_chains`` merges their common beginnings.

        Examples
        --------
        >>> DraftTree.chains(2, 3).parents
        (-1, 0, 1, 2, 0, 4, 5)
        """
        n, k = _count("n", n), _count("k", k)
        return cls((-1, *(node if node % k else 0 for node in range(n * k))))

    @classmethod
    def alternatives(cls, k: int) -> DraftTree:
        """``k`` alternatives for the next token alone.

        Examples
        --------
        >>> DraftTree.alternatives(3).parents
        (-1, 0, 0, 0)
        """
        return cls((-1,) + (0,) * _count("k", k))

    @classmethod
    def specinfer(cls, expansions: Sequence[int] = (1, 1, 3, 1, 1, 1, 1, 1)) -> DraftTree:
        """Every node of level l has ``expansions[l]`` children; by default three sequences with two tokens in common.

        References
        ----------
        Miao et al. 2024, SpecInfer (expansion configuration).

        Examples
        --------
        >>> DraftTree.specinfer((1, 2, 1)).parents
        (-1, 0, 1, 1, 2, 3)
        """
        parents, level = [-1], [0]
        for width in expansions:
            below = [node for node in level for _ in range(_count("expansions", width))]
            level = list(range(len(parents), len(parents) + len(below)))
            parents += below
        return cls(tuple(parents))

    @classmethod
    def optimal(cls, acceptance: Acceptance, k: int) -> DraftTree:
        """The tree of ``k`` drafted tokens with the most expected tokens, for given acceptance probabilities.

        Parameters
        ----------
        acceptance : sequence of float or callable
            ``acceptance[j]`` is the probability that a node's child j is accepted once the node is, from child 0 on; no
            node gets more children than that. Or ``acceptance(path)``, with the child indices from the root on as path:
            the probability of its last step, given the others; None if there is no such child.
        k : int
            Number of nodes without the root. Nodes come in the order of their probabilities, so ``first`` of the result
            is optimal too.

        Raises
        ------
        ValueError
            For a number that is no probability, for siblings that sum to more than 1, for too few children, and for an
            acceptance that rises from one sibling to the next: then growing greedily is not optimal.

        References
        ----------
        Kobus, Gündüz 2025, "Speculative Decoding via Exponential Races", Algorithm 3. O(k log k).

        Examples
        --------
        >>> acceptance = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)
        >>> for k in (4, 8, 12):
        ...     tree = DraftTree.optimal(acceptance, k)
        ...     print(k, round(tree.expected_tokens(acceptance), 4), tree.depth)
        4 2.075 3
        8 2.475 3
        12 2.7175 4
        """
        k = _count("k", k)
        try:
            if callable(acceptance):
                return cls(tuple(_C.optimal_tree_by_path(k, acceptance)))
            return cls(tuple(_C.optimal_tree(k, _probabilities(acceptance))))
        except ValueError as error:
            if str(error).startswith("acceptance"):
                raise
            raise ValueError(f"acceptance: expected {error}") from None

    @property
    def size(self) -> int:
        """Number of drafted tokens: nodes without the root."""
        return len(self.parents) - 1

    @property
    def depth(self) -> int:
        """Depth of the deepest node, the root's being 0."""
        return max(self.depths)

    @functools.cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @functools.cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, in order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @functools.cached_property
    def child_indices(self) -> tuple[int, ...]:
        """Each node's index among its siblings, from 0; -1 for the root."""
        indices = [-1] * len(self.parents)
        for siblings in self.children:
            for index, node in enumerate(siblings):
                indices[node] = index
        return tuple(indices)

    def first(self, k: int) -> DraftTree:
        """The tree of the first ``k`` drafted nodes."""
        return DraftTree(self.parents[: _count("k", k) + 1])

    def tensor(self, device: Device = None, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """``parents`` [N], as the ops take it."""
        return torch.tensor(self.parents, dtype=dtype, device=device)

    @staticmethod
    def stack(trees: Sequence[DraftTree], device: Device = None, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """``parents`` [B, N] of one tree per request, smaller ones padded with -1.

        Examples
        --------
        >>> DraftTree.stack([DraftTree.chain(2), DraftTree.alternatives(1)]).tolist()
        [[-1, 0, 1], [-1, 0, -1]]
        """
        nodes = max(len(tree.parents) for tree in trees)
        rows = [tree.parents + (-1,) * (nodes - len(tree.parents)) for tree in trees]
        return torch.tensor(rows, dtype=dtype, device=device)

    def expected_tokens(self, acceptance: Acceptance) -> float:
        """Expected tokens of a round: 1 + the sum over nodes of the product of the acceptances on their path.

        Parameters
        ----------
        acceptance : sequence of float or callable
            As for ``optimal``, but in any order; children beyond a sequence are never accepted.

        Examples
        --------
        >>> DraftTree.chain(2).expected_tokens([0.5])
        1.75
        """
        if not callable(acceptance):
            by_child = _probabilities(acceptance)
            acceptance = lambda path: by_child[path[-1]] if path[-1] < len(by_child) else 0.0  # noqa: E731
        values = [1.0]
        for parent, path in zip(self.parents[1:], self.to_paths(), strict=True):
            values.append(values[parent] * (acceptance(path) or 0.0) if values[parent] else 0.0)
        return float(sum(values))

    @classmethod
    def from_paths(cls, paths: str | Iterable[Sequence[int]]) -> DraftTree:
        """The tree of a list of paths, as Medusa, EAGLE and TensorRT-LLM have it as choices and vLLM as token tree.

        A path has the child indices from the root on: (1, 0) is the first child of the root's second. Nodes come by
        depth, then by path, as those engines number them.

        Parameters
        ----------
        paths : str or iterable of sequences of int
            One for each node but the root, in any order. Or such a list written out, as vLLM's
            ``speculative_token_tree``.

        Raises
        ------
        ValueError
            If a path comes twice, or its parent or its elder sibling is no path; or for a text that is no such list.

        Examples
        --------
        >>> DraftTree.from_paths([[0], [0, 0], [1], [0, 1]]).parents
        (-1, 0, 0, 1, 1)
        >>> DraftTree.from_paths("[(0,), (0, 0), (0, 1)]").parents
        (-1, 0, 1, 1)
        """
        given: Any = paths
        if isinstance(paths, str):
            try:
                given = ast.literal_eval(paths)
            except (SyntaxError, ValueError):
                raise ValueError(f"paths: expected a list like [(0,), (0, 0)]; got {paths!r}") from None
        try:
            nodes = sorted((tuple(map(operator.index, path)) for path in given), key=lambda path: (len(path), path))
        except TypeError:
            raise TypeError(f"paths: expected paths of child indices; got {given!r}") from None
        parents = [-1]
        node_of_path: dict[tuple[int, ...], int] = {(): 0}
        for path in nodes:
            if path in node_of_path or min(path) < 0:
                raise ValueError(f"paths: expected child indices from 0 on, and each path once; got {path}")
            *before, child = path
            for needed in (before, [*before, child - 1]) if child else (before,):
                if tuple(needed) not in node_of_path:
                    raise ValueError(f"paths: expected {tuple(needed)} too, as {path} is there; got none")
            node_of_path[path] = len(parents)
            parents.append(node_of_path[tuple(before)])
        return cls(tuple(parents))

    def to_paths(self) -> list[tuple[int, ...]]:
        """The path of each node but the root: the child indices from the root on.

        Examples
        --------
        >>> DraftTree.from_parents([-1, 0, 0, 1]).to_paths()
        [(0,), (1,), (0, 0)]
        """
        paths: list[tuple[int, ...]] = [()]
        for parent, child in zip(self.parents[1:], self.child_indices[1:], strict=True):
            paths.append((*paths[parent], child))
        return paths[1:]

    def mask(self) -> torch.Tensor:
        """bool [N, N]: which nodes each attends to, ancestors and itself."""
        return tree_mask(self.tensor())[0]

    @classmethod
    def from_mask(cls, mask: torch.Tensor) -> DraftTree:
        """The tree in which each node attends to its ancestors and itself as ``mask``, bool [N, N], says."""
        parents = [max((j for j in range(i) if row[j]), default=-1) for i, row in enumerate(mask.tolist())]
        tree = cls(tuple(parents))
        if not torch.equal(tree.mask(), mask.cpu().bool()):
            raise ValueError("mask: expected each node to attend to its ancestors and itself alone")
        return tree

    def to_sglang(self, batch: int = 1, device: Device = None) -> RetrievalArrays:
        """SGLang's linked arrays, the same tree for every request.

        Examples
        --------
        >>> DraftTree.from_parents([-1, 0, 0, 1]).to_sglang().retrive_next_sibling.tolist()
        [[-1, 2, -1, -1]]
        """
        nodes, batch = len(self.parents), _count("batch", batch)
        first = [below[0] if below else -1 for below in self.children]
        sibling = [-1] * nodes
        for below in self.children:
            for node, following in itertools.pairwise(below):
                sibling[node] = following
        rows = [
            torch.tensor(row, device=device, dtype=torch.int64).expand(batch, nodes).contiguous()
            for row in (first, sibling)
        ]
        return RetrievalArrays(torch.arange(batch * nodes, device=device, dtype=torch.int64).view(batch, nodes), *rows)

    @classmethod
    def from_sglang(cls, retrive_next_token: torch.Tensor, retrive_next_sibling: torch.Tensor) -> DraftTree:
        """The tree of one request's linked arrays [N]; siblings must be linked in the order of their indices."""
        first, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
        parents = [-1] * len(first)
        for node, child in enumerate(first):
            before = node
            while child != -1:
                if not before < child < len(parents) or parents[child] != -1:
                    raise ValueError(
                        f"retrive arrays: expected nodes once, after parent and elder sibling; got {child} below {node}"
                    )
                parents[child], before, child = node, child, sibling[child]
        return cls(tuple(parents))

    def to_tensorrt_llm(self) -> torch.Tensor:
        """TensorRT-LLM's packed mask: int32 [N, ceil(N / 32)], bit j of row i is set if node i attends to node j."""
        return tree_mask(self.tensor(), layout="bits")[0]

    @classmethod
    def from_tensorrt_llm(cls, packed: torch.Tensor) -> DraftTree:
        """The tree of one request's packed mask, int32 [N, ceil(N / 32)]."""
        bits = (packed.cpu().unsqueeze(-1) >> torch.arange(32, dtype=torch.int64, device="cpu") & 1).flatten(1)
        return cls.from_mask(bits[:, : len(packed)].bool())

    def to_flashinfer(self, prefix_len: int = 0) -> torch.Tensor:
        """FlashInfer's packed custom mask of one request: uint8 [ceil(N (prefix_len + N) / 8)], little-endian bits."""
        mask = tree_mask(self.tensor(), prefix_len=prefix_len)
        return torch.from_numpy(np.packbits(mask.numpy().ravel(), bitorder="little"))

    @classmethod
    def from_flashinfer(cls, packed: torch.Tensor, nodes: int, prefix_len: int = 0) -> DraftTree:
        """The tree of one request's packed custom mask, of this many nodes after this many committed tokens."""
        nodes, prefix_len = _count("nodes", nodes), _count("prefix_len", prefix_len)
        bits = np.unpackbits(packed.cpu().numpy(), bitorder="little", count=nodes * (prefix_len + nodes))
        mask = torch.from_numpy(bits.reshape(nodes, prefix_len + nodes)).bool()
        if not mask[:, :prefix_len].all():
            raise ValueError(f"packed: expected every node to attend to all {prefix_len} tokens of the prefix")
        return cls.from_mask(mask[:, prefix_len:])


def _count(name: str, k: SupportsIndex) -> int:
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise TypeError(f"{name}: expected an int; got {k!r}")
    if operator.index(k) < 0:
        raise ValueError(f"{name}: expected 0 or more; got {k}")
    return operator.index(k)


def _probabilities(acceptance: Iterable[float]) -> list[float]:
    """Acceptances by child index as floats; at most one child is accepted, so they sum to 1 at most."""
    values = [float(value) for value in acceptance]
    for value in values:
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"acceptance: expected probabilities; got {value}")
    if sum(values) > 1 + TOLERANCE:
        raise ValueError(
            f"acceptance: expected a sum of at most 1, for one child at most is accepted; got {sum(values)}"
        )
    return values

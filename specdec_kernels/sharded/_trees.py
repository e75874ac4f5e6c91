"""verify_tree over a vocabulary of which each rank has a slice."""

import functools

import torch

from specdec_kernels import ops
from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.calls.values import Counter, Number, Space, TreeMethod
from specdec_kernels.ops import TreeVerdict
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _trees as trees
from specdec_kernels.ops.verify_tree import VERIFY_TREE, width_of
from specdec_kernels.sampling import Draft, LogitEdits, Sampling
from specdec_kernels.sharded._checks import check_logits, check_seed, refuse, written
from specdec_kernels.sharded._edits import of_requests, on_paths
from specdec_kernels.sharded._laws import Side, check_draft, draft_law_of, law_of
from specdec_kernels.sharded._requests import Requests
from specdec_kernels.sharded._shard import VocabShard, with_a_column
from specdec_kernels.sharded._walks import raced, weighed


@with_denormals
def verify_tree(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | Draft | None = None,
    *,
    shard: VocabShard,
    parents: torch.Tensor,
    method: TreeMethod = "rejection",
    replacement: bool = False,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    max_depth: int | None = None,
    out=None,
    check: bool = False,
) -> TreeVerdict:
    """``specdec_kernels.verify_tree`` on slices of rows: the same verdict, bit for bit, on every rank.

    Parameters
    ----------
    target : Tensor
        [B, N, n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    draft_tokens, draft, parents, ...
        As for ``specdec_kernels.verify_tree``; ``draft`` has this rank's columns, too.
    """
    draft, rows_name = laws.drafted(draft)
    target, empty = with_a_column(target, space)
    draft = draft._replace(rows=with_a_column(draft.rows)[0])
    rows = draft.rows
    refused = {name: x for name, x in (("seed", seed), ("position", position)) if isinstance(x, tuple)}
    refuse("verify_tree", **{"draft.map": draft.map}, **refused)
    check_seed("verify_tree", seed)
    inputs.check_choice("method", method, ("rejection", "race", "traversal"))
    VERIFY_TREE.check({}, draft_tokens=draft_tokens, target=target)
    laws.check_method(method, rows)
    if method != "race":
        p_law = law_of(space, temperature, sampling)
        q_law = draft_law_of(draft, p_law)
    if rows is not None:
        check_draft(rows_name, rows, target, (draft_tokens.shape[1],))
    replacement = inputs.flag("replacement", replacement)
    deepest = trees.check_parents(parents, draft_tokens.shape)
    shard.check("verify_tree", target, empty)
    if method != "race":
        shard.check_tiles(f"method={method!r}")
    if check and space == "logits":
        check_logits(shard, target=target, **{} if rows is None else {rows_name: rows})
    batch, nodes = draft_tokens.shape
    how = {
        "width": width_of(max_depth, deepest, nodes, VERIFY_TREE.given_outputs(out)),
        "parents": parents,
        "replacement": replacement,
    }
    depth = ops.tree_positions(parents, prefix_len=0)
    request = torch.arange(batch, device=target.device, dtype=torch.int64).unsqueeze(-1).expand(batch, nodes)
    noise = (seed, position, nonce)
    requests = Requests(
        batch, request, depth, request_index, noise,
        (temperature, sampling, rows, draft.sampling, *edit.lists(edits, target)),
    )  # fmt: skip
    if edits is not None:
        before = functools.partial(on_paths, draft_tokens, parents, depth)
        edits = of_requests(edits, shard, requests, target, space, before)
    if method != "race" and not isinstance(p_law.temperature, torch.Tensor) and p_law.temperature < SMALLEST:
        method, temperature, sampling = "race", 0.0, None  # the argmax decides
        how["unused"] = p_law, draft.sampling
    if method == "race":
        law = {"space": space, "temperature": requests.of_rows(temperature), "sampling": requests.of_rows(sampling)}
        walked = raced(requests, shard, draft_tokens, target, edits, law, **how)
        return written("verify_tree", TreeVerdict(*walked[:4]), out, check)
    tokens, draft_row_indices = draft_tokens.flatten(), None
    parent, node = parents.long().clamp(0, nodes - 1), torch.arange(nodes, device=target.device, dtype=torch.int64)
    row_indices = (request * nodes + parent).flatten()
    sides = [Side(target, requests.of_rows(p_law), requests.row_index(), row_indices, tokens, edits)]
    if rows is not None:
        if requests.entry is not None:
            first = requests.entry.unsqueeze(-1) * nodes
            row_indices, draft_row_indices = (first + parent).flatten(), (first + node).flatten()
        sides.append(Side(rows, requests.of_draft_rows(None, rows, q_law), None, row_indices, tokens))
    walked = weighed(
        requests, shard, draft_tokens, sides, draft_row_indices, (p_law, q_law, draft.sampling), method, **how
    )  # fmt: skip
    return written("verify_tree", TreeVerdict(*walked[:4]), out, check)

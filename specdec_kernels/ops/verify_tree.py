"""verify_tree: walks a request's draft tree from the root while tokens are accepted, and emits one token more."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter, Number, Space, TreeMethod
from specdec_kernels.layout import InputPositions, OutputFormat
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _output_format as formats
from specdec_kernels.ops import _trees as trees
from specdec_kernels.sampling import Draft, LogitEdits, Sampling
from specdec_kernels.status import raise_for_status


class TreeVerdict(NamedTuple):
    """The verdict of each request's tree; D is the greatest depth of a node.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, D+1]: the emitted tokens, -1 after the last.
    path : Tensor
        int32 [B, D+1]: the nodes walked, from the root (0): the row of ``path[d]`` decided ``tokens[d]``, and
        ``tokens[d]`` is the draft token of ``path[d + 1]``. -1 after the last.
    num_accepted : Tensor
        int32 [B]: draft nodes accepted; ``num_accepted + 1`` tokens were emitted. -1 for an idle request.
    status : Tensor
        int32 [B], the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row without positive
        weight; 2 the residual was empty (drew from p); 4 a draft token out of range (rejected); 8 a temperature
        (argmax), top_p or min_p (off) out of range, an entry of ``parents`` that is no node before this one (the node
        counts as absent), a node deeper than ``max_depth`` (absent, too), or a request_index that points outside (token
        0). Bits report only rows and entries that decided the output.
    """

    tokens: torch.Tensor
    path: torch.Tensor
    num_accepted: torch.Tensor
    status: torch.Tensor


VERIFY_TREE = Op(
    "verify_tree",
    result=TreeVerdict,
    sizes={"max_depth": kinds.size("W:o")},
    draft_tokens=kinds.tokens("BN"),
    parents=kinds.tokens(role="parents"),
    target=kinds.rows("BNV"),
    draft=kinds.rows("ENU", optional=True, role="draft"),
    draft_map=kinds.ints("U", optional=True, role="draft"),
    request_index=kinds.REQUEST_INDEX,
    method=kinds.choice("rejection", "race", "traversal", "paths"),
    replacement=kinds.FLAG,
    target_law=kinds.law("E"),
    draft_law=kinds.law("E", role="draft"),
    edits=kinds.EDITS,
    noise=kinds.noise("E"),
    input_positions=kinds.counters("BN", "position.positions", optional=True, role="noise"),
    row_seeds=kinds.counters("BN", "seed", optional=True, role="noise"),
    leaves=kinds.tokens("BQ", optional=True),
    tokens=kinds.Output(torch.int64, "out.tokens", "BW", given_as=inputs.TOKEN_DTYPES),
    path=kinds.Output(torch.int32, "out.path", "BW", by_rows=True),
    num_accepted=kinds.Output(torch.int32, "out.num_accepted", "B"),
    status=kinds.Output(torch.int32, "out.status", "B"),
    index=kinds.tokens("BN", "output_format.index", optional=True, role="output_format"),
    output_format=kinds.size(role="output_format"),
)


def verify_tree(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | Draft | None = None,
    *,
    parents: torch.Tensor,
    leaves: torch.Tensor | None = None,
    method: TreeMethod = "rejection",
    replacement: bool = False,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    seed: Counter,
    position: Counter | InputPositions,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    max_depth: int | None = None,
    out: Sequence[torch.Tensor | None] | None = None,
    output_format: OutputFormat | None = None,
    check: bool = False,
) -> TreeVerdict:
    """Verify each request's tree of draft tokens against the target, so that the output law is exactly the target's.

    A tree is ``parents``: node 0 is the root, the last committed token; the children of a node are its
    alternatives for the next token, in the order of their indices. Row i of the target is the law of the token after
    node i.

    ``method="rejection"`` tries a node's children in order. The m-th, with token x, is accepted iff
    ``u q_m(x) < p_m(x)``; else ``p_{m+1} = norm((p_m - q_m)^+)`` and ``q_{m+1}`` is ``q_m`` without x, renormalised
    (``replacement=True``: ``q`` itself). When no child is left one token of ``p_m`` is emitted.
    ``method="race"`` emits the target's race winners for as long as the tree holds them: the output equals that of
    ``race_sample`` position by position, whatever the tree was.
    ``method="traversal"`` is ``method="block"`` of ``verify_chain`` for trees: it tries leaves, from the bottom up. The
    root weighs ``a = 1``, a child with token x of a node that weighs a weighs ``min(1, a p(x) / q(x))``. The first leaf
    (the first child, again and again) is accepted with its path iff ``u < a``, and a token of its p is emitted. Else it
    leaves the tree, and with ``s = sum (a p - q)^+`` of its parent, that one's laws become ``norm((a p - q)^+)`` and q
    without x, renormalised (``replacement=True``: ``q`` itself), its weight ``s / (s + 1 - a)``; then the first leaf
    again. If the root alone is left, one token of its p is emitted. As for ``block``, every round needs a fresh
    ``nonce``; and, since a walk may leave one branch for another, the children of each node must be drawn with another
    nonce.
    ``method="paths"`` is for chains that were drawn independently of each other, merged into a tree (``merge_chains``).
    At each node it takes the best draft among some of the remaining chains, by p / q in half octaves, and goes on with
    all chains that have it; q' is the law of that draft. The chain taken in the end is verified as by
    ``method="block"`` of ``verify_chain``, with q' instead of q. It accepts more than traversal of the same chains.
    Every round needs a fresh ``nonce``, every chain another one.

    Parameters
    ----------
    draft_tokens : Tensor
        int32 or int64 [B, N]: the nodes' tokens. The root's is ignored. A node of token -1 is absent, with all nodes
        below it.
    target : Tensor
        float32, bfloat16 or float16 [B, N, V]. Only the last dimension must be contiguous.
    draft : Tensor or Draft, optional
        [B, N, V'], V' <= V: row i is the law that the children of node i were drawn from, the rows of leaves are
        ignored; as for ``verify_chain``. Without it the children count as deterministic:
        child x is accepted with probability p(x) / (mass not yet tried). ``method="race"`` needs none and takes none.
    parents : Tensor
        int32 or int64 [N], one tree for the batch, or [B, N]: ``parents[0] = -1``, ``parents[i] < i``. A smaller tree
        is padded with -1. ``DraftTree`` makes shapes. A bad entry is an error on a CPU; elsewhere it counts as absent
        and sets status 8.
    leaves : Tensor, optional
        int32 or int64 [B, n], with ``method="paths"``: the node at which each chain ends, -1 for none. Chains without
        a common node may have equal tokens. The length of a chain must not depend on its tokens, except that an end of
        text ends all chains that begin so.
    method : {"rejection", "race", "traversal", "paths"}
        "paths" needs ``draft``.
    replacement : bool
        Whether siblings were drawn independently of each other; they may then repeat a token. Otherwise a sibling with
        the token of an elder one is skipped.
    temperature : float or Tensor
        float32 [B], as for ``verify_chain``. At 0 the child that has the argmax is accepted.
    space, sampling, edits, out, output_format : optional
        As for ``verify_chain``; ``out`` is a ``TreeVerdict``. With edits the row of a node counts the drafts on its
        path; the root's token is output already.
    seed, position, nonce : int or Tensor
        int64 or int32 [B], as for ``verify_chain``; ``position`` is that of the token the root's row decides, or an
        ``InputPositions``. A node at depth d decides ``position + d``; the uniform of node i has index i - 1
        (traversal: 2^30 + i - 1, and so paths, which at each depth have a uniform of index 2^31, too). So a chain gives
        what ``verify_chain`` gives. Of a race ``seed`` may be [B, N].
    request_index : Tensor, optional
        int32 or int64 [B], as for ``verify_chain``: ``temperature``, ``seed``, ``position``, ``nonce`` and ``draft``
        then have S entries; ``draft_tokens``, ``parents`` and ``target`` still have B.
    max_depth : int, optional
        D, the greatest depth that the outputs have room for. Default: that of the trees on a CPU; N - 1 on a device,
        where reading it would wait for it, and under ``torch.compile``, which traces no values. Deeper nodes count as
        absent; one that would have been tried sets status 8.

    Returns
    -------
    TreeVerdict
        ``(tokens, path, num_accepted, status)``.

    References
    ----------
    Kobus, Gündüz 2025, "Speculative Decoding via Exponential Races", Algorithms 4 (rejection) and 5 (race); Jeon et al.
    2024 (recursive rejection sampling without replacement); Miao et al. 2024, SpecInfer (with replacement); Weng et al.
    2025, "Traversal Verification for Speculative Tree Decoding".

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p = torch.tensor([0.4, 0.3, 0.2, 0.1]).expand(1, 3, 4)
    >>> q = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(1, 3, 4)
    >>> verdict = specdec_kernels.verify_tree(
    ...     torch.tensor([[-1, 0, 3]]), p, q, parents=torch.tensor([-1, 0, 0]), space="probs", seed=7, position=0
    ... )
    >>> verdict.num_accepted.tolist(), verdict.path.tolist()  # p(0) >= q(0): the first child is always accepted
    ([1], [[0, 1]])
    """
    if (outputs := VERIFY_TREE.direct(
        check, max_depth, draft_tokens, parents, target, draft, request_index, method, replacement, space, temperature,
        sampling, edits, seed, position, nonce, leaves, out, output_format,
    )) is not None:  # fmt: skip
        return outputs
    drafted, rows_name = laws.drafted(draft)
    sizes = inputs.beside(target)
    VERIFY_TREE.check(sizes, draft_tokens=draft_tokens, method=method)
    (batch, nodes), device = draft_tokens.shape, draft_tokens.device
    depth = trees.check_parents(parents, (batch, nodes))
    inputs.check_device("parents", parents, device)
    VERIFY_TREE.check(sizes, target=target)
    requests = batch
    if request_index is not None:
        laws.check_index(request_index, batch, device)
        numbers = (*laws.numbers_in(temperature, sampling, drafted.sampling), *edit.lists(edits, target))
        requests = laws.entries(drafted.rows, 1, *numbers, seed, position, nonce)
    laws.check_method(method, drafted.rows)
    if drafted.rows is not None:
        laws.check_draft(rows_name, drafted, target, (requests, nodes))
    if method == "paths" or leaves is not None:
        _check_leaves(leaves, method, drafted.rows)
        VERIFY_TREE.check(sizes, leaves=leaves)
    replacement = inputs.flag("replacement", replacement)

    target_law = laws.target_law(space, temperature, sampling, (requests,), device)
    draft_law = laws.draft_law(target_law, drafted, (requests,), device)
    changes = edit.of_requests(edits, target_law, target, requests)
    noise = laws.noise_of_requests(VERIFY_TREE, sizes, method, seed, position, nonce, batch, (requests,), device)

    given = VERIFY_TREE.given_outputs(out)
    width = width_of(max_depth, depth, nodes, given)
    output_format, choices, room = formats.checked(output_format, given, (batch, width))
    if output_format is not formats.PLAIN:
        VERIFY_TREE.check(sizes, index=output_format.index)
        formats.check_tree(output_format)
    verdict = VERIFY_TREE.outputs(out, device, room, (batch, width), (batch,), (batch,))
    if formats.is_empty(output_format):
        return verdict
    if check:
        inputs.check_logits("target", target, target_law.space)
        inputs.check_logits(rows_name, drafted.rows, draft_law.space)
    call = VERIFY_TREE.Call(
        draft_tokens=draft_tokens, parents=parents, target=target, draft=drafted.rows, draft_map=drafted.map,
        request_index=request_index, method=method, replacement=replacement, target_law=target_law, draft_law=draft_law,
        edits=changes, leaves=leaves, **noise, tokens=verdict.tokens, path=verdict.path,
        num_accepted=verdict.num_accepted, status=verdict.status, index=output_format.index, output_format=choices,
    )  # fmt: skip
    VERIFY_TREE.run(call, given=out is not None)
    if check:
        raise_for_status("verify_tree", verdict.status)
    return verdict


def _check_leaves(leaves, method, draft):
    if method != "paths":
        raise ValueError(f"leaves: expected None with method={method!r}; got {inputs.shown(leaves)}")
    if draft is None:
        raise ValueError("draft: expected the laws that the chains were drawn from, with method='paths'; got None")
    if leaves is None:
        inputs.check_tensor("leaves", leaves, inputs.TOKEN_DTYPES, 2)


def width_of(max_depth, depth, nodes, outputs):
    """The number of output columns."""
    if max_depth is not None:
        return inputs.whole("max_depth", max_depth, "an int of 0 or more", 0) + 1
    for given in outputs[:2]:
        if isinstance(given, torch.Tensor) and given.ndim == 2 and given.shape[1] > 0:
            return given.shape[1]
    return nodes if depth is None else depth + 1

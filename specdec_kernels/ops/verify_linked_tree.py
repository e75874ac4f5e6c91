"""verify_linked_tree: verifies trees that an engine stores as links, with its uniforms or its target's tokens."""

from collections.abc import Sequence

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter, Number
from specdec_kernels.layout import OutputFormat
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _output_format as formats
from specdec_kernels.ops.verify_tree import TreeVerdict
from specdec_kernels.status import raise_for_status

VERIFY_LINKED_TREE = Op(
    "verify_linked_tree",
    result=TreeVerdict,
    draft_tokens=kinds.tokens("BN"),
    first_child=kinds.tokens("BN"),
    next_sibling=kinds.tokens("BN"),
    tree_valid=kinds.Given((torch.bool,), "B:c", optional=True),
    target=kinds.rows("BNV", optional=True),
    target_tokens=kinds.tokens("BN", optional=True),
    uniforms=kinds.floats("BN", optional=True),
    threshold_single=kinds.number("E", most=1.0),
    threshold_total=kinds.number("E", most=1.0),
    noise=kinds.noise("E"),
    tokens=kinds.Output(torch.int64, "out.tokens", "BW", given_as=inputs.TOKEN_DTYPES),
    path=kinds.Output(torch.int32, "out.path", "BW", by_rows=True),
    num_accepted=kinds.Output(torch.int32, "out.num_accepted", "B"),
    status=kinds.Output(torch.int32, "out.status", "B"),
    index=kinds.tokens("BN", "output_format.index", optional=True, role="output_format"),
    output_format=kinds.size(role="output_format"),
)


def verify_linked_tree(
    draft_tokens: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    tree_valid: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    target_tokens: torch.Tensor | None = None,
    threshold_single: Number = 1.0,
    threshold_total: Number = 1.0,
    seed: Counter = 0,
    position: Counter = 0,
    nonce: Counter = 0,
    out: Sequence[torch.Tensor | None] | None = None,
    output_format: OutputFormat | None = None,
    check: bool = False,
) -> TreeVerdict:
    """Verify trees that an engine stores as links, with the uniforms or the target's tokens of the engine, if given.

    ``verify_tree`` without draft laws, but siblings are tried in the order in which they are linked, nodes may have any
    order of indices, and one uniform u of a node decides among its children: the m-th, with token x_m, is accepted iff
    ``p(x_m) > 0`` and ``u threshold_total < p(x_1) + ... + p(x_m)``, or ``p(x_m) >= threshold_single``. If none is, one
    token of p without theirs is emitted. With uniforms of a uniform law and both thresholds at 1 the output law is
    exactly the target's; below 1 more is accepted than may be. A sibling with the token of an elder one is skipped.

    With ``target_tokens`` instead of ``target`` and ``uniforms``, a child is accepted iff it has its parent's
    token, and the token of the last node is emitted. That is greedy verification, or one by tokens that were drawn
    before.

    Parameters
    ----------
    draft_tokens : Tensor
        int32 or int64 [B, N]: the nodes' tokens. The root's is ignored. A node of token -1 is absent, with all nodes
        below it.
    target : Tensor, optional
        float32, bfloat16 or float16 [B, N, V]: row i has the probabilities of the token after node i. Only the last
        dimension must be contiguous.
    first_child, next_sibling : Tensor
        int32 or int64 [B, N], -1 for none. Any links end, and no other request is ever read; nothing leads to the root.
        A node that several nodes link is a child of each.
    tree_valid : Tensor, optional
        bool [B], contiguous: where it is False a tree is its root alone, and its links are not read.
    uniforms : Tensor, optional
        float32 [B, N] in [0, 1]: one for the children of each node. Default: the noise's accept uniform of index i for
        node i, at depth d that of position + d. So a chain gives what ``verify_chain`` gives without draft laws.
    target_tokens : Tensor, optional
        int32 or int64 [B, N]: the token after each node.
    threshold_single, threshold_total : float or Tensor
        In [0, 1], or float32 [B].
    seed, position, nonce : int or Tensor
        int64 or int32 [B], as for ``verify_tree``: for the last token, at depth d of position + d, and for uniforms
        that are not given. Not used with given tokens.
    out : TreeVerdict, optional
        Preallocated outputs, as for ``verify_tree``. The columns of its path bound the depth of a tree, the root
        counted; deeper nodes count as absent. Default: N.
    output_format : OutputFormat, optional
        How outputs are written, if otherwise, as for ``verify_tree``.

    Returns
    -------
    TreeVerdict
        ``(tokens, path, num_accepted, status)``. Bit 8 of the status also reports a link on the walk that is neither
        -1 nor a node's, or siblings in a circle.

    References
    ----------
    Miao et al. 2024, SpecInfer; the walk of SGLang's ``tree_speculative_sampling_target_only`` and of its
    ``verify_tree_greedy``.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p = torch.tensor([0.5, 0.3, 0.2]).expand(1, 3, 3)
    >>> links = {"first_child": torch.tensor([[2, -1, -1]]), "next_sibling": torch.tensor([[-1, -1, 1]])}
    >>> drafts, uniforms = torch.tensor([[-1, 0, 1]]), torch.tensor([[0.6, 0.5, 0.5]])
    >>> verdict = specdec_kernels.verify_linked_tree(drafts, p, uniforms=uniforms, **links, seed=7, position=0)
    >>> verdict.path.tolist(), verdict.tokens[:, 0].tolist()  # 0.6 is above p(1), and below p(1) + p(0)
    ([[0, 1, -1]], [0])
    >>> wanted = torch.tensor([[1, 5, 6]])
    >>> specdec_kernels.verify_linked_tree(drafts, target_tokens=wanted, **links).tokens.tolist()
    [[1, 6, -1]]
    """
    if (outputs := VERIFY_LINKED_TREE.direct(
        check, draft_tokens, first_child, next_sibling, tree_valid, target, target_tokens, uniforms, threshold_single,
        threshold_total, seed, position, nonce, out, output_format,
    )) is not None:  # fmt: skip
        return outputs
    sizes = VERIFY_LINKED_TREE.check(
        {}, draft_tokens=draft_tokens, first_child=first_child, next_sibling=next_sibling, tree_valid=tree_valid,
        target=target, target_tokens=target_tokens, uniforms=uniforms,
    )  # fmt: skip
    (batch, nodes), device = draft_tokens.shape, draft_tokens.device
    if target_tokens is None and target is None:
        inputs.check_rows("target", target)
    for name, value in (("target", target), ("uniforms", uniforms)):
        if target_tokens is not None and value is not None:
            raise ValueError(f"{name}: expected None beside target_tokens; got {inputs.shown(value)}")
    single = VERIFY_LINKED_TREE.number("threshold_single", threshold_single, (batch,), device)
    total = VERIFY_LINKED_TREE.number("threshold_total", threshold_total, (batch,), device)
    noise = laws.noise_of(1 if target is None else batch, seed, position, nonce, (batch,), device)

    width, given = nodes, VERIFY_LINKED_TREE.given_outputs(out)
    if isinstance(given[1], torch.Tensor) and given[1].ndim == 2:
        width = max(given[1].shape[1], 1)
    output_format, choices, room = formats.checked(output_format, given, (batch, width))
    if output_format is not formats.PLAIN:
        VERIFY_LINKED_TREE.check(sizes, index=output_format.index)
        formats.check_tree(output_format)
    verdict = VERIFY_LINKED_TREE.outputs(out, device, room, (batch, width), (batch,), (batch,))
    if formats.is_empty(output_format):
        return verdict
    VERIFY_LINKED_TREE(
        draft_tokens, first_child, next_sibling, tree_valid, target, target_tokens, uniforms, single, total, noise,
        *verdict, output_format.index, choices, given=out is not None,
    )  # fmt: skip
    if check:
        raise_for_status("verify_linked_tree", verdict.status)
    return verdict

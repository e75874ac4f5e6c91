"""verify_tree: walk a request's draft tree from the root for as long as its tokens are accepted, and emit one more."""

from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops import _trees as trees
from specdec_kernels.ops._registration import define


class TreeVerdict(NamedTuple):
    """What became of each request's tree; D is the greatest depth of a node.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, D+1]: the emitted tokens, -1 after the last.
    path : Tensor
        int32 [B, D+1]: the nodes walked, from the root (0): the row of ``path[d]`` decided ``tokens[d]``, and
        ``tokens[d]`` is the draft token of ``path[d + 1]``. -1 after the last.
    num_accepted : Tensor
        int32 [B]: draft nodes accepted; ``num_accepted + 1`` tokens were emitted.
    status : Tensor
        int32 [B], bits: 1 a NaN or +inf was met, or a row without positive weight; 2 the residual was empty (drew from
        p); 4 a draft token out of range (rejected); 8 a temperature out of range (argmax), a parent that is none (the
        node counts as absent), or a node deeper than ``max_depth`` (likewise). Of what decided the output only.
    """

    tokens: torch.Tensor
    path: torch.Tensor
    num_accepted: torch.Tensor
    status: torch.Tensor


_op = define(
    "verify_tree",
    "Tensor draft_tokens, Tensor target, Tensor? draft, Tensor parents, str method, bool replacement, str space, "
    "Tensor? temperatures, float temperature, Tensor? seeds, SymInt seed, Tensor? positions, SymInt position, "
    "Tensor? nonces, SymInt nonce, Tensor(a!) tokens, Tensor(b!) path, Tensor(c!) num_accepted, Tensor(d!) status",
    lambda draft_tokens, target, draft, parents, method, replacement, space, temperatures, temperature,
    seeds, seed, positions, position, nonces, nonce, tokens, path, num_accepted, status: (
        draft_tokens, target, draft, parents, method, replacement, space,
        temperature if temperatures is None else temperatures,
        seed if seeds is None else seeds,
        position if positions is None else positions,
        nonce if nonces is None else nonces,
        tokens, path, num_accepted, status,
    ),
)  # fmt: skip


def verify_tree(
    draft_tokens,
    target,
    draft=None,
    *,
    parents,
    method="rejection",
    replacement=False,
    space="logits",
    temperature=1.0,
    seed,
    position,
    nonce=0,
    max_depth=None,
    out=None,
    check=False,
):
    """Verify each request's tree of draft tokens against the target, so that the output law is exactly the target's.

    A tree is ``parents``: node 0 is the root, the last token already known; the children of a node are its
    alternatives for the next token, in the order of their indices. Row i of the target is the law of the token after
    node i.

    ``method="rejection"`` tries a node's children in order. The m-th, with token x, is accepted iff
    ``u q^m(x) < p^m(x)``; else ``p^{m+1} = norm((p^m - q^m)^+)`` and ``q^{m+1}`` is ``q^m`` without x, renormalised
    (``replacement=True``: ``q`` itself). When no child is left one token of ``p^m`` is emitted.
    ``method="race"`` emits the target's own race winners for as long as the tree holds them: the output equals that of
    ``race_sample`` position by position, whatever the tree was.

    Parameters
    ----------
    draft_tokens : Tensor
        int32 or int64 [B, N]: the nodes' tokens. The root's is ignored; a node of token -1 is absent, and so is all
        below it.
    target : Tensor
        float32, bfloat16 or float16 [B, N, V]. Only the last dimension must be contiguous.
    draft : Tensor, optional
        [B, N, V'], V' <= V: row i is the law that the children of node i were drawn from, the rows of leaves are
        ignored; tokens from V' on have q = 0. Without it the children count as deterministic: child x is accepted with
        probability p(x) / (mass not yet tried). ``method="race"`` needs none and takes none.
    parents : Tensor
        int32 or int64 [N], one tree for the batch, or [B, N]: ``parents[0] = -1``, ``parents[i] < i``. A smaller tree
        is padded with -1. ``DraftTree`` makes shapes.
    method : {"rejection", "race"}
    replacement : bool
        Whether siblings were drawn independently of each other; they may then repeat a token. Otherwise a sibling with
        the token of an elder one is skipped.
    space : {"logits", "probs"}
        What the rows hold. Logits are divided by the temperature; probabilities are final.
    temperature : float or Tensor
        float32 [B]. 0 means argmax, ties to the lowest id: the child that has it is accepted.
    seed, position, nonce : int or Tensor
        int64 [B], as for ``verify_chain``; ``position`` is that of the token the root's row decides. A node at depth d
        decides ``position + d``; the coin of node i has index i - 1. So a chain gives what ``verify_chain`` gives.
    max_depth : int, optional
        D, the greatest depth that the outputs have room for. Default: the trees' own on a CPU, N - 1 elsewhere, where
        looking would wait for the device. Deeper nodes count as absent; one that would have been tried sets status 8.
    out : TreeVerdict, optional
        Preallocated outputs; then nothing is allocated and a CUDA graph can capture the call.
    check : bool
        Wait for the result and raise RuntimeError if a status bit is set.

    Returns
    -------
    TreeVerdict
        ``(tokens, path, num_accepted, status)``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came. Entries of ``parents`` are looked at on a CPU; elsewhere a
        bad one counts as absent and sets status 8.
    RuntimeError
        With ``check=True``; or if the backend cannot run here.

    References
    ----------
    Kobus, Gündüz 2025, "Speculative Decoding via Exponential Races", Algorithms 4 (rejection) and 5 (race); Jeon et al.
    2024 (recursive rejection sampling without replacement); Miao et al. 2024, SpecInfer (with replacement).

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
    inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 2)
    inputs.check_rows("target", target, 3)
    inputs.check_choice("method", method, ("rejection", "race"))
    device = target.device
    batch, nodes = draft_tokens.shape
    inputs.check_device("draft_tokens", draft_tokens, device)
    depth = trees.check_parents(parents)
    inputs.check_device("parents", parents, device)
    if parents.shape != (nodes,) and parents.shape != (batch, nodes):
        raise ValueError(f"parents: expected shape [{nodes}] or [{batch}, {nodes}]; got {inputs.shown(parents)}")
    if target.shape[:2] != (batch, nodes):
        raise ValueError(f"target: expected shape [{batch}, {nodes}, V]; got {inputs.shown(target)}")
    if draft is not None:
        _check_draft(draft, target, method)
    if not isinstance(replacement, bool):
        raise TypeError(f"replacement: expected a bool; got {inputs.shown(replacement)}")

    temperatures, temperature = inputs.number("temperature", temperature, (batch,), device)
    inputs.check_space(space, temperature if temperatures is None else temperatures)
    inputs.check_noise(batch, seed, position, nonce)
    seeds, seed = inputs.counter("seed", seed, (batch,), device)
    positions, position = inputs.counter("position", position, (batch,), device)
    nonces, nonce = inputs.counter("nonce", nonce, (batch,), device)

    width = _width(max_depth, depth, nodes, out)
    if out is None:
        out = TreeVerdict(
            torch.empty(batch, width, dtype=torch.int64, device=device),
            torch.empty(batch, width, dtype=torch.int32, device=device),
            torch.empty(batch, dtype=torch.int32, device=device),
            torch.empty(batch, dtype=torch.int32, device=device),
        )
    else:
        out = _check_out(out, batch, width, device)
    _op(
        draft_tokens, target, draft, parents, method, replacement, space, temperatures, temperature,
        seeds, seed, positions, position, nonces, nonce, *out,
    )  # fmt: skip
    if check:
        inputs.raise_for_status("verify_tree", out.status)
    return out


def _check_draft(draft, target, method):
    if method == "race":
        raise ValueError("draft: expected None with method='race', which needs no draft laws")
    inputs.check_rows("draft", draft, 3)
    inputs.check_device("draft", draft, target.device)
    if draft.shape[:2] != target.shape[:2]:
        raise ValueError(f"draft: expected shape {[*target.shape[:2], 'V']}; got {inputs.shown(draft)}")
    inputs.check_vocabulary(target, draft)


def _width(max_depth, depth, nodes, out):
    """Columns of the outputs."""
    if max_depth is not None:
        if not inputs.is_int(max_depth) or max_depth < 0:
            raise ValueError(f"max_depth: expected an int of 0 or more; got {max_depth!r}")
        return max_depth + 1
    if out is not None and isinstance(out[0], torch.Tensor) and out[0].ndim == 2 and out[0].shape[1] > 0:
        return out[0].shape[1]
    return nodes if depth is None else depth + 1


def _check_out(out, batch, width, device):
    if not isinstance(out, (tuple, list)) or len(out) != 4:
        raise TypeError(f"out: expected (tokens, path, num_accepted, status); got {inputs.shown(out)}")
    out = TreeVerdict(*out)
    inputs.output("out.tokens", out.tokens, torch.int64, (batch, width), device, row_stride=True)
    inputs.output("out.path", out.path, torch.int32, (batch, width), device, row_stride=True)
    inputs.output("out.num_accepted", out.num_accepted, torch.int32, (batch,), device)
    inputs.output("out.status", out.status, torch.int32, (batch,), device)
    return out

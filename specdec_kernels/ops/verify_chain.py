"""verify_chain: accept a prefix of a request's draft tokens and emit one token more."""

from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._registration import define


class Verdict(NamedTuple):
    """What became of each request's drafts.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, K+1]: the emitted tokens, -1 after the last.
    num_accepted : Tensor
        int32 [B]: drafts accepted; ``num_accepted + 1`` tokens were emitted.
    status : Tensor
        int32 [B], bits: 1 a NaN or +inf was met, or a row without positive weight; 2 the residual was empty (drew from
        p); 4 a draft token out of range (rejected); 8 a temperature, draft_prob, epsilon or cu_drafts out of range
        (argmax, clamped, or token 0). Of rows that decided the output only.
    """

    tokens: torch.Tensor
    num_accepted: torch.Tensor
    status: torch.Tensor


_op = define(
    "verify_chain",
    "Tensor draft_tokens, Tensor target, Tensor? draft, Tensor? cu_drafts, str method, str space, "
    "Tensor? temperatures, float temperature, Tensor? draft_probs, float draft_prob, Tensor? epsilons, float epsilon, "
    "Tensor? seeds, SymInt seed, Tensor? positions, SymInt position, Tensor? nonces, SymInt nonce, "
    "Tensor(a!) tokens, Tensor(b!) num_accepted, Tensor(c!) status",
    lambda draft_tokens, target, draft, cu_drafts, method, space, temperatures, temperature, draft_probs, draft_prob,
    epsilons, epsilon, seeds, seed, positions, position, nonces, nonce, tokens, num_accepted, status: (
        draft_tokens, target, draft, cu_drafts, method, space,
        temperature if temperatures is None else temperatures,
        draft_prob if draft_probs is None else draft_probs,
        epsilon if epsilons is None else epsilons,
        seed if seeds is None else seeds,
        position if positions is None else positions,
        nonce if nonces is None else nonces,
        tokens, num_accepted, status,
    ),
)  # fmt: skip


def verify_chain(
    draft_tokens,
    target,
    draft=None,
    *,
    method="rejection",
    space="logits",
    temperature=1.0,
    draft_prob=1.0,
    epsilon=0.0,
    seed,
    position,
    nonce=0,
    cu_drafts=None,
    max_drafts=None,
    out=None,
    check=False,
):
    """Verify each request's chain of draft tokens against the target, so that the output law is exactly the target's.

    ``method="rejection"`` accepts draft token x of slot j iff ``u q_j(x) < p_j(x)``; at the first rejection it emits
    one token of ``norm((p_j - q_j)^+)``, after the last acceptance one bonus token of the next target row.
    ``method="race"`` emits the target's own race winners for as long as the drafts agree with them: the output equals
    that of ``race_sample`` position by position, whatever the drafts were.

    Parameters
    ----------
    draft_tokens : Tensor
        int32 or int64 [B, K], or [D] with ``cu_drafts``. The first -1 of a request ends its drafts; K may be 0.
    target : Tensor
        float32, bfloat16 or float16 [B, K+1, V], or [D+B, V]: row j of a request is the law of the token that draft j
        proposes. Only the last dimension must be contiguous.
    draft : Tensor, optional
        [B, K, V'] or [D, V'], V' <= V: the laws the draft tokens were sampled from; tokens from V' on have q = 0.
        Without it the drafts count as deterministic (q one-hot). ``method="race"`` needs none and takes none.
    method : {"rejection", "race"}
    space : {"logits", "probs"}
        What the rows hold. Logits are divided by the temperature; probabilities are final.
    temperature : float or Tensor
        float32 [B]. 0 means argmax, ties to the lowest id. With probabilities only 0 or not 0 matters.
    draft_prob : float or Tensor
        float32 [B], [B, K] or (ragged) [D]: the probability h that a slot is drafted at all. Acceptance is then
        ``u h q(x) < p(x)`` and the residual ``norm((p - h q)^+)``, which is also the law of a slot that was not
        drafted: a -1 whose slot has h < 1.
    epsilon : float or Tensor
        float32 [B]: over-acceptance, ``u q(x) < p(x) + epsilon``. Lossy: P(reject) + loss = TV(p, q).
    seed, position, nonce : int or Tensor
        int64 [B]. All randomness is a function of these: the request's key, the absolute position of the token that
        row 0 decides, and a counter for calls that may repeat a position.
    cu_drafts : Tensor, optional
        int32 [B+1] from 0: request b owns drafts ``cu[b] .. cu[b+1]`` and target rows from ``cu[b] + b`` on.
    max_drafts : int, optional
        With ``cu_drafts``: the width K of the output. Default: the largest request on a CPU, D elsewhere, where
        looking would wait for the device. A request with more is cut off there and gets status bit 8.
    out : Verdict, optional
        Preallocated outputs; then nothing is allocated and a CUDA graph can capture the call.
    check : bool
        Wait for the result and raise RuntimeError if a status bit is set.

    Returns
    -------
    Verdict
        ``(tokens, num_accepted, status)``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.
    RuntimeError
        With ``check=True``; or if the backend cannot run here.

    References
    ----------
    Leviathan, Kalman, Matias 2023 (Algorithm 1); Chen et al. 2023; Kobus, Gündüz 2025, "Speculative Decoding via
    Exponential Races" (race); Toner et al. 2025, "Randomised Drafting" (draft_prob); Yin et al. 2024 (epsilon).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p = torch.tensor([[[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]])
    >>> q = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    >>> verdict = specdec_kernels.verify_chain(torch.tensor([[0]]), p, q, space="probs", seed=7, position=0)
    >>> verdict.num_accepted.tolist()  # p(0) >= q(0): always accepted
    [1]
    """
    ragged = cu_drafts is not None
    inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 1 if ragged else 2)
    inputs.check_rows("target", target, 2 if ragged else 3)
    inputs.check_choice("method", method, ("rejection", "race"))
    device = target.device
    inputs.check_device("draft_tokens", draft_tokens, device)
    if ragged:
        batch, drafts = _check_ragged(cu_drafts, draft_tokens, target)
        width = _ragged_width(cu_drafts, drafts, max_drafts, out)
        slots = (drafts,)
    else:
        if max_drafts is not None:
            raise ValueError(f"max_drafts: expected None without cu_drafts; got {max_drafts}")
        batch, width = draft_tokens.shape
        slots = (batch, width)
        if target.shape[:-1] != (batch, width + 1):
            raise ValueError(f"target: expected shape [{batch}, {width + 1}, V]; got {inputs.shown(target)}")
    if draft is not None:
        _check_draft(draft, target, slots, method)

    temperatures, temperature = inputs.number("temperature", temperature, (batch,), device)
    inputs.check_space(space, temperature if temperatures is None else temperatures)
    epsilons, epsilon = inputs.number("epsilon", epsilon, (batch,), device)
    draft_probs, draft_prob = _slot_numbers(draft_prob, batch, slots, cu_drafts, device)
    plain = draft_probs is None and draft_prob == 1.0
    if method == "race" and not (plain and epsilons is None and epsilon == 0.0):
        raise ValueError("draft_prob, epsilon: expected 1 and 0 with method='race', which has no use for them")
    if draft is None and not plain:
        raise ValueError("draft_prob: expected 1 without draft laws, which its residual needs")
    inputs.check_noise(batch, seed, position, nonce)
    seeds, seed = inputs.counter("seed", seed, (batch,), device)
    positions, position = inputs.counter("position", position, (batch,), device)
    nonces, nonce = inputs.counter("nonce", nonce, (batch,), device)

    if out is None:
        out = Verdict(
            torch.empty(batch, width + 1, dtype=torch.int64, device=device),
            torch.empty(batch, dtype=torch.int32, device=device),
            torch.empty(batch, dtype=torch.int32, device=device),
        )
    else:
        out = _check_out(out, batch, width, device)
    _op(
        draft_tokens, target, draft, cu_drafts, method, space, temperatures, temperature, draft_probs, draft_prob,
        epsilons, epsilon, seeds, seed, positions, position, nonces, nonce, *out,
    )  # fmt: skip
    if check:
        inputs.raise_for_status("verify_chain", out.status)
    return out


def _check_ragged(cu_drafts, draft_tokens, target):
    inputs.check_tensor("cu_drafts", cu_drafts, (torch.int32,), 1)
    inputs.check_device("cu_drafts", cu_drafts, target.device)
    if not cu_drafts.is_contiguous() or cu_drafts.shape[0] == 0:
        raise ValueError(f"cu_drafts: expected contiguous int32 [B+1]; got {inputs.shown(cu_drafts)}")
    batch, drafts = cu_drafts.shape[0] - 1, draft_tokens.shape[0]
    if target.shape[0] != drafts + batch:
        raise ValueError(f"target: expected {drafts + batch} rows (D + B); got {inputs.shown(target)}")
    return batch, drafts


def _ragged_width(cu_drafts, drafts, max_drafts, out):
    if max_drafts is not None:
        if not inputs.is_int(max_drafts) or max_drafts < 0:
            raise ValueError(f"max_drafts: expected an int of 0 or more; got {max_drafts!r}")
        return max_drafts
    if out is not None and isinstance(out[0], torch.Tensor) and out[0].ndim == 2:
        return out[0].shape[1] - 1
    if cu_drafts.device.type != "cpu" or torch.compiler.is_compiling() or cu_drafts.shape[0] == 1:
        return drafts
    return min(max(int(cu_drafts.diff().max()), 0), drafts)


def _check_draft(draft, target, slots, method):
    if method == "race":
        raise ValueError("draft: expected None with method='race', which needs no draft laws")
    inputs.check_rows("draft", draft, len(slots) + 1)
    inputs.check_device("draft", draft, target.device)
    if draft.shape[:-1] != slots:
        raise ValueError(f"draft: expected shape {[*slots, 'V']}; got {inputs.shown(draft)}")
    inputs.check_vocabulary(target, draft)


def _slot_numbers(draft_prob, batch, slots, cu_drafts, device):
    """draft_prob for every slot: [B, K] (or [D]) from what the caller gave."""
    if not isinstance(draft_prob, torch.Tensor):
        return inputs.number("draft_prob", draft_prob, slots, device, most=1.0)
    if cu_drafts is None:
        if draft_prob.ndim == 1:
            draft_prob = draft_prob.unsqueeze(1)
    elif draft_prob.ndim == 1 and draft_prob.shape[0] == batch != slots[0]:
        request = torch.arange(slots[0], device=device, dtype=torch.int32)
        draft_prob = draft_prob[torch.bucketize(request, cu_drafts[1:], right=True).clamp(max=batch - 1)]
    return inputs.number("draft_prob", draft_prob, slots, device, most=1.0)


def _check_out(out, batch, width, device):
    if type(out) is not Verdict:
        if not isinstance(out, (tuple, list)) or len(out) != 3:
            raise TypeError(f"out: expected (tokens, num_accepted, status); got {inputs.shown(out)}")
        out = Verdict(*out)
    inputs.output("out.tokens", out.tokens, torch.int64, (batch, width + 1), device, row_stride=True)
    inputs.output("out.num_accepted", out.num_accepted, torch.int32, (batch,), device)
    inputs.output("out.status", out.status, torch.int32, (batch,), device)
    return out

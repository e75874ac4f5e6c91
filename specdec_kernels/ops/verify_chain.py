"""verify_chain: accept a prefix of a request's draft tokens and emit one token more."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import ChainMethod, Counter, Number, Space
from specdec_kernels.layout import InputPositions, OutputFormat, Packing
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _output_format as formats
from specdec_kernels.sampling import Draft, LogitEdits, Sampling
from specdec_kernels.status import raise_for_status


class Verdict(NamedTuple):
    """The verdict of each request's drafts.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, K+1]: the emitted tokens, -1 after the last.
    num_accepted : Tensor
        int32 [B]: drafts accepted; ``num_accepted + 1`` tokens were emitted. -1 for an idle request.
    status : Tensor
        int32 [B], the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row without positive
        weight; 2 the residual was empty (drew from p); 4 a draft token out of range (rejected); 8 a temperature, top_p,
        min_p, draft_prob, epsilon, packing, request_index or output_format.bonus out of range (argmax, off, clamped, or
        token 0). Bits report only rows that decided the output.
    """

    tokens: torch.Tensor
    num_accepted: torch.Tensor
    status: torch.Tensor


VERIFY_CHAIN = Op(
    "verify_chain",
    result=Verdict,
    draft_tokens=kinds.tokens("BK|T"),
    target=kinds.rows("BLV|LV"),
    draft=kinds.rows("EKU|DU", optional=True, role="draft"),
    cu_drafts=kinds.ints(optional=True, role="packing"),
    tokens_by_row=kinds.Kind("bool {}", role="packing"),
    draft_map=kinds.ints("U", optional=True, role="draft"),
    request_index=kinds.REQUEST_INDEX,
    method=kinds.choice("rejection", "race", "block"),
    target_law=kinds.law("E"),
    draft_law=kinds.law("E", role="draft"),
    edits=kinds.EDITS,
    draft_prob=kinds.number("EK|ED", most=1.0),
    epsilon=kinds.number("E"),
    noise=kinds.noise("E"),
    input_positions=kinds.counters("BP|L", "position.positions", optional=True, role="noise"),
    input_nonces=kinds.counters("B", "position.nonces", optional=True, role="noise"),
    row_seeds=kinds.counters("BP", "seed", optional=True, role="noise"),
    tokens=kinds.Output(torch.int64, "out.tokens", "BP", given_as=inputs.TOKEN_DTYPES),
    num_accepted=kinds.Output(torch.int32, "out.num_accepted", "B"),
    status=kinds.Output(torch.int32, "out.status", "B"),
    path=kinds.Output(torch.int32, "output_format.path", "BP", optional=True, by_rows=True),
    num_passed=kinds.Output(torch.int32, "output_format.num_passed", "B", optional=True),
    index=kinds.tokens("BP", "output_format.index", optional=True, role="output_format"),
    bonus=kinds.tokens("B", "output_format.bonus", optional=True, role="output_format"),
    output_format=kinds.size(role="output_format"),
)


def verify_chain(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | Draft | None = None,
    *,
    method: ChainMethod = "rejection",
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_prob: Number = 1.0,
    epsilon: Number = 0.0,
    seed: Counter,
    position: Counter | InputPositions,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    packing: Packing | None = None,
    out: Sequence[torch.Tensor | None] | None = None,
    output_format: OutputFormat | None = None,
    check: bool = False,
) -> Verdict:
    """Verify each request's chain of draft tokens against the target, so that the output law is exactly the target's.

    ``method="rejection"`` accepts draft token x of slot j iff ``u q_j(x) < p_j(x)``; at the first rejection it emits
    one token of ``norm((p_j - q_j)^+)``, after the last acceptance one bonus token of the next target row. A token with
    ``q_j(x) = 0`` was not drawn from that law and is rejected, as is every token of a law of NaNs.
    ``method="race"`` emits the target's race winners for as long as the drafts agree with them: the output equals
    that of ``race_sample`` position by position, whatever the drafts were.
    ``method="block"`` decides all drafts together and accepts at least as many as rejection, on average. With
    ``w_0 = 1``, ``w_i = min(1, w_{i-1} p(x_i) / q(x_i))``, p and q those of the slot of draft i,
    ``Z_i = sum (w_i p - q)^+`` over the laws after it, ``h_i = Z_i / (Z_i + 1 - w_i)``, and ``h_K = w_K`` for the last,
    it accepts the most drafts i with ``u_i < h_i``, and emits one token of ``norm((w_i p - q)^+)`` or, after the last
    draft, of p. Later drafts decide about earlier tokens, so a position may only be verified again with a fresh
    ``nonce``: count the rounds. Without, the tokens of several rounds do not follow the target's law.

    Parameters
    ----------
    draft_tokens : Tensor
        int32 or int64 [B, K], or [D] with ``packing``. The first -1 of a request ends its drafts; K may be 0.
    target : Tensor
        float32, bfloat16 or float16 [B, K+1, V], or [D+B, V]: row j of a request is the law of the token that draft j
        proposes. Only the last dimension must be contiguous. One row less for each request with
        ``output_format.bonus``.
    draft : Tensor or Draft, optional
        [B, K, V'] or [D, V'], V' <= V: the laws the draft tokens were sampled from; tokens from V' on have q = 0. A
        ``Draft`` also has the rows' space, the sampling of its tokens, and the map of its vocabulary. At target
        temperature 0 these laws are not used. Without them the drafts count as deterministic (q one-hot).
        ``method="race"`` needs none and takes none.
    method : {"rejection", "race", "block"}
    space : {"logits", "probs"}
        What the rows hold. Logits are divided by the temperature; probabilities are final.
    temperature : float or Tensor
        float32 [B]. Default 1.0. 0 means argmax, ties to the lowest id. With probabilities only 0 or not 0 matters.
        Short for ``sampling=Sampling(temperature=...)``.
    sampling : Sampling, optional
        How a target row becomes a law, instead of ``temperature``.
    edits : LogitEdits, optional
        Edits of the target's logits before that: bias, penalties, a grammar. Row j of a request counts the
        drafts before it as output. Draft rows are never edited: drafts that were drawn with edits come with rows of
        edited logits.
    draft_prob : float or Tensor
        float32 [B] or [B, K]; with ``packing`` [D], one for each slot, or [B, 1], one for each request: the
        probability h that a slot is drafted at all. Acceptance is then ``u h q(x) < p(x)`` and the residual
        ``norm((p - h q)^+)``. A slot that was not drafted (token -1, h < 1) is drawn from it too. Only with
        ``method="rejection"``, as ``epsilon``.
    epsilon : float or Tensor
        float32 [B]: over-acceptance, ``u q(x) < p(x) + epsilon``. Lossy: P(reject) + loss = TV(p, q). It never accepts
        a token that the target's filters drop, nor, with ``edits``, one of logit -inf.
    seed, position, nonce : int or Tensor
        int64 or int32 [B]. All randomness is a function of these: the request's key, the absolute position of the token
        that row 0 decides, and a counter for calls that may repeat a position. ``position`` may be an
        ``InputPositions``. Of a race ``seed`` may be [B, K+1], padded: one for each row, beside 0 and 0.
    request_index : Tensor, optional
        int32 or int64 [B]: the entry of a request. ``draft``, ``draft_prob``, ``epsilon``, temperatures and noise
        then have S entries instead of B, and request b uses entry ``request_index[b]``; ``draft_tokens`` and
        ``target`` still have B. -1 is an idle request: nothing of it is read, its tokens and ``num_accepted`` are -1.
        Any other index outside [0, S) gives token 0 and status 8. With ``packing`` the draft's rows are those of an
        entry, too: [S, K or more, V'].
    packing : Packing, optional
        For requests that lie one after the other, each with another number of drafts.
    out : Verdict, optional
        Preallocated outputs; then nothing is allocated and a CUDA graph can capture the call. Each None among them is
        allocated. Tokens may be int32, and have any strides.
    output_format : OutputFormat, optional
        How outputs are written, if otherwise: into one row for all requests, added, or with a given token after the
        last draft.

    Returns
    -------
    Verdict
        ``(tokens, num_accepted, status)``.

    References
    ----------
    Leviathan, Kalman, Matias 2023 (Algorithm 1); Chen et al. 2023; Kobus, Gündüz 2025, "Speculative Decoding via
    Exponential Races" (race); Sun et al. 2024, "Block Verification Accelerates Speculative Decoding"
    (block); Toner et al. 2025, "Randomised Drafting" (draft_prob); Yin et al. 2024 (epsilon).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p = torch.tensor([[[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]])
    >>> q = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    >>> verdict = specdec_kernels.verify_chain(torch.tensor([[0]]), p, q, space="probs", seed=7, position=0)
    >>> verdict.num_accepted.tolist()  # p(0) >= q(0): always accepted
    [1]
    """
    if (outputs := VERIFY_CHAIN.direct(
        check, draft_tokens, target, draft, packing, request_index, method, space, temperature, sampling, edits,
        draft_prob, epsilon, seed, position, nonce, out, output_format,
    )) is not None:  # fmt: skip
        return outputs
    ends, tokens_by_row, max_drafts = ends_of(packing)
    drafted, rows_name = laws.drafted(draft)
    bonus = output_format.bonus if isinstance(output_format, OutputFormat) else None
    last_rows = 0 if bonus is not None else 1  # rows of a request after its last draft
    ragged = ends is not None
    sizes = inputs.beside(target)
    if ragged:
        sizes["packed"] = True
    VERIFY_CHAIN.check(sizes, draft_tokens=draft_tokens, method=method)
    device = draft_tokens.device
    if ragged:
        VERIFY_CHAIN.check(sizes, target=target)
        batch, drafts = check_ragged(ends, tokens_by_row, draft_tokens, target, last_rows)
        given = out if output_format is None or output_format.path is None else output_format[1:2]
        width = ragged_width(ends, tokens_by_row, drafts, max_drafts, given)
    else:
        batch, width = draft_tokens.shape
        sizes["L"] = width + last_rows
        VERIFY_CHAIN.check(sizes, target=target)
    token_shape = (batch, width + 1)
    requests, (sizes["B"], sizes["P"]) = batch, token_shape
    if bonus is not None:
        VERIFY_CHAIN.check(sizes, bonus=bonus)
        formats.check_bonus(tokens_by_row, isinstance(position, InputPositions))
    if request_index is not None:
        laws.check_index(request_index, batch, device)
        numbers = (*laws.numbers_in(temperature, sampling, drafted.sampling), *edit.lists(edits, target))
        requests = laws.entries(drafted.rows, 1, *numbers, draft_prob, epsilon, seed, position, nonce)
    shape, slots = (requests,), (drafts,) if ragged else (requests, width)
    if drafted.rows is not None:
        rows = (requests, width) if request_index is not None else slots
        laws.check_draft(rows_name, drafted, target, rows, more=ragged)

    target_law = laws.target_law(space, temperature, sampling, shape, device)
    draft_law = laws.draft_law(target_law, drafted, shape, device)
    changes = edit.of_requests(edits, target_law, target, requests)
    epsilon = VERIFY_CHAIN.number("epsilon", epsilon, shape, device)
    draft_prob = laws.slot_numbers(VERIFY_CHAIN, draft_prob, requests, slots, ragged, device)
    laws.check_method(method, drafted.rows, draft_prob, epsilon)
    noise = laws.noise_of_requests(VERIFY_CHAIN, sizes, method, seed, position, nonce, batch, shape, device)

    output_format, choices, room = formats.checked(output_format, VERIFY_CHAIN.given_outputs(out), token_shape)
    if output_format is not formats.PLAIN:
        _check_format(output_format, sizes)
    verdict = VERIFY_CHAIN.outputs(out, device, room, (batch,), (batch,))
    if output_format.num_passed is not None:
        plain = inputs.real(draft_prob) == 1 and inputs.real(epsilon) == 0
        _check_passed(drafted, method, target_law, draft_law, plain)
    if formats.is_empty(output_format):
        return verdict
    if check:
        inputs.check_logits("target", target, target_law.space)
        inputs.check_logits(rows_name, drafted.rows, draft_law.space)
    call = VERIFY_CHAIN.Call(
        draft_tokens=draft_tokens, target=target, draft=drafted.rows, cu_drafts=ends, tokens_by_row=tokens_by_row,
        draft_map=drafted.map, request_index=request_index, method=method, target_law=target_law, draft_law=draft_law,
        edits=changes, draft_prob=draft_prob, epsilon=epsilon, **noise, tokens=verdict.tokens,
        num_accepted=verdict.num_accepted, status=verdict.status, path=output_format.path,
        num_passed=output_format.num_passed, index=output_format.index, bonus=bonus, output_format=choices,
    )  # fmt: skip
    VERIFY_CHAIN.run(call, given=out is not None or output_format is not formats.PLAIN)
    if check:
        raise_for_status("verify_chain", verdict.status)
    return verdict


def ends_of(packing):
    """(cu_drafts or cu_rows, whether it is the latter, max_drafts) of a Packing."""
    if packing is None:
        return None, False, None
    inputs.check_type("packing", packing, Packing)
    cu_drafts, cu_rows, max_drafts = packing
    if cu_rows is None:
        if cu_drafts is None and max_drafts is not None:
            raise ValueError(f"packing.max_drafts: expected None without cu_drafts; got {max_drafts}")
        return cu_drafts, False, max_drafts
    if cu_drafts is not None:
        raise ValueError(f"packing.cu_drafts: expected None beside cu_rows; got {inputs.shown(cu_drafts)}")
    return cu_rows, True, max_drafts


def check_ends(ends, tokens_by_row, device):
    """The number of requests that these ends make."""
    name = "packing.cu_rows" if tokens_by_row else "packing.cu_drafts"
    inputs.check_tensor(name, ends, (torch.int32,), 1)
    inputs.check_device(name, ends, device)
    if not ends.is_contiguous() or ends.shape[0] == 0:
        raise ValueError(f"{name}: expected contiguous int32 [B+1]; got {inputs.shown(ends)}")
    return ends.shape[0] - 1


def check_ragged(ends, tokens_by_row, draft_tokens, target, last_rows):
    """(requests, drafts of all of them); each request has ``last_rows`` rows of the target after its last draft."""
    batch, tokens = check_ends(ends, tokens_by_row, target.device), draft_tokens.shape[0]
    drafts = tokens - batch if tokens_by_row else tokens
    rows = tokens if tokens_by_row else drafts + last_rows * batch
    if target.shape[0] != rows:
        raise ValueError(f"target: expected {rows} rows ({'D + B' if last_rows else 'D'}); got {inputs.shown(target)}")
    if drafts < 0:
        raise ValueError(f"target: expected a row of each of {batch} requests at least; got {inputs.shown(target)}")
    return batch, drafts


def ragged_width(ends, tokens_by_row, drafts, max_drafts, out):
    """The most drafts of a packed request."""
    if max_drafts is not None:
        return inputs.whole("packing.max_drafts", max_drafts, "an int of 0 or more", 0)
    if out is not None and isinstance(out[0], torch.Tensor) and out[0].ndim == 2:
        return out[0].shape[1] - 1
    if ends.device.type != "cpu" or torch.compiler.is_compiling() or ends.shape[0] == 1:
        return drafts
    return min(max(int(ends.diff().max()) - tokens_by_row, 0), drafts)


def _check_format(output_format, sizes):
    """Check the tensors of an OutputFormat, but for the bonus tokens."""
    index, path, num_passed, *_ = output_format
    VERIFY_CHAIN.check(sizes, index=index)
    if index is not None and path is None:
        raise ValueError("output_format.path: expected int32 [B, K+1] with output_format.index; got None")
    if path is not None:
        VERIFY_CHAIN.output("path", path, (sizes["B"], sizes["P"]), sizes["device"])
    if num_passed is not None:
        VERIFY_CHAIN.output("num_passed", num_passed, (sizes["B"],), sizes["device"])


def _check_passed(draft, method, target_law, draft_law, plain):
    """Check that a draft's test needs nothing but two probabilities in memory."""
    laws_are_rows = all(law.space == "probs" and type(law.temperature) is float for law in (target_law, draft_law))
    greedy = target_law.temperature == 0.0 if laws_are_rows else False
    if draft.rows is None or draft.map is not None or method != "rejection" or not laws_are_rows or greedy or not plain:
        raise ValueError(
            "output_format.num_passed: expected None but with method='rejection' of probabilities and a draft of them, "
            "without temperatures, draft.map, draft_prob and epsilon; got a tensor"
        )

"""What ends chains of which a walk accepted some drafts: one launch, a program for each request."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import PARAMETER, TOKEN_RANGE, draft_prob_of, inverse_temperature
from specdec_kernels.triton_kernels._rows import bounds_of, entry_of, number

CHUNK = 64  # slots at once


@_launch.kernel
def chain_ends_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_slot: tl.int64, cu_drafts, total_drafts: tl.int64,
    max_drafts: tl.int32, vocab: tl.int64, request_index, entries: tl.int64, num_accepted, walked, met, draft_met, read,
    winners, draft_places, known, draft_known, draft_rows: tl.int64,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    draft_prob, draft_prob_request: tl.int64, draft_prob_slot: tl.int64, draft_prob_value: tl.float32,
    tokens, status, row, draft_row, tried, taken, slot, laws, CHUNK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    entry, live, _ = entry_of(b, request_index, entries)
    readable, slots, first_draft, first_row, _, first_token = bounds_of(b, cu_drafts, total_drafts, max_drafts, 0)
    RAGGED: tl.constexpr = cu_drafts is not None
    live = live & readable
    last = tl.minimum(tl.load(num_accepted + b), slots)
    drawn = live & (last >= 0)
    _, greedy, _ = inverse_temperature(number(temperature, temperature_value, entry * temperature_request, live))
    greedy = drawn & (greedy != 0)
    draft_tokens += first_token * draft_tokens_slot if RAGGED else b * draft_tokens_request

    refused = tl.load(draft_tokens + last * draft_tokens_slot, mask=drawn & (last < slots), other=-1).to(tl.int64)
    share_at = entry * draft_prob_request + ((first_draft if RAGGED else 0) + last) * draft_prob_slot
    share, _ = draft_prob_of(number(draft_prob, draft_prob_value, share_at, drawn & (last < slots)))
    share = tl.where(drawn & (last < slots), share, 1.0)
    left = drawn & (last < slots) & ((refused != -1) | (share < 1.0))
    shown = tl.full([], 0, tl.int64)
    if winners is not None:
        shown = tl.load(winners + first_row + last, mask=greedy, other=0)

    bits = tl.load(walked + b) & (TOKEN_RANGE | PARAMETER)
    for base in range(0, max_drafts + 1, CHUNK):
        place = base + tl.arange(0, CHUNK)
        before = place < last
        if read is not None:
            decided = tl.load(read + b * (max_drafts + 1) + place, mask=place <= max_drafts, other=0) != 0
            before = (before & greedy) | (decided & (greedy == 0))
        here = drawn & (place <= slots) & (before | (place == last))
        bits |= tl.reduce_or(tl.load(met + first_row + place, mask=here, other=0), axis=0)
        if draft_met is not None:
            here = drawn & (greedy == 0) & (place < slots) & ((before & (place != last)) | (left & (place == last)))
            bits |= tl.reduce_or(tl.load(draft_met + first_draft + place, mask=here, other=0), axis=0)
        accepted = (place < last) & live
        token = tl.load(draft_tokens + place * draft_tokens_slot, mask=accepted, other=-1).to(tl.int64)
        at_last = place == tl.where(live, last, tl.minimum(last, 0))
        tl.store(tokens + b * (max_drafts + 1) + place, tl.where(at_last, shown, token), mask=place <= max_drafts)

    sampled = drawn & (greedy == 0)
    left = left & sampled
    beside = tl.where(left, first_draft + last, -1)
    if draft_places is not None:
        beside = tl.load(draft_places + first_draft + last, mask=left, other=-1)
    inside = left & (refused >= 0) & (refused < vocab)
    tl.store(status + b, bits)
    tl.store(row + b, tl.where(sampled, first_row + last, -1).to(tl.int32))
    tl.store(draft_row + b, beside.to(tl.int32))
    tl.store(tried + b, tl.where(inside, refused, -1).to(tl.int32))
    tl.store(taken + b, tl.where(sampled, share, 1.0))
    tl.store(slot + b, tl.where(sampled, last, 0).to(tl.int64))
    for item in tl.static_range(2):
        own = tl.load(known + 2 * (first_row + last) + item, mask=sampled, other=0.0)
        other = own
        if draft_known is not None:
            has = left & (beside >= 0) & (beside < draft_rows)
            other = tl.where(has, tl.load(draft_known + 2 * beside + item, mask=has, other=0.0), own)
        tl.store(laws + 4 * b + item, own)
        tl.store(laws + 4 * b + 2 + item, other)


def chain_ends(call):
    """All outputs of ``ops.ChainEnds``."""
    requests, places = call.tokens.shape
    if requests == 0:
        return
    draft_known = call.draft_known
    with _launch.on_device(call.draft_tokens):
        temperature = _launch.number("temperature", call.temperature, "request")
        draft_prob = _launch.number("draft_prob", call.draft_prob, "request", "slot")
        tokens = _launch.nodes("draft_tokens", call.draft_tokens)
        tokens["draft_tokens_slot"] = tokens.pop("draft_tokens_node")
        arguments = dict(
            **tokens, cu_drafts=call.cu_drafts, total_drafts=call.draft_tokens.shape[-1], max_drafts=places - 1,
            vocab=call.vocab, **_launch.index(call.request_index, call.temperature, call.draft_prob),
            num_accepted=call.num_accepted, walked=call.walked, met=call.met, draft_met=call.draft_met, read=call.read,
            winners=call.winners, draft_places=call.draft_places, known=call.known, draft_known=draft_known,
            draft_rows=0 if draft_known is None else len(draft_known) // 2, **temperature, **draft_prob,
            tokens=call.tokens, status=call.status, row=call.row, draft_row=call.draft_row, tried=call.tried,
            taken=call.taken, slot=call.slot, laws=call.laws, CHUNK=CHUNK,
        )  # fmt: skip
        _launch.launch(chain_ends_kernel, (requests,), 1, arguments)

"""What ends chains of which a walk accepted some drafts: request by request."""

import torch

from specdec_kernels.backends.reference import laws
from specdec_kernels.status import Status


def chain_ends(call):
    """The tokens before the last, and what the last is drawn from."""
    batch, places = call.tokens.shape
    outputs = (call.tokens, call.status, call.row, call.draft_row, call.tried, call.taken, call.slot, call.laws)
    for output, nothing in zip(outputs, (-1, 0, -1, -1, -1, 1.0, 0, 0.0), strict=True):
        output.fill_(nothing)
    for b in range(batch):
        _end(call, b, places - 1)


def _end(call, b, most):
    first_row, first_draft, drafts = b * (most + 1), b * most, most
    live, entry = True, b
    if call.request_index is not None:
        entry = int(call.request_index[b])
        live = 0 <= entry < _entries(call)
    if call.cu_drafts is not None:
        begin, end = call.cu_drafts[b : b + 2].tolist()
        live = live and 0 <= begin <= end <= call.draft_tokens.shape[-1]
        first_row, first_draft, drafts = begin + b, begin, min(most, end - begin)
    last = min(int(call.num_accepted[b]), drafts)
    bits = int(call.walked[b]) & (Status.TOKEN_RANGE | Status.PARAMETER)
    if not live or last < 0:
        call.status[b] = bits
        if last >= 0:
            call.tokens[b, 0] = 0
        return
    rows, own = slice(first_row, first_row + drafts + 1), slice(first_draft, first_draft + drafts)
    tokens = (call.draft_tokens[own] if call.cu_drafts is not None else call.draft_tokens[b]).tolist()
    greedy = not _number(call.temperature, entry) >= laws.SMALLEST
    read = [slot < last for slot in range(drafts + 1)]
    if call.read is not None and not greedy:
        read = call.read[b * (most + 1) :][: drafts + 1].tolist()
    for slot, met in enumerate(call.met[rows].tolist()):
        bits |= met * (slot == last or read[slot])
    call.tokens[b, :last] = torch.tensor(tokens[:last])
    call.tokens[b, last] = call.winners[first_row + last] if greedy and call.winners is not None else 0
    if greedy:
        call.status[b] = bits
        return

    refused, share = -1, 1.0
    if last < drafts:
        refused, share = tokens[last], _share(call, entry, last if call.cu_drafts is None else first_draft + last)
    left = last < drafts and (refused != -1 or share < 1)
    if call.draft_met is not None:
        for slot, met in enumerate(call.draft_met[own].tolist()):
            bits |= met * (left if slot == last else read[slot])
    call.status[b], call.row[b], call.taken[b], call.slot[b] = bits, first_row + last, share, last
    call.laws[b] = call.known[2 * (first_row + last) :][:2].repeat(2)
    if left:
        place = first_draft + last
        call.draft_row[b] = place = int(call.draft_places[place]) if call.draft_places is not None else place
        call.tried[b] = refused if 0 <= refused < call.vocab else -1
        if call.draft_known is not None:
            call.laws[b, 2:] = call.draft_known[2 * place :][:2]


def _entries(call):
    """How many entries numbers have; without tensors of numbers any index is good."""
    sizes = [len(x) for x in (call.temperature, call.draft_prob) if isinstance(x, torch.Tensor)]
    return max(sizes, default=2**31)


def _number(x, entry):
    return float(x[entry] if isinstance(x, torch.Tensor) else x)


def _share(call, entry, place):
    """The probability that a slot was drafted."""
    x = call.draft_prob
    share = float(x[entry, place] if isinstance(x, torch.Tensor) else x)
    return share if 0 <= share <= 1 else 0.0 if share < 0 else 1.0

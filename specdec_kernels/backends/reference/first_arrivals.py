"""The winners of rows, from what their parts found."""

import torch

from specdec_kernels.status import Status


def first_arrivals(call):
    """Of each row the candidate with the best score, and of equal ones the lowest token."""
    tokens, scores, status = call.packed.cpu().view(len(call.packed), -1, 3).unbind(-1)
    scores = scores.contiguous().view(torch.float32)
    for row in range(tokens.shape[1]):
        found = [(-score, token) for score, token in zip(scores[:, row].tolist(), tokens[:, row].tolist(), strict=True)]
        found = [candidate for candidate in found if candidate[0] < torch.inf]
        bits = 0
        for told in status[:, row].tolist():
            bits |= told
        call.tokens[row] = min(found)[1] if found else 0
        call.status[row] = bits if found else bits | Status.NON_FINITE
        call.empty[row] = not found

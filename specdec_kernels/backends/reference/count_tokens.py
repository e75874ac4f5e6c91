"""Counting tokens into the record of a request."""

from specdec_kernels.backends.reference.edits import MOST, bits
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def count_tokens(call: "typed.CountTokens"):
    """Set the bits of each request's first tokens, and add one to the count of each; a count without a bit is 0."""
    slots, words = call.tokens.shape[1], call.mask.shape[1]
    vocabulary = 32 * words if call.counts is None else call.counts.shape[1]
    for b, tokens in enumerate(call.tokens.tolist()):
        num = call.num if isinstance(call.num, int) else int(call.num[b])
        call.status[b] = (not 0 <= num <= slots) * Status.PARAMETER
        seen = bits(call.mask[b], vocabulary).tolist()
        for token in tokens[: min(max(num, 0), slots)]:
            if not 0 <= token < vocabulary:
                continue
            if call.counts is not None:
                before = max(int(call.counts[b, token]), 1) if seen[token] else 0
                call.counts[b, token] = min(before + 1, MOST)
            if not seen[token]:
                call.mask[b, token // 32] ^= 1 << token % 32 if token % 32 < 31 else -(2**31)
            seen[token] = True

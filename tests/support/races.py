"""The race as the contract defines it, in float32, every token evaluated with the logarithms of the C++ headers.

Float32 backends must agree with it bit for bit, however they dismiss tokens; the float64 oracle to a rounding.
"""

import numpy as np
from specdec_kernels._C import maths

LARGEST = np.finfo(np.float32).max
SMALLEST = np.finfo(np.float32).tiny


def log(x):
    """log of positive normal float32 numbers as the headers compute it."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    out = np.empty_like(x)
    maths.log(x.ctypes.data, x.size, out.ctypes.data)
    return out


def log_arrivals(vocabulary, seed, position=0, nonce=0, stream=0):
    arrivals = np.empty(vocabulary, dtype=np.float32)
    maths.arrivals(seed, position % 2**32, nonce % 2**32, stream, 0, vocabulary, arrivals.ctypes.data)
    return log(arrivals)


def log_law(row, space, temperature):
    """Logits over temperature, or logs of probabilities, float32: -inf for no weight."""
    values = row.float().numpy()
    if space == "logits":
        with np.errstate(over="ignore", invalid="ignore"):
            x = values * (np.float32(1) / np.float32(temperature) if temperature else np.float32(1))
        return np.where(np.isnan(x), -np.inf, np.minimum(x, LARGEST)).astype(np.float32)
    return log_weights(values)


def log_weights(weights):
    """log of weights, -inf where there is none."""
    some = weights >= SMALLEST  # False for NaN
    return np.where(some, log(np.where(some, np.minimum(weights, LARGEST), 1.0)), -np.inf).astype(np.float32)


def race_scores(row, log_arrival, space="logits", temperature=1.0):
    """float32 scores of all tokens; the first maximum wins. Temperature 0 runs without noise."""
    law = log_law(row, space, temperature)
    return law - log_arrival if temperature else law


def assert_winner(token, scores, backend):
    """``token`` is the winner bit for bit, or, for the oracle, not behind by more than float32 rounds away."""
    best = scores.max()
    if best == -np.inf:
        assert token == 0
    elif backend == "reference":
        assert scores[token] >= best - 1e-5 - 2.0**-21 * abs(float(best))
    else:
        assert token == scores.argmax(), f"token {token}: {scores[token]!r}, {scores.argmax()}: {best!r}"

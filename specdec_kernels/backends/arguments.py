"""What a call of the public ops is to the C++ backends: addresses, strides in elements and sizes (csrc/bindings.h).

What is no number is a tensor; asking numbers whether they are tensors takes torch 0.1 µs each.
"""

import torch

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_METHODS = {"rejection": 0, "race": 1}
_SPACES = {"logits": 0, "probs": 1}
_NUMBERS = (float, int)
_NO_ROWS = (0, 0, 0, 0, 0)


def _per_request(x):
    return (0, 0, x) if type(x) in _NUMBERS else (x.data_ptr(), x.stride(0), 0)


def _per_slot(x, ragged):
    if type(x) in _NUMBERS:
        return 0, 0, 0, x
    if ragged:
        return x.data_ptr(), 0, x.stride(0), 0.0
    return x.data_ptr(), x.stride(0), x.stride(1), 0.0


def _per_row(x):
    return (0, 0, 0, x) if type(x) in _NUMBERS else (x.data_ptr(), *x.stride(), 0)


def _rows(x):
    """Rows of [B, K, V], or of a ragged [D, V]."""
    if x is None:
        return _NO_ROWS
    stride = x.stride()
    return x.data_ptr(), stride[0] if len(stride) == 3 else 0, stride[-2], x.shape[-1], _DTYPES[x.dtype]


def chain(
    draft_tokens, target, draft, cu_drafts, method, space, temperature, draft_prob, epsilon, seed, position, nonce,
    tokens, num_accepted, status,
):  # fmt: skip
    ragged = cu_drafts is not None
    strides = draft_tokens.stride()
    return (
        tokens.shape[0],
        tokens.shape[1] - 1,
        _METHODS[method],
        _SPACES[space],
        (draft_tokens.data_ptr(), 0 if ragged else strides[0], strides[-1], draft_tokens.dtype == torch.int64),
        _rows(target),
        _rows(draft),
        cu_drafts.data_ptr() if ragged else 0,
        draft_tokens.shape[0] if ragged else 0,
        _per_request(temperature),
        _per_request(epsilon),
        _per_slot(draft_prob, ragged),
        _per_request(seed),
        _per_request(position),
        _per_request(nonce),
        tokens.data_ptr(),
        tokens.stride(0),
        num_accepted.data_ptr(),
        status.data_ptr(),
    )


def race(rows, k, space, temperature, seed, position, nonce, tokens):
    return (
        rows.shape[0],
        rows.shape[1],
        k,
        _SPACES[space],
        _rows(rows),
        _per_row(temperature),
        _per_row(seed),
        _per_row(position),
        _per_row(nonce),
        tokens.data_ptr(),
    )


def residual(target, draft, space, temperature, draft_prob, epsilon, probs, mass):
    return (
        target.shape[0],
        target.shape[1],
        _SPACES[space],
        _rows(target),
        _rows(draft),
        _per_row(temperature),
        _per_row(draft_prob),
        _per_row(epsilon),
        probs.data_ptr(),
        mass.data_ptr(),
    )


def overlap(target, draft, space, temperature, accept, tv, kl, harmonic):
    return (
        target.shape[0],
        target.shape[1],
        _SPACES[space],
        _rows(target),
        _rows(draft),
        _per_row(temperature),
        accept.data_ptr(),
        tv.data_ptr(),
        kl.data_ptr(),
        harmonic.data_ptr(),
    )


def _tree_tokens(x):
    """Draft tokens or parents, [B, N] or one [N] for all."""
    strides = x.stride()
    return x.data_ptr(), strides[0] if len(strides) == 2 else 0, strides[-1], x.dtype == torch.int64


def tree(
    draft_tokens, target, draft, parents, method, replacement, space, temperature, seed, position, nonce,
    tokens, path, num_accepted, status,
):  # fmt: skip
    return (
        tokens.shape[0],
        target.shape[1],
        tokens.shape[1] - 1,
        _METHODS[method],
        replacement,
        _SPACES[space],
        _tree_tokens(draft_tokens),
        _tree_tokens(parents),
        _rows(target),
        _rows(draft),
        _per_request(temperature),
        _per_request(seed),
        _per_request(position),
        _per_request(nonce),
        tokens.data_ptr(),
        tokens.stride(0),
        path.data_ptr(),
        path.stride(0),
        num_accepted.data_ptr(),
        status.data_ptr(),
    )


# mask dtype -> (layout, the bits of -inf)
_MASKS = {
    torch.bool: (0, 0),
    torch.float32: (1, 0xFF800000),
    torch.bfloat16: (2, 0xFF80),
    torch.float16: (2, 0xFC00),
    torch.int32: (3, 0),
}


def mask(parents, prefix_len, columns, mask, status):
    layout, minus_infinity = _MASKS[mask.dtype]
    return (
        mask.shape[0],
        mask.shape[1],
        columns,
        _tree_tokens(parents),
        _per_request(prefix_len),
        layout,
        mask.data_ptr(),
        minus_infinity,
        status.data_ptr(),
    )


def positions(parents, prefix_len, positions, status):
    return (
        positions.shape[0],
        positions.shape[1],
        _tree_tokens(parents),
        _per_request(prefix_len),
        positions.data_ptr(),
        status.data_ptr(),
    )


def _layer(x):
    batch, head, slot, _ = x.stride()
    size = x.element_size()
    return x.data_ptr(), batch * size, head * size, slot * size, x.shape[1], x.shape[2], x.shape[3] * size


def compact(caches, path, prefix_len, status):
    return (
        path.shape[0],
        path.shape[1] - 1,
        path.data_ptr(),
        path.stride(0),
        _per_request(prefix_len),
        [_layer(x) for x in caches],
        status.data_ptr(),
    )

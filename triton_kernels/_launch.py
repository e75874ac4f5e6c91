"""Host side: how a call is split into programs, and the memory that they share."""

import contextlib
import functools
import inspect
import threading

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret

ANY_NUMBER = 2**31
_workspaces = threading.local()


def kernel(function):
    """``triton.jit`` for a kernel that compiles once for each vocabulary: no other number changes the code."""
    parameters = inspect.signature(function).parameters.values()
    fixed = {"target", "draft", "probs", "mask", "vocab", "draft_vocab"}
    varying = [p.name for p in parameters if p.annotation is not tl.constexpr and p.name not in fixed]
    return triton.jit(function, do_not_specialize=varying)


def launch(kernel, grid, num_warps, **arguments):
    """Every launch of this package. Without contraction each multiply and add rounds on its own, as ``_math`` needs."""
    kernel[grid](**arguments, num_warps=num_warps, enable_fp_fusion=False)


def on_device(tensor):
    """A context in which launches go to the tensor's device."""
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    if not INTERPRETED:
        raise RuntimeError(
            f"backend 'triton': expected CUDA tensors, got {tensor.device}; for CPU tensors set TRITON_INTERPRET=1 "
            "before specdec_kernels.triton_kernels is first imported"
        )
    return contextlib.nullcontext()


@functools.cache
def multiprocessors(device):
    # The interpreter gains nothing from many programs: a few are enough for rows that several of them share.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tile_of(vocab):
    """(tokens of a tile, tiles of a row, warps). They depend on the vocabulary only, so nothing else recompiles."""
    tile = min(4096, max(128, triton.next_power_of_2(vocab)))
    return tile, triton.cdiv(vocab, tile), max(1, tile // 1024)


def mass_items_of(vocab):
    """float32 words of scratch memory for a pair of rows whose masses are learned: ``_rows.mass_items_of`` twice."""
    return 6 * triton.cdiv(vocab, 1024)


def splits_of(requests, tiles, device):
    """Programs for each row: eight on each multiprocessor, if there are tiles for them; at most eight tiles each."""
    wanted = 8 * multiprocessors(device) // max(1, requests)
    return max(1, min(tiles, max(wanted, triton.cdiv(tiles, 8), 2)))


def chunks_of(requests, splits, width, device):
    """Groups of programs for each request: one for each row if the device has room; else each takes rows in order."""
    return max(1, min(width, 8 * multiprocessors(device) // (requests * splits)))


def aligned(*tensors):
    """Whether every row starts on a multiple of 16 elements, so that tiles load in whole vectors."""
    return all(
        tensor.data_ptr() % (16 * tensor.element_size()) == 0
        and all(
            stride % 16 == 0 for stride, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if size > 1
        )
        for tensor in tensors
        if tensor is not None
    )


def number(name, value, *strides):
    """Arguments for a number or a tensor of them: pointer or None, strides, value."""
    tensor = isinstance(value, torch.Tensor)
    found = value.stride() if tensor else ()
    return {
        name: value if tensor else None,
        f"{name}_value": value if not tensor else 0.0 if value.is_floating_point() else 0,
        **{f"{name}_{stride}": found[i] if i < len(found) else 0 for i, stride in enumerate(strides)},
    }


def noise(value, *strides):
    """Arguments for a ``Noise``."""
    return {
        **number("seed", value.seed, *strides),
        **number("position", value.position, *strides),
        **number("nonce", value.nonce, *strides),
    }


def index(request_index, *values):
    """Arguments for ``request_index``: itself, and how many entries draft rows and tensors of numbers have.

    If there are none of these, all requests have the same numbers, and any index is good.
    """
    if request_index is None:
        return {"request_index": None, "entries": 0}
    entries = next((value.shape[0] for value in values if isinstance(value, torch.Tensor)), ANY_NUMBER)
    return {"request_index": request_index, "entries": entries}


def is_greedy(law):
    """Whether the temperature is one number that means argmax."""
    return not isinstance(law.temperature, torch.Tensor) and not law.temperature >= 2.0**-126


def numbers_of(law):
    """The numbers of a law that may be tensors."""
    return law.temperature, law.top_k, law.top_p, law.min_p


def is_filtered(law):
    """Whether sampling filters may be on."""
    return law.rules & 16 != 0


def is_own(law, other):
    """Whether a law's temperature matters and may differ from another's. Over probabilities only 0 or not 0 matters."""
    mine, others = law.temperature, other.temperature
    if isinstance(mine, torch.Tensor) or isinstance(others, torch.Tensor):
        same = mine is others or (
            isinstance(mine, torch.Tensor) and isinstance(others, torch.Tensor)
            and (mine.data_ptr(), mine.shape, mine.stride()) == (others.data_ptr(), others.shape, others.stride())
        )  # fmt: skip
    else:
        same = mine == others
    return not same and (law.space == "logits" or isinstance(mine, torch.Tensor) or is_greedy(law))


def is_learned(law):
    """Whether a row's probabilities need something of the whole row first: a sum, or an argmax."""
    return law.space == "logits" or isinstance(law.temperature, torch.Tensor) or is_greedy(law)


def learns(call, draft, own_law):
    """Whether a launch has to go before the one that uses probabilities: for sums of logits, or a draft's argmax.

    Where filters may be on, the launch that finds cuts has done so.
    """
    p_law, q_law = call.target_law, call.draft_law
    return (p_law.space == "logits" and not is_filtered(p_law)) or (
        draft is not None and (q_law.space == "logits" or own_law) and not is_filtered(q_law)
    )


def rows(name, tensor, ragged=False):
    """Arguments for rows [B, K, V], or ragged [D, V]."""
    if tensor is None:
        return {name: None, f"{name}_request": 0, f"{name}_row": 0}
    return {name: tensor, f"{name}_request": 0 if ragged else tensor.stride(0), f"{name}_row": tensor.stride(-2)}


def nodes(name, tensor):
    """Arguments for a tensor with a number for each node: [B, N], or [N] for all requests."""
    return {
        name: tensor,
        f"{name}_request": tensor.stride(0) if tensor.ndim == 2 else 0,
        f"{name}_node": tensor.stride(-1),
    }


def workspace(tensor, counters, scratch):
    """(int32 counters, float32 scratch) for one call. Counters are zero, and every call leaves them so.

    Kept for each thread, device and stream. A captured call gets its own, which the graph clears at every replay: it
    may run beside others of its stream then.
    """
    device = tensor.device
    stream, capturing = 0, False
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(device).cuda_stream
        capturing = torch.cuda.is_current_stream_capturing()
    kept = _workspaces.__dict__
    found = None if capturing else kept.get((device, stream))
    if found is None or found[0].numel() < counters or found[1].numel() < scratch:
        if found is not None:
            counters, scratch = max(counters, found[0].numel()), max(scratch, found[1].numel())
        found = (
            torch.zeros(counters, dtype=torch.int32, device=device),
            torch.empty(scratch, dtype=torch.float32, device=device),
        )
        if not capturing:
            kept[device, stream] = found
    return found


@contextlib.contextmanager
def whole_calls():
    """If a call fails between two launches, counters may not be zero. Then all workspaces are dropped."""
    try:
        yield
    except BaseException:
        _workspaces.__dict__.clear()
        raise

"""uniform: the uniforms of the noise contract, for random decisions beside a verification."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter, Noise

UNIFORM = Op(
    "uniform",
    figures=True,
    names=("seed", "position", "nonce", "stream", "index", "out"),
    noise=kinds.noise(),
    index=kinds.counter(),
    stream=kinds.size(),
    uniforms=kinds.Output(torch.float32, "out"),
)


def uniform(
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    *,
    stream: int = 6,
    index: Counter = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Uniform numbers in [0, 1), independent, each a pure function of its five numbers.

    ``u = c · 2⁻³²`` for c below 2²⁴, else ``⌊c / 2⁸⌋ · 2⁻²⁴``, where c is the first word of Philox4x32-10 with key
    ``seed`` and counter ``(index, position, nonce, stream)``. The numbers are broadcast against each other.

    Parameters
    ----------
    seed, position, nonce : int or Tensor
        int64 or int32: the request's seed, the position in its text, and 0 unless a position is decided again.
        Positions and nonces count modulo 2³².
    stream : int
        In [0, 2³²): the purpose of the uniforms. 6: a policy, for instance whether to draft, or how far. Verifications
        use 4 for their accept tests, and 0 to 3 for races.
    index : int or Tensor
        int64 or int32: which uniform of that position, for instance the number of the draft slot; modulo 2³².
    out : Tensor, optional
        float32 of the broadcast shape, preallocated, contiguous.

    Returns
    -------
    Tensor
        float32, exact, of the broadcast shape; on the tensors' device, or on the CPU if all are numbers.

    References
    ----------
    Salmon, Moraes, Dror, Shaw 2011 (Philox).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> drafts = specdec_kernels.uniform(torch.arange(4), position=7) < 0.5  # for each request, whether to draft
    >>> drafts.shape
    torch.Size([4])
    """
    UNIFORM.direct(False, seed, position, nonce, stream, index, out)
    if inputs.integer(stream) is None:
        raise TypeError(f"stream: expected an int; got {inputs.shown(stream)}")
    stream = inputs.whole("stream", stream, "an int in [0, 2**32)", 0, 2**32 - 1)
    counters = {"seed": seed, "position": position, "nonce": nonce, "index": index}
    shape = _broadcast_shape(counters)
    tensors = (x for x in (*counters.values(), out) if isinstance(x, torch.Tensor))
    device = next((x.device for x in tensors), torch.device("cpu"))
    seen = shape[:1].numel(), shape[1:].numel()
    *noise, index = (inputs.counter(name, x, shape, device, seen) for name, x in counters.items())
    given = out is not None
    out = UNIFORM.output("uniforms", out, shape, device)
    UNIFORM(Noise(*noise), index, stream, out.view(seen), given=given)
    return out


def _broadcast_shape(counters):
    """The broadcast shape of ints and tensors."""
    shape = torch.Size()
    for name, x in counters.items():
        if isinstance(x, torch.Tensor):
            try:
                shape = torch.broadcast_shapes(shape, x.shape)
            except RuntimeError:
                raise ValueError(
                    f"{name}: expected a shape that broadcasts with {list(shape)}; got {inputs.shown(x)}"
                ) from None
    return shape

"""What the sharded ops share: arguments that none of them takes, and outputs that the caller gave."""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.status import raise_for_status


def refuse(op, **arguments):
    """Raise for an argument that ops on slices do not take."""
    for name, value in arguments.items():
        if value is not None:
            wanted = f"expected None in sharded.{op}, which has no {name} yet"
            raise ValueError(f"{name}: {wanted}; got {inputs.shown(value)}")


def check_seed(op, seed):
    """Raise for a seed for each row, which only the op on whole rows takes."""
    if isinstance(seed, torch.Tensor) and seed.ndim > 1:
        wanted = f"expected an int or [B] in sharded.{op}: one for each request"
        raise ValueError(f"seed: {wanted}; got {inputs.shown(seed)}")


def check_logits(shard, **named):
    """The first step of ``check=True`` with logits: ranks gather 12 bytes a row, then the check for whole rows runs."""
    for name, rows in named.items():
        if shard.vocab < inputs.SHORTEST or rows.numel() == 0:
            return
        low, high = rows.flatten(0, -2).aminmax(dim=-1)
        mine = torch.stack([low.float(), high.float(), rows.flatten(0, -2).sum(-1, dtype=torch.float32)])
        if shard.is_empty:
            mine = mine.new_tensor([[torch.inf], [-torch.inf], [0.0]]).expand_as(mine).contiguous()
        low, high, total = shard.gather(mine).unbind(1)
        row_indices = torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device).nonzero()
        inputs.raise_for_softmaxed(name, low.amin(0), high.amax(0), total.sum(0), row_indices)


def written(op, results, out, check, status=None):
    """The results, in ``out`` if it was given; with ``check``, raises for a bad status."""
    if out is not None:
        for name, output, result in zip(results._fields, inputs.outputs(results._fields, out), results, strict=True):
            inputs.output(f"out.{name}", output, result.dtype, result.shape, result.device, by_rows=True)
            output.copy_(result)
        results = type(results)(*out)
    if check:
        raise_for_status(op, results.status if status is None else status)
    return results

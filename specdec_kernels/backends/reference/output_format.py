"""How a verdict is written: ``specdec_kernels.OutputFormat``."""

import torch

from specdec_kernels.calls.values import ADDED, EMITTED, ZEROS
from specdec_kernels.status import Status


def shape_of(call):
    """[requests, depth] of the paths."""
    return (call.tokens if call.index is None else call.path).shape


def write(call, active, tokens, nodes, num_accepted, status):
    """The verdicts of the live requests, and those of the others: none if idle, token 0 if out of range."""
    batch, width = shape_of(call)
    device, bits = tokens.device, torch.zeros(batch, dtype=torch.int32, device=tokens.device)
    count, (token, node) = torch.zeros_like(bits), torch.zeros(2, batch, width, dtype=torch.int64, device=device)
    active.write(count, num_accepted, idle=-1)
    active.write(token, tokens)
    active.write(node, nodes)
    active.write(bits, status, outside=Status.PARAMETER)
    there = torch.arange(width, device=device, dtype=torch.int64) <= count[:, None]

    def fill(output, values, behind=-1):
        output.copy_(torch.where(there, values, behind))

    if call.index is None:
        fill(call.tokens, token, 0 if call.output_format & ZEROS else -1)
        if call.path is not None:
            fill(call.path, node)
    else:
        if call.output_format & ZEROS:
            every = call.index.long()
            call.tokens[every[(every >= 0) & (every < len(call.tokens))]] = 0
        target_index = call.index.long().gather(1, node.clamp(min=0))
        inside = (target_index >= 0) & (target_index < len(call.tokens))
        call.tokens[target_index[there & inside]] = token[there & inside].to(call.tokens.dtype)
        fill(call.path, torch.where(inside, target_index, -1))
        bits |= (there & ~inside).any(dim=1).int() * Status.PARAMETER
    call.status.copy_(bits)
    counted = count + bool(call.output_format & EMITTED)
    call.num_accepted.copy_(call.num_accepted + counted.clamp(min=0) if call.output_format & ADDED else counted)

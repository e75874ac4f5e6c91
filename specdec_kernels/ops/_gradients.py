"""The gradient of ``overlap``, in plain torch and float32. Drafts are trained with it.

The backward pass computes the laws from the rows again. So the forward pass keeps nothing of their size but the rows.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot, pad

from specdec_kernels._constants import COLDEST, SMALLEST
from specdec_kernels.calls.values import DIVIDED


class LawOf:
    """The law of rows [A, R, V], and how its gradients become those of the rows; an argmax (temperature 0) has none."""

    def __init__(self, rows, space, temperature):
        if isinstance(temperature, torch.Tensor):
            temperature = temperature.unsqueeze(-1)
        else:
            temperature = torch.tensor(temperature, device=rows.device)
        self.logits, self.sampled = space == "logits", temperature >= SMALLEST
        self.inverse = torch.where(self.sampled, 1 / temperature.clamp(min=COLDEST), 0.0)
        rows = rows.float()
        if self.logits:
            self.log = (rows * self.inverse).log_softmax(-1)
            self.probs = self.log.exp()
        else:
            self.probs = torch.where(rows >= SMALLEST, rows, 0.0)
            self.log = self.probs.log()
        top = one_hot(rows.argmax(-1), rows.shape[-1]).float()
        self.log = torch.where(self.sampled, self.log, top.log())
        self.probs = torch.where(self.sampled, self.probs, top)

    def of_rows(self, gradient):
        """From the gradient of the probabilities to that of the rows."""
        if not self.logits:
            return torch.where(self.sampled, gradient, 0.0)
        centred = gradient - (self.probs * gradient).sum(-1, keepdim=True)
        return self.of_scaled(self.probs * centred)

    def of_scaled(self, gradient):
        """From the gradient of the scaled logits to that of the rows."""
        return gradient * self.inverse


class Overlap(torch.autograd.Function):
    """``overlap`` of a target and a draft as ``run()`` gives it from their rows [A, R, V] and [S, R, V']: four figures.

    What is kept are the caller's tensors, not views of them: compiled code of torch 2.11 takes a view that was kept for
    memory of its own, and writes into it.
    """

    @staticmethod
    def forward(ctx, target, draft, shapes, run, draft_map, request_index, target_law, draft_law):
        ctx.save_for_backward(target, draft)
        ctx.set_materialize_grads(False)
        ctx.shapes, ctx.given = shapes, (draft_map, request_index, target_law, draft_law)
        return tuple(run())

    @staticmethod
    @once_differentiable
    def backward(ctx, accept, tv, kl, harmonic):
        (draft_map, index, *laws), given = ctx.given, ctx.saved_tensors
        target, draft = (tensor.reshape(shape) for tensor, shape in zip(given, ctx.shapes, strict=True))
        rows, live, entry = draft, None, None
        if index is not None:
            live, entry = (index >= 0) & (index < len(draft)), index.long().clamp(0, len(draft) - 1)
            rows = draft[entry]
            laws = [law._replace(temperature=by_entry(law.temperature, entry)) for law in laws]
        p, q = (LawOf(x, law.space, divisor(law)) for x, law in ((target, laws[0]), (rows, laws[1])))
        vocabulary, known = target.shape[-1], slice(draft.shape[-1]) if draft_map is None else draft_map.long()
        wide, log_wide = widened(q.probs, vocabulary, known, 0.0), widened(q.log, vocabulary, known, -torch.inf)

        def by_row(gradient):
            return gradient.reshape(target.shape[:-1]).unsqueeze(-1)

        of_p, of_q = torch.zeros_like(p.probs), torch.zeros_like(p.probs)
        if accept is not None:
            smaller = torch.heaviside(wide - p.probs, torch.tensor(0.5, device=target.device))
            of_p += by_row(accept) * smaller
            of_q += by_row(accept) * (1 - smaller)
        if tv is not None:
            apart = by_row(tv) * torch.sign(p.probs - wide) / 2
            of_p += apart
            of_q -= apart
        if harmonic is not None:
            both = (p.probs + wide).clamp(min=SMALLEST)
            of_p += by_row(harmonic) * (wide / both) ** 2
            of_q += by_row(harmonic) * (p.probs / both) ** 2
        of_target, of_draft = p.of_rows(of_p), q.of_rows(of_q[..., known])
        if kl is not None:
            of_target += by_row(kl) * kl_of_target(p, log_wide)
            of_draft += by_row(kl) * kl_of_draft(p.probs[..., known], q)
        if index is not None:
            of_target, of_draft = (torch.where(live[:, None, None], each, 0.0) for each in (of_target, of_draft))
            of_draft = torch.zeros_like(draft, dtype=of_draft.dtype).index_add_(0, entry, of_draft)
        of_each = (
            gradient.to(tensor.dtype).reshape(tensor.shape)
            for gradient, tensor in zip((of_target, of_draft), given, strict=True)
        )
        return *of_each, None, None, None, None, None, None


def divisor(law):
    """The temperature of a Law; 1 in its place where rows are divided already."""
    if not law.rules & DIVIDED:
        return law.temperature
    temperature = torch.as_tensor(law.temperature)
    found = torch.where(temperature >= SMALLEST, 1.0, temperature)
    return found if isinstance(law.temperature, torch.Tensor) else found.item()


def by_entry(numbers, entry):
    """The numbers of each batch row."""
    return numbers[entry] if isinstance(numbers, torch.Tensor) else numbers


def widened(values, vocabulary, known, nothing):
    """Over the target's vocabulary; ``nothing`` at tokens that the draft does not know."""
    if isinstance(known, slice):
        return pad(values, (0, vocabulary - values.shape[-1]), value=nothing)
    wide = values.new_full((*values.shape[:-1], vocabulary), nothing)
    wide[..., known] = values
    return wide


def kl_of_target(p, log_q):
    """The gradient of KL(p || q) in the target's rows."""
    there = p.probs > 0
    ratio = torch.where(there, p.log - log_q, 0.0)
    if not p.logits:
        return torch.where(there & p.sampled, ratio + 1, 0.0)
    return p.of_scaled(p.probs * (ratio - (p.probs * ratio).sum(-1, keepdim=True)))


def kl_of_draft(p, q):
    """The gradient of KL(p || q) in the draft's rows; p has its tokens. For logits nothing is divided by q."""
    if q.logits:
        return q.of_scaled(q.probs * p.sum(-1, keepdim=True) - p)
    return torch.where((p > 0) & q.sampled, -p / q.probs, 0.0)

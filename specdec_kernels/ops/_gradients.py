"""The gradient of ``overlap``, in plain torch and float32, for training drafts.

The backward pass computes the laws from the rows again, so that the forward pass saves no other tensor of their size.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from specdec_kernels._constants import COLDEST, HOTTEST, SMALLEST
from specdec_kernels.calls.values import DIVIDED

FAR = 1e38  # replaces infinite logarithms; the sum of two is finite


class LawOf:
    """The law of rows [A, R, V], and its gradients with respect to the rows; an argmax (temperature 0) has none.

    Nothing of the rows' size is chosen by ``where`` for logits: on a CPU that takes longer than a softmax.
    """

    def __init__(self, rows, space, temperature):
        rows, self.logits = rows.float(), space == "logits"
        if isinstance(temperature, torch.Tensor):
            sampled = (temperature >= SMALLEST).unsqueeze(-1)
            inverse = torch.where(sampled, 1 / temperature.clamp(COLDEST, HOTTEST).unsqueeze(-1), 1.0)
            self.scale, self.some_greedy = inverse * sampled, True
        else:
            sampled = temperature >= SMALLEST
            inverse = 1 / min(max(temperature, COLDEST), HOTTEST) if sampled else 1.0
            self.scale, self.some_greedy = inverse * sampled, not sampled
            sampled = torch.tensor(sampled, dtype=torch.bool, device=rows.device)
        self.sampled = sampled.expand(*rows.shape[:-1], 1)
        self.scaled = scaled_by(rows, inverse) if self.logits else rows
        if self.some_greedy:
            self.top = rows.argmax(-1, keepdim=True)
        self.probs = self.of_argmax(
            self.scaled.softmax(-1) if self.logits else torch.where(rows >= SMALLEST, rows, 0.0), 0.0, 1.0
        )

    def log(self):
        """The logarithms of the probabilities without the rows' normalisers, and these."""
        if not self.logits:
            return self.probs.log(), 0.0
        if self.some_greedy:
            return self.of_argmax(self.scaled.log_softmax(-1), -torch.inf, 0.0), 0.0
        return self.scaled, self.scaled.amax(-1, keepdim=True) - self.probs.amax(-1, keepdim=True).log()

    def of_argmax(self, values, others, top):
        """Write ``others`` and ``top`` into rows at temperature 0, whose argmax has all weight."""
        if not self.some_greedy:
            return values
        values.masked_fill_(~self.sampled, others)
        return values.scatter_(-1, self.top, torch.where(self.sampled, values.gather(-1, self.top), top))

    def of_rows(self, gradient):
        """From the gradient of the probabilities to that of the rows; logits are not yet scaled."""
        if not self.logits:
            return torch.where(self.sampled, gradient, 0.0)
        return torch.ops.aten._softmax_backward_data(gradient, self.probs, -1, torch.float32)

    def of_raw(self, gradient):
        """From the gradient of rows that an inverse temperature multiplied to that of the rows."""
        return scaled_by(gradient, self.scale) if self.logits else gradient


def scaled_by(values, factor):
    """values * factor."""
    return values if isinstance(factor, float) and factor == 1.0 else values * factor


class Overlap(torch.autograd.Function):
    """The four figures of ``overlap``, which ``run()`` computes from rows [A, R, V] and [S, R, V'].

    It saves the caller's tensors, not views of them: compiled code of torch 2.11 reuses the memory of a saved view.
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
        vocabulary, columns = target.shape[-1], slice(draft.shape[-1]) if draft_map is None else draft_map.long()
        wide = widened(q.probs, vocabulary, columns, 0.0)

        def by_row(gradient):
            return gradient.reshape(target.shape[:-1]).unsqueeze(-1)

        # The gradient of min(p, q) goes to the smaller one: half of it to each, and the other half by the sign. That of
        # the total variation goes the other way.
        zero = target.new_zeros((), dtype=torch.float32)
        whole = zero if accept is None else by_row(accept)
        more = (zero if tv is None else by_row(tv)) - whole
        of_p = (p.probs - wide).sign_().mul_(more / 2).add_(whole / 2)
        of_q = whole - of_p
        if harmonic is not None:
            both = (p.probs + wide).clamp_(min=SMALLEST)
            of_p.addcmul_(torch.div(wide, both).square_(), by_row(harmonic))
            of_q.addcmul_(torch.div(p.probs, both, out=both).square_(), by_row(harmonic))
        if kl is not None and p.logits:
            of_p.addcmul_(log_ratio(p, q, vocabulary, columns), by_row(kl))
        of_target, of_draft = p.of_rows(of_p), q.of_rows(of_q[..., columns])
        if kl is not None:
            if not p.logits:
                of_target += by_row(kl) * torch.where(p.probs > 0, log_ratio(p, q, vocabulary, columns) + 1, 0.0)
            add_kl_of_draft(of_draft, p.probs[..., columns], q, by_row(kl))
        of_target, of_draft = p.of_raw(of_target), q.of_raw(of_draft)
        if index is not None:
            of_target, of_draft = (torch.where(live[:, None, None], each, 0.0) for each in (of_target, of_draft))
            of_draft = torch.zeros_like(draft, dtype=of_draft.dtype).index_add_(0, entry, of_draft)
        of_each = (
            gradient.to(tensor.dtype).reshape(tensor.shape)
            for gradient, tensor in zip((of_target, of_draft), given, strict=True)
        )
        return *of_each, None, None, None, None, None, None


def divisor(law):
    """The temperature of a Law; 1 where rows are divided by it already."""
    temperature = law.temperature
    if not law.rules & DIVIDED:
        return temperature
    if isinstance(temperature, torch.Tensor):
        return torch.where(temperature >= SMALLEST, 1.0, temperature)
    return 1.0 if temperature >= SMALLEST else temperature


def by_entry(numbers, entry):
    """The numbers of each batch row's entry."""
    return numbers[entry] if isinstance(numbers, torch.Tensor) else numbers


def widened(values, vocabulary, columns, nothing):
    """Over the target's vocabulary; ``nothing`` at tokens outside of the draft's vocabulary."""
    if isinstance(columns, slice):
        missing = vocabulary - values.shape[-1]
        return pad(values, (0, missing), value=nothing) if missing else values
    wide = values.new_full((*values.shape[:-1], vocabulary), nothing)
    wide[..., columns] = values
    return wide


def log_ratio(p, q, vocabulary, columns):
    """log(p / q); any finite number where p = 0."""
    (log_p, more_p), (log_q, more_q) = p.log(), q.log()
    ratio = (log_p - widened(log_q, vocabulary, columns, -torch.inf)).sub_(more_p - more_q)
    return ratio.nan_to_num_(0.0, FAR, -FAR)


def add_kl_of_draft(gradient, p, q, share):
    """Add ``share`` of the gradient of KL(p || q) in the draft's rows, of logits before they are scaled."""
    # p has the draft's tokens. For logits nothing is divided by q.
    if q.logits:
        gradient.addcmul_(q.probs, share * p.sum(-1, keepdim=True)).addcmul_(p, -share)
    else:
        gradient -= share * torch.where((p > 0) & q.sampled, p / q.probs, 0.0)

"""overlap: acceptance, total variation, Kullback-Leibler divergence and the harmonic bound."""

import pytest
import torch

from specdec_kernels import Sampling
from tests.support.calls import rows
from tests.support.ops import overlap


def test_rule_by_hand(backend):
    """accept = sum min(p, q) = 0.1 + 0.2 + 0.2 + 0.1 = 0.6, and tv = 1 - accept. harmonic = sum p q / (p + q) =
    0.04 / 0.5 + 0.06 / 0.5 + 0.06 / 0.5 + 0.04 / 0.5 = 0.4. kl = sum p log(p / q) = (0.4 - 0.1) log 4 + (0.3 - 0.2)
    log 1.5 = 0.3 * 1.38629 + 0.1 * 0.40547 = 0.45643.
    """
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    figures = overlap(p, q, space="probs")
    assert figures._fields == ("accept", "tv", "kl", "harmonic")
    torch.testing.assert_close(torch.stack(figures), torch.tensor([0.6, 0.4, 0.45643, 0.4]), rtol=1e-5, atol=1e-6)


CALLS = {"overlap": (overlap, rows())}

pytestmark = pytest.mark.interpreted


def close(actual, expected, rtol=1e-5, atol=2e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


FAR = {  # the target's logits, the draft's
    "87 nats": ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -87.0]),
    "90 nats": ([0.0, 1.0, 2.0], [90.0, 0.0, 1.0]),
    "10,000 nats": ([0.0, -1.0, 0.5], [0.0, -1e4, -2e4]),
    "10^30 nats": ([0.0, 1.0], [1e30, -1e30]),
    "more than a float": ([0.0, 0.0], [3e38, -3e38]),
    "both": ([0.0, -200.0, -3e4], [-1e4, 0.0, -5e3]),
    "large ones": ([1e20, 1e20, 0.0], [1e20, 0.0, 1e20]),
    "a token without weight": ([0.0, -torch.inf, 1.0], [-300.0, 7.0, 0.0]),
    "no token of the target's": ([0.0, 1.0], [-torch.inf, 0.0]),
}


def exact_divergence(target, draft, temperature=1.0, kept=None):
    """KL(p || q) of a row of either in float64; ``kept`` are the draft's tokens that its filters keep."""
    rows = [torch.tensor(x).double() / temperature for x in (target, draft)]
    if kept is not None:
        rows[1] = torch.where(kept, rows[1], -torch.inf)
    below = [x - x.max() for x in rows]
    log_p, log_q = (x - x.exp().sum().log() for x in below)
    least = torch.where(log_q > -torch.inf, log_q.clamp(min=-(2.0**127)), log_q)
    return torch.where(log_p.exp() >= 2.0**-126, log_p.exp() * (log_p - least), 0.0).sum().float()


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_divergence_is_finite_where_the_draft_can_go(backend, name, temperature):
    """However far that is: infinite only where the draft's logit is -inf, by itself or times 1/T."""
    target, draft = FAR[name]
    if name == "more than a float":
        assert overlap(torch.tensor(target), torch.tensor(draft), temperature=0.5).kl == torch.inf  # -6e38
        draft = [x * temperature for x in draft]
    expected = exact_divergence(target, draft, temperature)
    assert expected.isfinite() == (name != "no token of the target's")
    for repeats in (1, 70):  # a vector, and a longer row: what is beside them has no weight
        rows = [torch.tensor(x + [-torch.inf] * (repeats * len(x) - len(x))) for x in (target, draft)]
        close(overlap(*rows, temperature=temperature).kl, expected)
    index, order = torch.arange(len(target), dtype=torch.int32), torch.randperm(len(target))
    wide = torch.full((2 * len(target),), -torch.inf)
    wide[: len(target)] = torch.tensor(target)
    mapped = {"draft.map": index, "temperature": temperature}
    close(overlap(wide, torch.tensor(draft), **mapped).kl, expected)
    close(overlap(torch.tensor(target)[order], torch.tensor(draft)[order], temperature=temperature).kl, expected)


def test_divergence_of_tokens_that_a_law_leaves_out(backend):
    """By a filter, or by an argmax: there is no way to them, whatever their logits are."""
    target, draft = [1.0, 0.0, -1.0], [0.0, 2.0, -90.0]
    rows = torch.tensor(target), torch.tensor(draft)
    found = overlap(*rows, **{"draft.sampling": Sampling(top_k=2)})
    assert found.kl == torch.inf
    assert overlap(*rows, **{"draft.sampling": Sampling(0.0)}).kl == torch.inf
    assert overlap(*rows, **{"draft.sampling": Sampling(top_k=2)}, sampling=Sampling(0.0)).kl < torch.inf
    both = overlap(rows[0].flip(0), rows[1], sampling=Sampling(top_k=2), **{"draft.sampling": Sampling(top_p=1.0)})
    close(both.kl, exact_divergence([-torch.inf, 0.0, 1.0], draft))


def test_divergence_of_wide_rows(fast_backend):
    """Normal logits of deviation 3 at a temperature of 0.3 lie 130 nats apart."""
    target, draft = 3 * torch.randn(2, 262_208, generator=torch.Generator().manual_seed(0))
    close(overlap(target, draft, temperature=0.3).kl, exact_divergence(target.tolist(), draft.tolist(), 0.3))


# Gradients: those of plain torch in float64.


def plainly(target, draft, space="logits", temperature=1.0, draft_temperature=None, draft_map=None, index=None):
    """The figures of overlap by torch's own operations."""
    inverse = 1 / torch.as_tensor(temperature).double().unsqueeze(-1)
    draft_inverse = inverse if draft_temperature is None else 1 / draft_temperature
    if index is not None:
        draft, inverse, draft_inverse = draft[index], inverse[index], draft_inverse[index]
    p, q = target, draft
    if space == "logits":
        p, q = (target * inverse).softmax(-1), (draft * draft_inverse).softmax(-1)
    wide = torch.zeros_like(p)
    wide[..., torch.arange(q.shape[-1]) if draft_map is None else draft_map.long()] = q
    kl = torch.where(p > 0, p * (p / torch.where(p > 0, wide, 1.0)).log(), 0.0).sum(-1)
    both = torch.where(p + wide > 0, p + wide, 1.0)
    return torch.minimum(p, wide).sum(-1), (p - wide).abs().sum(-1) / 2, kl, (p * wide / both).sum(-1)


def gradients(function, target, draft, weights, **options):
    """Gradients of a weighted sum of the figures, and the figures; a weight of None: the figure is not used."""
    leaves = [rows.detach().clone().requires_grad_() for rows in (target, draft)]
    figures = function(*leaves, **options)
    used = [
        (figure * weight.to(figure)).sum()
        for figure, weight in zip(figures, weights, strict=True)
        if weight is not None
    ]
    sum(used).backward()
    return [leaf.grad for leaf in leaves], [figure.detach() for figure in figures]


def assert_same_gradients(target, draft, weights, ours, theirs, tolerance=1e-5):
    found, figures = gradients(overlap, target, draft, weights, **ours)
    expected, plain = gradients(plainly, target.double(), draft.double(), weights, **theirs)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(figures, overlap(target, draft, **ours), strict=True))
    for a, b in zip(figures, plain, strict=True):
        close(a, b.float())
    for given, a, b in zip((target, draft), found, expected, strict=True):
        assert (a.dtype, a.shape) == (given.dtype, given.shape)
        close(a.double(), b, rtol=tolerance, atol=tolerance)


def weights_of(*shape):
    return list(torch.rand(4, *shape, generator=torch.Generator().manual_seed(9)) + 0.5)


FIGURES = {"accept": 0, "tv": 1, "kl": 2, "harmonic": 3, "all": None}


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_gradients_are_those_of_plain_torch(backend, figure, space, shape):
    target, draft = torch.randn(2, *shape, 70, generator=torch.Generator().manual_seed(3)) * 2
    if space == "probs":
        target, draft = target.softmax(-1), draft.softmax(-1)
    weights = weights_of(*shape)
    if figure != "all":
        weights = [weight if index == FIGURES[figure] else None for index, weight in enumerate(weights)]
    assert_same_gradients(
        target, draft, weights, dict(space=space), dict(space=space), 1e-4 if space == "probs" else 1e-5
    )


TARGET, OTHER = torch.randn(2, 4, 70, generator=torch.Generator().manual_seed(4))
HOT, COOL = torch.tensor([0.5, 1.0, 2.0, 0.7]), 0.8
FINITE = [weight if index != 2 else None for index, weight in enumerate(weights_of(4))]  # KL is infinite
FIVE = torch.tensor([0, 3, 4, 40, 69], dtype=torch.int32)
GRADIENTS = {  # the rows, the weights of the figures, options of overlap and of plain torch
    "two temperatures": (TARGET, OTHER, weights_of(4), {"temperature": HOT, "draft.sampling": Sampling(COOL)},
                         {"temperature": HOT, "draft_temperature": COOL}),
    "a smaller vocabulary": (TARGET, OTHER[:, :5], FINITE, {}, {}),
    "a vocabulary of its own": (TARGET, OTHER[:, :5], FINITE, {"draft.map": FIVE}, {"draft_map": FIVE}),
    "bfloat16": (TARGET.bfloat16(), OTHER.bfloat16(), weights_of(4), {}, {}, 0.01),
    "float16": (TARGET.half(), OTHER.half(), weights_of(4), {}, {}, 0.01),
}  # fmt: skip


@pytest.mark.parametrize("arguments", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_other_rows(backend, arguments):
    assert_same_gradients(*arguments)


def test_gradients_of_requests_by_index(backend):
    """Two rows share a draft row, one row is idle, no row uses one of the draft rows, and one index points outside."""
    generator = torch.Generator().manual_seed(6)
    target, draft = torch.randn(5, 70, generator=generator), torch.randn(4, 70, generator=generator)
    index, temperature = torch.tensor([2, -1, 0, 2, 9], dtype=torch.int32), torch.tensor([0.5, 1.0, 2.0, 0.7])
    ours = dict(request_index=index, temperature=temperature)
    weights, live = weights_of(5), torch.tensor([0, 2, 3])
    found, figures = gradients(overlap, target, draft, weights, **ours)
    theirs = dict(temperature=temperature, index=index[live].long())
    weights = [weight[live] for weight in weights]
    expected, plain = gradients(plainly, target[live].double(), draft.double(), weights, **theirs)
    for a, b in zip(figures, plain, strict=True):
        close(a[live], b.float())
        assert (a[[1, 4]] == 0).all()
    close(found[0][live].double(), expected[0])
    close(found[1].double(), expected[1])
    assert (found[0][[1, 4]] == 0).all()
    assert (found[1][[1, 3]] == 0).all()


@pytest.mark.parametrize("name", ["87 nats", "90 nats", "10,000 nats", "both", "large ones"])
def test_gradients_of_far_tokens(backend, name):
    """Those of the divergence, whose terms are not 0 where q is too small for a float."""
    target, draft = (torch.tensor(x) for x in FAR[name])
    leaves = [rows.clone().requires_grad_() for rows in (target, draft)]
    overlap(*leaves).kl.backward()
    wide = [rows.double().requires_grad_() for rows in (target, draft)]
    log_p, log_q = (x.log_softmax(-1) for x in wide)
    (log_p.exp() * (log_p - log_q)).sum().backward()
    for leaf, exact in zip(leaves, wide, strict=True):
        close(leaf.grad, exact.grad.float(), rtol=1e-4)


def test_an_argmax_has_no_gradient_and_far_tokens_no_nan(backend):
    target, draft = torch.randn(2, 3, 70, generator=torch.Generator().manual_seed(8))
    target[:, 5], draft[:, 9] = -torch.inf, -300.0
    found, _ = gradients(overlap, target, draft, weights_of(3), temperature=torch.tensor([0.0, 1.0, 1.0]))
    assert all((gradient[0] == 0).all() for gradient in found)
    assert all(gradient[1:].isfinite().all() for gradient in found)
    draft.requires_grad_()
    overlap(target, draft, **{"draft.sampling": Sampling(torch.tensor([0.0, 1.0, 1.0]))}).kl.sum().backward()
    assert not draft.grad[0].any()
    assert draft.grad[1:].any(-1).all()


@pytest.mark.one_backend
def test_distillation_by_overlap_learns():
    """A draft that follows the gradient of KL and of acceptance comes near its target."""
    generator = torch.Generator().manual_seed(9)
    target, draft = torch.randn(3, 40, generator=generator), torch.zeros(3, 40, requires_grad=True)
    before = overlap(target, draft).accept.detach()
    for _ in range(200):
        figures = overlap(target, draft)
        (figures.kl - figures.accept).sum().backward()
        with torch.no_grad():
            draft -= 2 * draft.grad
            draft.grad.zero_()
    after = overlap(target, draft).accept
    assert (after > 0.97).all()
    assert (before < 0.8).all()


@pytest.mark.one_backend
def test_gradients_once_and_without_outputs():
    target, draft = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(10))
    draft.requires_grad_()
    (gradient,) = torch.autograd.grad(overlap(target, draft).kl.sum(), draft, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()
    with pytest.raises(ValueError, match="out: expected None where target or draft requires grad"):
        overlap(target, draft, out=tuple(torch.empty(4, 3)))
    with torch.no_grad():
        assert not overlap(target, draft).kl.requires_grad


@pytest.mark.one_backend
@pytest.mark.slow
def test_gradients_through_a_compiled_call():
    target, draft = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(11))
    step = torch.compile(lambda p, q: overlap(p, q).kl.sum() - overlap(p, q).accept.sum(), fullgraph=True)
    compiled, eager = draft.clone().requires_grad_(), draft.clone().requires_grad_()
    step(target, compiled).backward()
    (overlap(target, eager).kl.sum() - overlap(target, eager).accept.sum()).backward()
    close(compiled.grad, eager.grad)

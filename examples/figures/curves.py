"""The papers' figures, theory as lines and the kernels' simulation as points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

import specdec_kernels as specdec
from examples.figures import simulate
from examples.figures.drawing import Curve, Figure, Panel, curve, means, panel
from specdec_kernels import theory

if TYPE_CHECKING:
    from specdec_kernels.generate import Round
    from specdec_kernels.studies.measure import Workload

PAIR = ("embedded:target", "embedded:draft")
Chains = tuple[np.ndarray, np.ndarray, np.ndarray]
PROMPTS = ["ROMEO:\n", "JULIET:\n", "First Citizen:\n", "KING RICHARD III:\n"]


def markov_chains(steps: int) -> Chains:
    """Target, draft [steps, 7, 7] and uniform prompt: RandomState(10), draft drawn first, rows normalised."""
    rng = np.random.RandomState(10)
    draft, target = (m / m.sum(-1, keepdims=True) for m in (rng.rand(steps, 7, 7), rng.rand(steps, 7, 7)))
    return target, draft, np.full(7, 1 / 7)


def rejections(steps: int, batches: Sequence[int]) -> Callable[[int], Figure]:
    """Yin et al., Figures 2 (T = 50) and 5 (T = 100): expected rejections, running averages, and by batch size."""

    def figure(runs: int) -> Figure:
        chains = markov_chains(steps)
        counts = {m: simulate.rejections(*chains, drafts=m, runs=runs) for m in sorted({1, *batches, 8, 16})}
        sizes = np.arange(1, 21)
        scaling = [theory.expected_rejections(*chains, drafts=m) for m in sizes]
        y, error = means(counts.values())
        return dict(
            title=f"Yin et al. 2024, Figure {'2' if steps == 50 else '5'}: rejections in {steps} tokens",
            generator="numpy.random.RandomState(10); draft then target rand(T, 7, 7), rows normalised; uniform prompt",
            panels=[
                averages("speculative decoding", chains, {1: counts[1]}),
                averages("batch speculative decoding", chains, {m: counts[m] for m in batches}),
                panel(
                    "by batch size", "drafts M", "expected rejections",
                    curve("Theorem 3", sizes, scaling), curve("kernels", list(counts), y, error=error, points=True),
                ),
            ],
        )  # fmt: skip

    return figure


def averages(title: str, chains: Chains, counts: dict[int, np.ndarray]) -> Panel:
    """Running averages of the simulated rejections beside the expectation."""
    curves = []
    for m, samples in counts.items():
        n = np.unique(np.linspace(len(samples) // 50, len(samples), 50, dtype=int))
        y, error = means(samples[:size] for size in n)
        expected = theory.expected_rejections(*chains, drafts=m)
        curves += [
            curve(f"theory, M = {m}: {expected:.4f}", [0, n[-1]], [expected, expected]),
            curve(f"kernels, M = {m}: {y[-1]:.4f} ± {error[-1]:.4f}", n, y, error=error, points=True),
        ]
    return panel(title, "runs", "average rejections", *curves)


def pareto(runs: int) -> Figure:
    """Yin et al., Figure 4: rejection against bias, and both against the over-acceptance."""
    target, draft, _ = markov_chains(1)
    p, q = target[0, 0], draft[0, 0]
    front, runs = theory.total_variation(p, q), 20 * runs
    epsilons = np.linspace(0, float((q - p).max()), 81)
    lines = {
        kind: np.array([theory.over_acceptance(p, q, e, kind) for e in epsilons]) for kind in ("optimal", "target")
    }
    tried = epsilons[::10]
    verdicts = [simulate.rounds(p, q, runs=runs, epsilon=float(e)) for e in tried]
    reject, error = means((v.num_accepted == 0).numpy() for v in verdicts)
    output = np.array([np.bincount(v.tokens[:, 0], minlength=len(p)) for v in verdicts]) / runs
    loss = np.abs(output - p).sum(1) / 2
    return dict(
        title="Yin et al. 2024, Figure 4: rejection against bias",
        generator="the first row of the first step of the chains of Figure 2",
        note=f"{runs} draws lie about {np.sqrt(len(p) / runs):.4f} from their law: so much more a simulated loss shows",
        panels=[
            panel(
                "the front", "P(reject)", "loss (TV)",
                curve("Theorem 5", [front, 0], [0, front]),
                curve("kernels: lossless, and all accepted", reject[[0, -1]], loss[[0, -1]], points=True),
            ),
            panel(
                "over-accepting", "P(reject)", "loss (TV)",
                curve("optimal residual", *lines["optimal"].T), curve("residual p (UNO)", *lines["target"].T),
                curve("kernels", reject, loss, points=True),
            ),
            panel(
                "by over-acceptance", "epsilon", "probability",
                curve("P(reject)", epsilons, lines["optimal"][:, 0]), curve("loss", epsilons, lines["optimal"][:, 1]),
                curve("kernels, P(reject)", tried, reject, error=error, points=True),
                curve("kernels, loss", tried, loss, points=True),
            ),
        ],
    )  # fmt: skip


def speedup(runs: int) -> Figure:
    """Leviathan et al. 2023, Equation 1, Theorem 3.8: tokens and speed-up by draft length, and how order matters."""
    lengths, points = np.arange(21), [0, 1, 2, 4, 6, 8, 12, 16]

    def curves(pairs: Iterable[tuple[float, float]]) -> Iterator[Curve]:
        for alpha, c in pairs:
            y, error = simulated_tokens(alpha, points, runs)
            cost, label = 1 + c * np.array(points), f"α = {alpha}, c = {c}"
            best = theory.best_draft_length(alpha, c)
            yield curve(f"{label}: best γ = {best}", lengths, [theory.speedup(alpha, k, c) for k in lengths])
            yield curve("kernels", points, y / cost, error=error / cost, points=True)

    return dict(
        title="Speed-up of a chain of drafts",
        panels=[
            panel("by acceptance", "draft length γ", "speed-up", *curves([(a, 0.1) for a in (0.5, 0.7, 0.8, 0.9)])),
            panel("by cost", "draft length γ", "speed-up", *curves([(0.8, 0.02), (0.8, 0.1), (0.8, 0.4), (0.3, 0.4)])),
            panel("order matters", "slots", "expected accepted", *order(runs)),
        ],
    )


def simulated_tokens(alpha: float, lengths: Iterable[int], runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean tokens of a round, and its error, where every slot is accepted with probability alpha."""
    p, q = slot_laws(alpha)
    return means(1 + simulate.rounds(p, q, k, runs=runs).num_accepted.double().numpy() for k in lengths)


def slot_laws(alpha: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Laws of three tokens whose overlap is alpha: (p, q)."""
    one, zero = np.ones_like(alpha), np.zeros_like(alpha)
    return np.stack([alpha, one - alpha, zero], -1), np.stack([alpha, zero, one - alpha], -1)


def order(runs: int) -> Iterator[Curve]:
    """Expected accepted tokens of one set of acceptances in two orders."""
    for betas in ([0.88, 0.96, 0.65], [0.65, 0.96, 0.88]):
        p, q = slot_laws(np.array([*betas, 1.0]))
        y, error = means(simulate.rounds(p[: n + 1], q[:n], n, runs).num_accepted.double().numpy() for n in (1, 2, 3))
        expected = [theory.expected_accepted(betas[:n]) for n in (1, 2, 3)]
        yield curve(f"β = {', '.join(map(str, betas))}", [1, 2, 3], expected)
        yield curve("kernels", [1, 2, 3], y, error=error, points=True)


def pair_laws(temperature: float = 1.0, turns: int = 1, tokens: int = 100) -> Workload:
    """Laws of the embedded pair at every token of texts the target wrote: (p, q), each [N, V]."""
    from specdec_kernels.generate import load_model
    from specdec_kernels.studies.measure import workload

    return workload(*map(load_model, PAIR), turns * PROMPTS, tokens=tokens, temperature=temperature)


def sampled(runs: int) -> Figure:
    """Accepted share of drafts by temperature: by rejection, and of those that are the token the target samples."""
    temperatures = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    shares = [shares_accepted(*pair_laws(temperature, 3, 250), runs) for temperature in temperatures]
    curves = []
    for name in shares[0]:
        expected, draws = zip(*(share[name] for share in shares), strict=True)
        y, error = means(draws)
        curves += [
            curve(name, temperatures, expected),
            curve("kernels", temperatures, y, error=error, points=True),
        ]
    return dict(
        title="Sampled verification",
        note="12 texts of 250 tokens of the embedded target at each temperature; a draft at each place",
        panels=[panel("the embedded pair", "temperature", "share of drafts accepted", *curves)],
    )


def shares_accepted(p: np.ndarray, q: np.ndarray, runs: int) -> dict[str, tuple[float, np.ndarray]]:
    """By kind of drafts: what share is accepted at places [N] of a text, and what became of `runs` drafts there."""
    place, best = np.random.default_rng(0).integers(len(p), size=runs), q.argmax(1)
    race = [theory.race_acceptance(*laws) for laws in zip(p, q, strict=True)]
    noise = dict(seed=torch.arange(runs, dtype=torch.int64, device="cpu")[:, None], position=0, nonce=1, space="probs")
    own = specdec.race_sample(simulate.rows(q[place, None]), **noise)
    kinds = {
        "rejection": (np.minimum(p, q).sum(1), {}),
        "race: shared noise": (race, dict(method="race")),
        "comparison: greedy drafts": (p[np.arange(len(p)), best], dict(method="race", x=best[place, None])),
        "comparison: independent drafts": ((p * q).sum(1), dict(method="race", x=own)),
    }
    return {
        name: (
            float(np.mean(accepted)),
            simulate.rounds(p[place, None], q[place, None], runs=runs, **options).num_accepted.double().numpy(),
        )
        for name, (accepted, options) in kinds.items()
    }


def drafting(runs: int) -> Figure:
    """Toner et al., Figures 3 and 4 on the embedded pair: acceptance and tokens per time by draft probability."""
    p, q = pair_laws()
    overlaps = np.minimum(p, q).sum(1)
    place = int(np.argmin(np.abs(overlaps - 0.6)))  # the paper's random prompt has an acceptance of about 0.6
    return dict(
        title="Toner et al. 2025, Figures 3 and 4, on the embedded pair",
        note=f"{len(p)} places of four texts of the embedded target; the one prompt is place {place}",
        panels=[
            drafting_acceptance(p[place], q[place], runs),
            drafting_rates(p, q, 0.6, runs),  # the paper's OPT 6.7B and 2.7B
            drafting_rates(p, q, 0.2, runs),
        ],
    )


def drafting_acceptance(p: np.ndarray, q: np.ndarray, runs: int) -> Panel:
    """Acceptance of a drafted token at one place."""
    grid, tried = np.linspace(0, 1, 101), np.linspace(0.1, 1, 10)
    y, error = means(simulate.rounds(p, q, runs=runs, draft_prob=float(a)).num_accepted.double().numpy() for a in tried)
    return panel(
        "Figure 3: one prompt", "draft probability a", "acceptance",
        curve("Lemma 4.1", grid, [theory.drafting_acceptance(p, q, a) for a in grid]),
        curve("kernels", tried, y, error=error, points=True),
    )  # fmt: skip


def drafting_rates(p: np.ndarray, q: np.ndarray, lam: float, runs: int) -> Panel:
    """Tokens per time of the target, over the whole workload, both ways to count, and the kernels' long-run rate."""
    grid, tried, rng = np.linspace(0, 1, 101), np.linspace(0, 1, 6), np.random.default_rng(0)
    kinds = {
        f"{kind}: a* = {theory.best_draft_prob(p, q, lam, kind):.3f}": [
            theory.drafting_rate(p, q, a, lam, kind) for a in grid
        ]
        for kind in ("renewal", "paper")
    }
    y, error = [], []
    for a in tried:
        place, drafted = rng.integers(len(p), size=runs), rng.random(runs) < a
        verdict = simulate.rounds(p[place, None], q[place, None], runs=runs, draft_prob=float(a), drafted=drafted)
        tokens, time = 1 + verdict.num_accepted.double().numpy(), 1 + lam * drafted
        y.append(tokens.mean() / time.mean())
        error.append(np.std(tokens - y[-1] * time) / np.sqrt(runs) / time.mean())
    return panel(
        f"Figure 4: workload, λ = {lam}", "draft probability a", "speed-up",
        *(curve(label, grid, values) for label, values in kinds.items()),
        curve("kernels, long-run rate", tried, y, error=error, points=True),
    )  # fmt: skip


def control(runs: int) -> Figure:
    """The controller beside every fixed draft length on the embedded pair, in tokens per second of one processor.

    All take turns, text by text, and a round is charged the median time of all rounds of its length: what is compared
    is the choice of lengths, not what else the machine did. The controller is judged by the second half of its rounds.
    """
    rounds = played(turns=12, tokens=max(20, runs // 40))
    rounds["auto"] = rounds["auto"][len(rounds["auto"]) // 2 :]
    times = {}
    for entry in (entry for part in rounds.values() for entry in part):
        times.setdefault(entry.drafted, []).append(sum(entry.seconds.values()))
    charge = {length: float(np.median(seconds)) for length, seconds in sorted(times.items())}
    *fixed, auto = (
        sum(len(entry.tokens) for entry in part) / sum(charge[entry.drafted] for entry in part)
        for part in rounds.values()
    )
    lengths = list(range(len(fixed)))
    return dict(
        title="Learning how far to draft: the embedded pair",
        note=f"race, temperature 1; median seconds of a round by drafted tokens: {charge}",
        panels=[
            panel(
                "one text at a time", "draft length k", "tokens per second",
                curve(f"auto: {auto / max(fixed):.3f} of the best", lengths, [auto] * len(fixed)),
                curve("fixed k", lengths, fixed, points=True),
            ),
        ],
    )  # fmt: skip


def played(turns: int, tokens: int) -> dict[str, list[Round]]:
    """Rounds of the embedded pair, without those that read prompts. k = 0 … 8 and the controller take turns."""
    import time

    from specdec_kernels.generate import Controller, FixedLength, ModelDrafter, generate, load_model

    target, draft = map(load_model, PAIR)
    policies = {str(k): FixedLength(k) for k in range(9)} | {"auto": Controller(8)}
    rounds = {name: [] for name in policies}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the processor's time is the text's
    try:
        for turn in range(turns):
            for name, policy in policies.items():
                options = dict(policy=policy, seed=turn, max_new_tokens=tokens, timer=time.process_time)
                (text,) = generate([PROMPTS[turn % len(PROMPTS)]], target, ModelDrafter(draft), **options)
                rounds[name] += text.rounds[1:]
    finally:
        torch.set_num_threads(threads)
    return rounds


FIGURES: dict[str, Callable[[int], Figure]] = {
    "rejections-50": rejections(50, (4, 5)),
    "rejections-100": rejections(100, (2,)),
    "pareto": pareto,
    "speedup": speedup,
    "drafting": drafting,
    "sampled": sampled,
    "control": control,
}

"""The controller against simulated rounds whose acceptance and cost are known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import theory
from specdec_kernels.generate.control import (
    NO_DRAFT,
    Acceptance,
    ChildAcceptance,
    Controller,
    Times,
    TreeController,
    prefix_weights,
)
from specdec_kernels.generate.noise import Noise, Sampling
from specdec_kernels.theory.trees import optimal_nodes
from tests.support.laws import assert_law

MAX_K = 12
ROUNDS = 1000


class Machine:
    """Rounds with an acceptance by slot, base + slope * length seconds, and noise as a shared machine has it."""

    def __init__(self, betas, c, seed=0, noise=0.1):
        self.rng, self.betas, self.c, self.noise = np.random.default_rng(seed), np.broadcast_to(betas, MAX_K), c, noise

    def seconds(self, length):
        return 1 + self.c * length

    def run(self, count):
        hits = self.rng.random(count) < self.betas[:count]
        accepted = count if hits.all() else int(hits.argmin())
        seconds = (
            self.seconds(count) * (1 + self.noise * self.rng.exponential()) * (20 if self.rng.random() < 0.02 else 1)
        )
        return SimpleNamespace(drafted=count, accepted=accepted, seconds={"draft": seconds / 2, "target": seconds / 2})

    def rate(self, length):
        """Tokens per noiseless second at a fixed length."""
        return theory.expected_tokens(self.betas[:length], length) / self.seconds(length)


class SteppedMachine(Machine):
    """Verification of more than four rows costs a second pass."""

    def seconds(self, length):
        return 1 + self.c * length + (0.8 if length > 4 else 0)


def play(controller, machine, rounds=ROUNDS):
    """Lengths the controller plans, and the expected tokens per noiseless second of its last half."""
    lengths = []
    for _ in range(rounds):
        (count,), _ = controller.plan(None, [1000])
        controller.observe([machine.run(count)])
        lengths.append(count)
    late = lengths[rounds // 2 :]
    tokens = sum(theory.expected_tokens(machine.betas[:k], k) for k in late)
    return lengths, tokens / sum(machine.seconds(k) for k in late)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "machine, betas, c",
    [
        (Machine, 0.8, 0.1),
        (Machine, 0.95, 0.02),
        (Machine, 0.3, 0.4),  # best not to draft
        (Machine, 0.05, 0.05),
        (Machine, 0.6, 0.0),
        (Machine, np.linspace(0.9, 0.3, MAX_K), 0.08),
        (SteppedMachine, 0.9, 0.05),
    ],
)
def test_ends_within_five_percent_of_the_best_fixed_length(machine, betas, c, seed):
    machine = machine(betas, c, seed)
    best = max(machine.rate(k) for k in range(MAX_K + 1))
    _, rate = play(Controller(MAX_K), machine)
    assert rate >= 0.95 * best


def test_follows_a_change():
    controller, machine = Controller(MAX_K), Machine(0.95, 0.05, noise=0)
    play(controller, machine)
    assert controller.choose().k >= 8
    machine.betas = np.full(MAX_K, 0.01)
    play(controller, machine)
    assert controller.choose().k == 0
    machine.betas = np.full(MAX_K, 0.95)
    play(controller, machine, 3 * ROUNDS)  # it looks at drafting only now and then once it has stopped
    assert controller.choose().k >= 8


def test_cost_ratio_is_what_a_draft_adds():
    controller = Controller(MAX_K)
    assert controller.cost_ratio is None
    play(controller, Machine(0.8, 0.1), 300)
    assert controller.cost_ratio == pytest.approx(0.1, rel=0.15)


def test_the_plan_is_a_function_of_ended_rounds():
    """Two machines that agree until round 100: the plans agree until then, whatever is drafted later."""
    plans = []
    for later in (0.1, 0.9):
        machine, controller, lengths = Machine(0.7, 0.1), Controller(MAX_K), []
        for turn in range(400):
            machine.betas = np.full(MAX_K, 0.7 if turn < 100 else later)
            (count,), _ = controller.plan(None, [1000])
            lengths.append(count)
            controller.observe([machine.run(count)])
        plans.append(lengths)
    assert plans[0][:101] == plans[1][:101]
    assert plans[0] != plans[1]


def test_limits_are_kept_and_batches_pooled():
    controller = Controller(4)
    for _ in range(20):
        counts, draft_prob = controller.plan(None, [0, 2, 100])
        assert draft_prob == 1.0
        assert counts[0] == 0
        assert counts[1] <= 2
        controller.observe([SimpleNamespace(drafted=n, accepted=n, seconds={"all": 1.0}) for n in counts])
    assert controller.choose().k == 4
    assert controller.acceptance.tried[0] > controller.acceptance.tried[3] > 0


def test_short_texts_and_no_drafts_are_no_obstacle():
    for max_k, limits in ((0, [9]), (5, [5, 4, 3, 2, 1, 0]), (1, [0])):
        controller = Controller(max_k)
        for turn in range(40):
            (count,), _ = controller.plan(None, [limits[turn % len(limits)]])
            assert 0 <= count <= min(max_k, limits[turn % len(limits)])
            controller.observe([SimpleNamespace(drafted=count, accepted=0, seconds={"all": 1.0})])


def test_acceptance_counts_slots_up_to_the_first_rejection():
    acceptance = Acceptance(4)
    acceptance.add(planned=3, accepted=1)
    acceptance.add(planned=2, accepted=2)
    np.testing.assert_array_equal(acceptance.tried, [2, 2, 0, 0])
    np.testing.assert_array_equal(acceptance.passed, [2, 1, 0, 0])


def test_times_shrug_off_pauses():
    times = Times()
    for length in (0, 2, 4):
        for seconds in (1.0, 1.0, 50.0, 1.0, 1.0):
            times.add(length, seconds + 0.1 * length if seconds == 1 else seconds)
    np.testing.assert_allclose(times.curve(6), 1 + 0.1 * np.arange(7), atol=1e-9)


P, Q = np.array([0.6, 0.25, 0.1, 0.05]), np.array([0.05, 0.15, 0.2, 0.6])
LOGITS = torch.from_numpy(np.log([[P, P]])), torch.from_numpy(np.log([[Q]]))


def play_randomised(controller, lam, rounds=1200):
    """Rounds of one draft token of law Q under a target P, its draft row free where none is drafted; late rate."""
    rng, position, late = np.random.default_rng(1), 0, []
    for turn in range(rounds):
        position += 2
        (count,), h = controller.plan(Noise(torch.tensor([7]), torch.tensor([position])), [1000])
        x = rng.choice(4, p=Q)
        accepted = int(count > 0 and rng.random() < P[x] / (float(h[0, 0]) * Q[x]))
        seconds = 1 + lam * count
        drafts = torch.tensor([[x if count else -1]])
        controller.look(drafts, *LOGITS, Sampling(torch.ones(1)))
        controller.observe([SimpleNamespace(drafted=count, accepted=accepted, seconds={"all": seconds})])
        if turn > rounds // 2:
            late.append((1 + accepted, seconds))
    tokens, seconds = np.sum(late, axis=0)
    return tokens / seconds


@pytest.mark.parametrize("lam", [0.3, 0.02])
def test_draft_probability_approaches_the_best_one(lam):
    controller = Controller(1, randomised=True, parallel=True)
    rate = play_randomised(controller, lam)
    best = theory.best_draft_prob(P, Q, lam)
    assert controller.choose().draft_prob == pytest.approx(best, abs=0.15)
    assert rate == pytest.approx(theory.drafting_rate(P, Q, best, lam), rel=0.05)
    assert (NO_DRAFT in controller.times.seconds) == (best < 1)


def kernel_round(controller, method, seeds, position):
    """A round of a batch, drafted from Q as the controller says and verified against P by the kernel."""
    batch = len(seeds)
    counts, h = controller.plan(Noise(seeds, position), [100] * batch)
    k = max(*counts, 1)
    places = position[:, None] + torch.arange(k)
    target, draft = LOGITS[0][:, :1].expand(batch, k + 1, -1).float(), LOGITS[1].expand(batch, k, -1).float()
    drafts = specdec.race_sample(draft, seed=seeds[:, None].expand(batch, k), position=places)
    drafts[torch.arange(k) >= torch.tensor(counts)[:, None]] = -1
    given = dict(draft=draft, draft_prob=h[:, :k]) if method == "rejection" else {}
    verdict = specdec.verify_chain(drafts, target, method=method, seed=seeds, position=position, **given)
    controller.look(drafts, target, given.get("draft"), Sampling(torch.ones(batch)))
    seconds, accepted = {"all": 1 + 0.2 * max(counts)}, verdict.num_accepted.tolist()
    ended = [SimpleNamespace(drafted=n, accepted=a, seconds=seconds) for n, a in zip(counts, accepted, strict=True)]
    controller.observe(ended)
    return verdict


@pytest.mark.parametrize("method", ["rejection", "race"])
def test_what_it_learns_leaves_the_law_alone(method):
    """Pairs of tokens of a batch of texts follow P x P (a false alarm in 1e6)."""
    batch, controller = 600, Controller(4, randomised=method == "rejection", parallel=True)
    position, seeds = torch.zeros(batch, dtype=torch.int64), torch.arange(batch)
    texts, lengths = [[] for _ in range(batch)], set()
    for _ in range(60):
        tokens, accepted, _ = kernel_round(controller, method, seeds, position)
        for text, row, n in zip(texts, tokens.tolist(), accepted.tolist(), strict=True):
            text += row[: n + 1]
        position += accepted + 1
        lengths.add(max(controller.planned))
    pairs = np.array([text[:60] for text in texts]).reshape(-1, 2)
    assert_law(4 * pairs[:, 0] + pairs[:, 1], np.outer(P, P).ravel())
    assert len(lengths) > 2


def test_draft_probability_stays_one_where_nothing_was_looked_at():
    controller = Controller(MAX_K, randomised=True)
    for position in range(60):
        (count,), h = controller.plan(Noise(torch.tensor([7]), torch.tensor([position])), [1000])
        assert bool((h == 1).all())
        controller.observe([Machine(0.5, 0.1, seed=position).run(count)])


def looked_at(controller, rounds, c):
    """Rounds of four texts each, drafted from Q under P as the controller says; their lengths."""
    lengths = []
    for position in range(rounds):
        noise = Noise(torch.arange(4), torch.full((4,), position))
        counts, _ = controller.plan(noise, [1000] * 4)
        k = max(counts)
        target, draft = LOGITS[0][:, :1].expand(4, k + 1, -1).float(), LOGITS[1].expand(4, k, -1).float()
        places = position + 100_000 * torch.arange(k)
        drafts = specdec.race_sample(draft, seed=noise.seed[:, None].expand(4, k), position=places.expand(4, k))
        controller.look(drafts, target, draft, Sampling(torch.ones(4)))
        controller.observe(4 * [SimpleNamespace(drafted=k, accepted=0, seconds={"all": 1 + c * k})])
        lengths.append(k)
    return lengths


@pytest.mark.parametrize("c", [0.02, 0.2])
def test_block_is_learnt_from_weights(c):
    """Whatever was accepted: the rounds shown say nothing was."""
    controller = Controller(MAX_K, block=True)
    late = looked_at(controller, 600, c)[300:]
    tokens = [1 + theory.block_expected_accepted(P, Q, k) for k in range(MAX_K + 1)]
    best = max(tokens[k] / (1 + c * k) for k in range(MAX_K + 1))
    assert sum(tokens[k] for k in late) / sum(1 + c * k for k in late) >= 0.95 * best
    assert controller.tokens()[:3] == pytest.approx(tokens[:3], abs=0.06)


def test_prefix_weights():
    """Sampled, certain and greedy drafts: min(1, w p/q), products of p, and 1 for as long as the argmax is drafted."""
    target, draft = (torch.tensor(law).log().expand(3, 2, 4) for law in ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]))
    drafts = torch.tensor([[3, 0], [1, 2], [0, 3]])
    weights = prefix_weights(drafts, target, draft, Sampling(torch.tensor([1.0, 1.0, 0.0])))
    assert weights.flatten().tolist() == pytest.approx([0.25, 1.0, 1.0, 2 / 3, 1.0, 0.0], abs=1e-6)
    certain = prefix_weights(drafts, target, None, Sampling(torch.ones(3)))
    assert certain.flatten().tolist() == pytest.approx([0.1, 0.04, 0.3, 0.06, 0.4, 0.04], abs=1e-6)


def accepted_path(parents, R, rng):
    """Nodes accepted in a tree where the i-th child of a node is accepted with probability R[i]."""
    path = [0]
    while True:
        offered = [child for child, parent in enumerate(parents) if parent == path[-1]]
        child = rng.choice(len(R) + 1, p=[*R, 1 - sum(R)])
        if child >= len(offered):
            return path
        path.append(offered[child])


@pytest.mark.parametrize("R, c", [((0.5, 0.2, 0.1, 0.05), 0.03), ((0.8, 0.1), 0.1), ((0.1, 0.05), 0.2)])
def test_tree_controller_ends_within_five_percent_of_the_best_tree(R, c):
    rng, controller, charged = np.random.default_rng(0), TreeController(24), []
    for _ in range(1500):
        parents = controller.plan_tree()
        seconds = 1 + c * (len(parents) - 1)
        controller.observe_tree(accepted_path(parents, R, rng), seconds * (1 + 0.1 * rng.exponential()))
        tokens = 1 + sum(np.prod([R[i] if i < len(R) else 0 for i in node]) for node in child_paths(parents)[1:])
        charged.append((tokens, seconds))
    tokens, seconds = np.sum(charged[750:], axis=0)
    best = max((1 + optimal_nodes(R, n).values.sum()) / (1 + c * n) for n in range(25))
    assert tokens / seconds >= 0.95 * best


def child_paths(parents):
    """The child indices that lead from the root to each node."""
    paths = [()]
    for node in range(1, len(parents)):
        elder = sum(parents[other] == parents[node] for other in range(node))
        paths.append((*paths[parents[node]], elder))
    return paths


def test_child_acceptance_counts_offers_and_falls():
    children = ChildAcceptance(3)
    children.add(offered=3, taken=1)
    children.add(offered=1, taken=None)
    np.testing.assert_array_equal(children.tried, [2, 1, 1])
    np.testing.assert_array_equal(children.passed, [0, 1, 0])
    rates = children.rates()
    assert np.all(np.diff(rates) <= 0)
    assert rates.sum() <= 1


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"^max_k"):
        Controller(-1)
    with pytest.raises(ValueError, match=r"^randomised: expected False with block"):
        Controller(randomised=True, block=True)

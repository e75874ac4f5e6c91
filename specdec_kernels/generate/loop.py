"""The generation loop: draft, verify, commit, roll back, for a batch of texts of different lengths."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specdec_kernels.generate.chains import ChainRounds
from specdec_kernels.generate.drafting import Clock, FixedLength, RandomLength
from specdec_kernels.generate.models import LanguageModel
from specdec_kernels.generate.text import TextStream
from specdec_kernels.generate.trees import DraftedTree, FixedTree, TreeRounds
from specdec_kernels.trees import DraftTree

METHODS = ("plain", "rejection", "race")


@dataclass(frozen=True)
class Round:
    """What one verification gave one request.

    Attributes
    ----------
    request : index of the prompt
    tokens : emitted token ids; `accepted` drafts and one more, unless the text ended among them
    pieces : their text, as ("accepted" | "replaced" | "bonus", string) in order
    drafted, accepted : draft tokens offered to the target, and accepted by it
    finish : None, or why the text ends here: "length", "eos" or "stop"
    seconds : wall-clock seconds of the round, whole batch: "draft", "target", "verify"
    status : bits set by the verifier (see `verify_chain`)
    tree : the tree that was drafted, None with chains
    """

    request: int
    tokens: list[int]
    pieces: list[tuple[str, str]]
    drafted: int
    accepted: int
    finish: str | None
    seconds: dict[str, float]
    status: int = 0
    tree: DraftedTree | None = None

    @property
    def tested(self) -> int:
        """Draft tokens the verifier decided on: those after the first rejection are not."""
        return min(self.accepted + 1, self.drafted) if self.tree is None else self.tree.tested


@dataclass
class Generation:
    """A finished text, and the rounds it took. Seconds are those of the batch it was generated in."""

    prompt: list[int]
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for entry in self.rounds for token in entry.tokens]

    @property
    def text(self) -> str:
        return "".join(piece for entry in self.rounds for _, piece in entry.pieces)

    @property
    def finish(self) -> str | None:
        return self.rounds[-1].finish

    @property
    def target_calls(self) -> int:
        return len(self.rounds)

    @property
    def drafted(self) -> int:
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(entry.accepted for entry in self.rounds)

    @property
    def status(self) -> list[int]:
        """The verifier's status of every round where it was not 0."""
        return [entry.status for entry in self.rounds if entry.status]

    @property
    def acceptance(self) -> float | None:
        """Accepted over tested draft tokens: an estimate of the probability that a draft token is accepted."""
        tested = sum(entry.tested for entry in self.rounds)
        return self.accepted / tested if tested else None

    @property
    def tokens_per_call(self) -> float:
        return len(self.tokens) / self.target_calls

    @property
    def seconds(self) -> dict[str, float]:
        parts = ("draft", "target", "verify")
        return {part: sum(entry.seconds[part] for entry in self.rounds) for part in parts}


class Stopwatch:
    """Seconds by part; on a GPU it waits for the device, or the parts would be told apart wrongly."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.last = device, {}, self.clock()

    def lap(self, part: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = self.clock()
        self.seconds[part], self.last = now - self.last, now


class Request:
    """A text in the making."""

    def __init__(self, index: int, prompt: list[int], stream: TextStream, eos: set[int], max_new_tokens: int):
        self.index, self.stream, self.eos = index, stream, eos
        self.length, self.left = len(prompt), max_new_tokens

    def commit(self, tokens: list[int], drafted: int, accepted: int, complete: bool, **figures) -> Round:
        """Append a round's tokens, up to where the text ends; `complete`: no draft was left after the accepted ones."""
        pieces, finish, taken = [], None, 0
        last = "bonus" if complete else "replaced"
        for token in tokens:
            self.stream.append([token])
            taken, self.left = taken + 1, self.left - 1
            finish = self._finish(token)
            if taken == accepted or taken == len(tokens) or finish:
                pieces.append(("accepted" if taken <= accepted else last, self.stream.read(final=finish is not None)))
            if finish:
                break
        self.length += taken
        return Round(self.index, tokens[:taken], pieces, drafted, accepted, finish, **figures)

    def _finish(self, token: int) -> str | None:
        if token in self.eos:
            return "eos"
        if self.stream.stopped():
            return "stop"
        return None if self.left else "length"


def stream(
    prompts: Sequence[str | list[int]],
    target: LanguageModel,
    drafter=None,
    *,
    method: str = "race",
    k: int = 4,
    draft_prob: float = 1.0,
    policy=None,
    tree: DraftTree | Sequence[int] | None = None,
    replacement: bool = False,
    temperature: float | Sequence[float] = 1.0,
    seed: int | Sequence[int] = 0,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    eos_token_ids: Iterable[int] | None = None,
) -> Iterator[Round]:
    """Generate, round by round: see `generate`, which collects these rounds."""
    if tree is not None:
        if policy is not None:
            raise ValueError("policy: expected None with a tree")
        policy = FixedTree(tree if isinstance(tree, DraftTree) else DraftTree.from_parents(tree))
    if policy is None:
        policy = FixedLength(0 if drafter is None else k) if draft_prob == 1 else RandomLength(k, draft_prob)
    trees = hasattr(policy, "plan_tree")
    check_choice(method, drafter, policy)
    if trees or replacement:
        check_tree_choice(method, drafter, trees, draft_prob, replacement)
    if not prompts:
        return iter(())
    prompts = [target.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    models = [target, *([drafter.language_model] if hasattr(drafter, "language_model") else [])]
    check_lengths(prompts, max_new_tokens, models)
    device, batch = target.device, len(prompts)
    seeds, temperatures = spread_seed(seed, batch).to(device), spread_temperature(temperature, batch).to(device)
    eos = target.eos_token_ids if eos_token_ids is None else set(eos_token_ids)
    requests = [
        Request(index, prompt, TextStream(target.tokenizer, prompt, tuple(stop)), eos, max_new_tokens)
        for index, prompt in enumerate(prompts)
    ]
    player = (
        TreeRounds(target, drafter, method, policy, replacement)
        if trees
        else ChainRounds(target, drafter, method, policy)
    )
    return run(requests, prompts, player, seeds, temperatures)


def run(requests, prompts, player, seeds, temperatures) -> Iterator[Round]:
    """The loop itself, on checked arguments; `player` (`ChainRounds` or `TreeRounds`) knows how a round is played."""
    device = seeds.device
    # Past the longest text: the drafts of a last round, and one slot for what padding writes.
    capacity = max(request.length + request.left for request in requests) + player.room + 2
    text = torch.zeros(len(prompts), capacity, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        text[row, : len(prompt)] = torch.tensor(prompt)
    text = text.to(device)
    player.start(len(prompts), capacity)

    while requests:
        watch = Stopwatch(device)
        length, limit = [request.length for request in requests], [request.left - 1 for request in requests]
        clock = Clock(seeds, torch.tensor(length, device=device), temperatures)
        outcome = player.play(text, length, limit, clock, watch)

        rounds = []
        for row, (request, emitted) in enumerate(zip(requests, outcome.tokens, strict=True)):
            figures = dict(seconds=watch.seconds, status=outcome.status[row], tree=outcome.trees[row])
            rounds.append(
                request.commit(
                    emitted, outcome.drafted[row], outcome.accepted[row], complete=outcome.complete[row], **figures
                )
            )
            text[row, length[row] : length[row] + len(emitted)] = torch.tensor(emitted, device=device)
        yield from rounds

        player.settle(rounds)
        going = [row for row, entry in enumerate(rounds) if entry.finish is None]
        if len(going) < len(requests):
            player.keep(going)
        requests = [requests[row] for row in going]
        text, seeds, temperatures = text[going], seeds[going], temperatures[going]


def generate(prompts: Sequence[str | list[int]], target: LanguageModel, drafter=None, **options) -> list[Generation]:
    """Write on from every prompt.

    Parameters
    ----------
    prompts : texts, or lists of token ids
    target : the model whose law the output has
    drafter : ModelDrafter, NgramDrafter, or None
    method : "plain" (one token a call, by `race_sample`), "rejection" or "race" (by `verify_chain`; its tokens are
        those of "plain" with the same seed, whatever the drafter)
    k : draft tokens a round
    draft_prob : with "rejection" and a ModelDrafter, the probability that a round drafts at all
    policy : how many to draft, in place of `k` and `draft_prob` (see `FixedLength`), or which tree (see `FixedTree`)
    tree : a tree to draft every round, in place of `k`: DraftTree, or its parents; needs a ModelDrafter
    replacement : with a tree and "rejection", draw siblings independently of each other
    temperature : number, or one per prompt; 0 is greedy
    seed : one per prompt, or a number s: prompt b then has the seed s + b
    max_new_tokens : the most tokens written per prompt
    stop : strings that end a text, and are left out of it
    eos_token_ids : tokens that end a text; those of the target if not given

    Returns
    -------
    list of Generation
        In the order of the prompts.

    Raises
    ------
    ValueError : an argument out of range, or methods, drafters and models that do not go together

    Examples
    --------
    >>> from specdec_kernels.generate import ModelDrafter, load_model
    >>> target, draft = load_model("embedded:target"), load_model("embedded:draft")
    >>> plain, = generate(["ROMEO:"], target, method="plain", max_new_tokens=24)
    >>> race, = generate(["ROMEO:"], target, ModelDrafter(draft), method="race", max_new_tokens=24)
    >>> race.text == plain.text, plain.target_calls, race.target_calls < 24
    (True, 24, True)
    """
    rounds = stream(prompts, target, drafter, **options)
    generations = [Generation(target.encode(prompt) if isinstance(prompt, str) else list(prompt)) for prompt in prompts]
    for entry in rounds:
        generations[entry.request].rounds.append(entry)
    return generations


def check_choice(method: str, drafter, policy) -> None:
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if method == "plain" and drafter is not None:
        raise ValueError("drafter: expected None with method plain, which drafts nothing")
    if policy.randomised and not (method == "rejection" and getattr(drafter, "laws", False)):
        raise ValueError("draft_prob: expected method rejection and a model as drafter where drafting is randomised")


def check_tree_choice(method: str, drafter, trees: bool, draft_prob: float, replacement: bool) -> None:
    if not trees:
        raise ValueError("replacement: expected False without a tree")
    if method == "plain":
        raise ValueError("tree: expected method rejection or race, got plain")
    if not hasattr(drafter, "language_model"):
        raise ValueError("tree: expected a model as drafter")
    if draft_prob != 1:
        raise ValueError(f"draft_prob: expected 1 with a tree, got {draft_prob}")
    if replacement and method != "rejection":
        raise ValueError(f"replacement: expected method rejection, got {method}")


def check_lengths(prompts: list[list[int]], max_new_tokens: int, models: list[LanguageModel]) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompts[{index}]: expected at least one token, got none")
    for model in models:
        longest = max(map(len, prompts))
        if model.max_length is not None and longest + max_new_tokens > model.max_length:
            raise ValueError(
                f"max_new_tokens: expected at most {model.max_length - longest} after a prompt of {longest} tokens "
                f"({model.name} ends at {model.max_length}), got {max_new_tokens}"
            )


def spread_seed(seed: int | Sequence[int], batch: int) -> torch.Tensor:
    """One 64-bit seed per request, int64 [batch]."""
    seeds = [seed + index for index in range(batch)] if isinstance(seed, int) else list(seed)
    if len(seeds) != batch:
        raise ValueError(f"seed: expected a number or one per prompt ({batch}), got {len(seeds)}")
    return torch.tensor([(value + 2**63) % 2**64 - 2**63 for value in seeds])


def spread_temperature(temperature: float | Sequence[float], batch: int) -> torch.Tensor:
    """One temperature per request, float32 [batch]."""
    values = [temperature] * batch if isinstance(temperature, (int, float)) else list(temperature)
    if len(values) != batch:
        raise ValueError(f"temperature: expected a number or one per prompt ({batch}), got {len(values)}")
    if not all(0 <= value < float("inf") for value in values):
        raise ValueError(f"temperature: expected finite numbers >= 0, got {temperature}")
    return torch.tensor(values, dtype=torch.float32)

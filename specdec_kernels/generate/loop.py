"""The generation loop: draft, verify, commit, roll back, for a batch of texts of different lengths."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specdec_kernels import Status
from specdec_kernels.generate import arguments
from specdec_kernels.generate.chains import ChainRounds
from specdec_kernels.generate.checks import whole_number
from specdec_kernels.generate.edits import Record, TextEdits
from specdec_kernels.generate.logprobs import logprobs_of
from specdec_kernels.generate.noise import Noise, Sampling, Watermark, at_rows, of_round, on_device
from specdec_kernels.generate.parallel import check_split
from specdec_kernels.generate.protocols import ChainPolicy, Drafter, Law, TreeDrafter, TreePolicy
from specdec_kernels.generate.results import Generation, Round, TokenLogprobs
from specdec_kernels.generate.rounds import Rounds, Stopwatch
from specdec_kernels.generate.text import TextStream
from specdec_kernels.generate.trees import TreeRounds
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel

PIECE = 2048  # tokens of a prompt that are read at once


class Request:
    """A text that is being written."""

    def __init__(self, index: int, prompt: list[int], stream: TextStream, eos: set[int], max_new_tokens: int) -> None:
        self.index, self.stream, self.eos = index, stream, eos
        self.length, self.left = len(prompt), max_new_tokens

    def commit(
        self, tokens: list[int], drafted: int, accepted: int, complete: bool, logprobs: list[TokenLogprobs] | None,
        **figures: Any,
    ) -> Round:  # fmt: skip
        """Append a round's tokens, up to the text's end; `complete`: no draft was left after the accepted ones."""
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
        logprobs = None if logprobs is None else logprobs[:taken]
        return Round(self.index, tokens[:taken], pieces, drafted, accepted, finish, logprobs=logprobs, **figures)

    def _finish(self, token: int) -> str | None:
        if token in self.eos:
            return "eos"
        if self.stream.stopped():
            return "stop"
        return None if self.left else "length"


def stream(
    prompts: Sequence[str | Sequence[int]],
    target: LanguageModel,
    drafter: Drafter | None = None,
    *,
    method: str = "race",
    k: int = 4,
    draft_prob: float = 1.0,
    policy: ChainPolicy | TreePolicy | None = None,
    tree: DraftTree | Sequence[int] | None = None,
    paths: int | None = None,
    replacement: bool = False,
    max_pending: int | None = None,
    temperature: float | Sequence[float] | None = None,
    sampling: Sampling | None = None,
    edits: TextEdits | None = None,
    logprobs: int | None = None,
    watermark: Watermark | None = None,
    seed: int | Sequence[int] = 0,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    eos_token_ids: Iterable[int] | None = None,
    timer: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Round]:
    """Generate, round by round: see `generate`, which collects these rounds."""
    policy = arguments.policy_of(drafter, k, draft_prob, policy, tree, paths)
    max_pending = None if max_pending is None else whole_number("max_pending", max_pending, 1)
    arguments.check_method(method, drafter, policy, draft_prob, replacement, paths)
    check_split(target, method, policy, edits, logprobs, watermark)
    texts, max_new_tokens = arguments.token_lists(prompts, target), whole_number("max_new_tokens", max_new_tokens, 1)
    stop, eos = arguments.stop_strings(stop, target), arguments.end_tokens(eos_token_ids, target)
    noise = arguments.noise_of(seed, watermark, method, texts, target.device)
    sampling = on_device(arguments.sampling_of(temperature, sampling, len(texts)), target.device)
    logprobs = arguments.count_of_likeliest(logprobs, target)
    if not texts:
        return iter(())
    record = arguments.record_of(edits, texts, target)
    draft = None if drafter is None else drafter.language_model
    models = [target] if draft is None else [target, draft]
    if record is not None:
        arguments.check_left(edits, record, target.name, slice(None))
        if draft is not None:
            draft_map = getattr(drafter, "map", None)
            columns = slice(draft.config.vocab_size) if draft_map is None else draft_map
            arguments.check_left(edits, record, draft.name, columns)
    arguments.check_models(models, policy)
    arguments.check_lengths(texts, max_new_tokens, models)
    arguments.check_ops(sampling, noise.seed, logprobs, record is not None)
    requests = [
        Request(index, text, TextStream(target.tokenizer, text, stop), eos, max_new_tokens)
        for index, text in enumerate(texts)
    ]
    rounds = rounds_of(target, drafter, method, policy, replacement)
    rounds.max_pending = max_pending
    return run(requests, texts, rounds, noise, sampling, record, logprobs, timer, progress)


def rounds_of(
    target: LanguageModel, drafter: Drafter | None, method: str, policy: ChainPolicy | TreePolicy, replacement: bool
) -> Rounds:
    """The `Rounds` for these checked arguments."""
    if isinstance(policy, TreePolicy) and isinstance(drafter, TreeDrafter):
        return TreeRounds(target, drafter, method, policy, replacement)
    return ChainRounds(target, drafter, method, policy)


def run(
    requests: list[Request], texts: list[list[int]], rounds: Rounds, noise: Noise, sampling: Sampling,
    record: Record | None, logprobs: int | None, timer: Callable[[], float],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Round]:  # fmt: skip
    """The loop, on checked arguments."""
    device = noise.seed.device
    # Room after the longest text: the drafts of the last round. A text has a round only while it lacks a token, so
    # no text uses the last slot: padding is written to it.
    room = rounds.room(max(request.left for request in requests))
    capacity = max(request.length + request.left for request in requests) + room
    text = torch.zeros(len(texts), capacity, dtype=torch.int64, device="cpu")
    for row, tokens in enumerate(texts):
        text[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64, device="cpu")
    text = text.to(device)
    rounds.start(len(texts), capacity)
    read_ahead(rounds, text, min(request.length for request in requests), progress)

    for number in itertools.count():
        if not requests:
            return
        watch = Stopwatch(device, timer)
        length, limit = [request.length for request in requests], [request.left - 1 for request in requests]
        noise = noise._replace(position=torch.tensor(length, device=device, dtype=torch.int64))
        outcome = rounds.play(text, length, limit, of_round(noise, rounds.method, number), sampling, record, watch)
        for row, request in enumerate(requests):
            if outcome.status[row] & Status.NON_FINITE:
                raise FloatingPointError(no_law(rounds.laws_of(row), request.index))

        scores: list[list[TokenLogprobs] | None] = [None] * len(requests)
        if logprobs is not None:
            scores = logprobs_of(rounds.emitted(), sampling, record, logprobs)
            watch.lap("logprobs")

        ended = []
        for row, (request, emitted) in enumerate(zip(requests, outcome.tokens, strict=True)):
            figures = dict(seconds=watch.seconds, status=outcome.status[row])
            figures |= dict(tree=outcome.trees[row], chain=outcome.chains[row], read=outcome.read)
            drafted, accepted, complete = outcome.drafted[row], outcome.accepted[row], outcome.complete[row]
            ended.append(request.commit(emitted, drafted, accepted, complete, scores[row], **figures))
        write(text, length, outcome.tokens)
        yield from ended

        rounds.settle(ended)
        going = [row for row, entry in enumerate(ended) if entry.finish is None]
        if record is not None:
            record.count(rounds.emitted().tokens)
        if len(going) < len(requests):
            rounds.keep(going)
            if record is not None:
                record.keep(going)
        requests = [requests[row] for row in going]
        text, noise, sampling = text[going], at_rows(noise, going), at_rows(sampling, going)


def write(text: torch.Tensor, length: list[int], emitted: list[list[int]]) -> None:
    """Write each text's emitted tokens behind its first `length[b]` tokens, in one operation."""
    cells = [(row, begin + slot, token) for row, begin in enumerate(length) for slot, token in enumerate(emitted[row])]
    rows, columns, tokens = torch.tensor(cells, device=text.device, dtype=torch.int64).unbind(1)
    text[rows, columns] = tokens


def read_ahead(rounds: Rounds, text: torch.Tensor, length: int, progress: Callable[[int, int], None] | None) -> None:
    """Read long prompts in pieces, as far as all texts go; the first round reads the rest."""
    for end in range(PIECE, length, PIECE):
        rounds.read(text, [end] * len(text))
        if progress is not None:
            progress(end, length)


def no_law(laws: Iterable[Law], request: int) -> str:
    """The error text for a text's logits, after the verifier reported a fault."""
    for model, tokens, logits in laws:
        most = logits.max()  # NaN if any is NaN
        if not most.isfinite():
            return f"{model.name}: expected finite logits; got {most} after {tokens} tokens of prompts[{request}]"
    return f"prompts[{request}]: expected finite logits; got others"


def generate(
    prompts: Sequence[str | Sequence[int]], target: LanguageModel, drafter: Drafter | None = None, **options: Any
) -> list[Generation]:
    """Write on from every prompt.

    Parameters
    ----------
    prompts : list of str or of list of int
        Texts, or lists of token ids.
    target : LanguageModel
        The model whose law the output has.
    drafter : Drafter, optional
        ModelDrafter, NgramDrafter, or None.
    method : {"race", "rejection", "block", "traversal", "paths", "plain"}
        "plain" (one token a call, drawn by its race), "rejection", "race" (its tokens are those of "plain" with the
        same seed, whatever the drafter), "block" (chains), "traversal" (trees) or "paths" (several chains).
    k : int
        Draft tokens a round.
    draft_prob : float
        With "rejection" and a ModelDrafter, the probability that a round drafts at all.
    policy : ChainPolicy or TreePolicy, optional
        The number of drafts, instead of `k` and `draft_prob`, or the tree (see `ChainPolicy` and `TreePolicy`).
    tree : DraftTree or list of int, optional
        A tree to draft every round, instead of `k`: DraftTree, or its parents; needs a ModelDrafter.
    paths : int, optional
        With "paths", how many chains of `k` tokens to draft every round; needs a ModelDrafter.
    replacement : bool
        With a tree and "rejection" or "traversal", draw siblings independently of each other.
    max_pending : int, optional
        For a target with recurrent layers: how many accepted tokens are read again, at most, in front of drafts; beyond
        it another forward settles them. Default: 16, or a Controller's estimate.
    temperature : float or list of float
        Number, or one per prompt; 0 is greedy. Default 1. Short for ``sampling=Sampling(temperature=...)``.
    sampling : Sampling, optional
        Temperature and filters, of the target and of its drafts alike; each number one for all, or one per prompt.
    edits : TextEdits, optional
        Penalties, bias, and which tokens are allowed, of the target and of its drafts alike.
    logprobs : int, optional
        Return with every token its log-probability and rank by the law it was drawn from, and this many of the most
        probable tokens. Without it nothing is computed.
    watermark : Watermark, optional
        With "race" and "plain": each text carries the watermark of a key; drafts share it.
    seed : int or list of int
        One per prompt, or a number s: prompt b then has the seed s + b.
    max_new_tokens : int
        The most tokens written per prompt.
    stop : list of str
        Strings that end a text, and are not part of it.
    eos_token_ids : list of int, optional
        Tokens that end a text; by default the target's.
    timer : callable
        Returns seconds, by which rounds are timed.
    progress : callable, optional
        Called, while prompts of more than 2,048 tokens are read, with the numbers of tokens read and to read.

    Returns
    -------
    list of Generation
        In the order of the prompts.

    Raises
    ------
    TypeError, ValueError
        An argument of another type or out of range; methods, drafters, models that do not go together; a model that
        cannot be read in pieces.
    RuntimeError
        The ops' backend has no filters, no edits, or no log-probabilities.
    FloatingPointError
        Logits that are no law's (NaN, +inf, or nothing but -inf); the text names the model and the position.

    Examples
    --------
    >>> from specdec_kernels.generate import ModelDrafter, load_model
    >>> target, draft = load_model("embedded:target"), load_model("embedded:draft")
    >>> plain, = generate(["ROMEO:"], target, method="plain", max_new_tokens=24)
    >>> race, = generate(["ROMEO:"], target, ModelDrafter(draft), method="race", max_new_tokens=24)
    >>> race.text == plain.text, plain.target_calls, race.target_calls < 24
    (True, 24, True)
    """
    texts = arguments.token_lists(prompts, target)
    generations = [Generation(text) for text in texts]
    for entry in stream(texts, target, drafter, **options):
        generations[entry.request].rounds.append(entry)
    return generations

"""The results of generation: rounds, the trees they verified, finished texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from specdec_kernels.trees import DraftTree


@dataclass(frozen=True)
class VerifiedTree:
    """The tree of one request in one round, and its verdict.

    Attributes
    ----------
    shape : DraftTree
        The tree's shape.
    tokens : list of int
        Token id by node, with the last committed token at the root; -1 for an absent node.
    path : list of int
        Accepted nodes, from the root's 0 on.
    """

    shape: DraftTree
    tokens: list[int]
    path: list[int]

    @property
    def drafted(self) -> int:
        """Draft tokens in the tree."""
        return sum(token >= 0 for token in self.tokens[1:])

    def offers(self) -> list[tuple[int, int | None]]:
        """For every node of the path: how many children it offered, and the index of the accepted one, or None."""
        offered = [[child for child in self.shape.children[node] if self.tokens[child] >= 0] for node in self.path]
        return [
            (len(children), None if following is None else children.index(following))
            for children, following in zip(offered, [*self.path[1:], None], strict=True)
        ]

    @property
    def tested(self) -> int:
        """Draft tokens that the verifier tested: the children of accepted nodes, up to the accepted one."""
        return sum(count if taken is None else taken + 1 for count, taken in self.offers())


class TokenLogprobs(NamedTuple):
    """A token's probability by the target's law that it was drawn from: at its temperature, after its filters.

    Attributes
    ----------
    logprob : float
        Its log-probability in nats; 0 at temperature 0.
    rank : int
        How many tokens of the filters' support are at least as probable; 1 is the most probable.
    top_tokens : list of int
        The most probable tokens, in order; fewer than requested where filters keep fewer.
    top_logprobs : list of float
        Their log-probabilities.
    """

    logprob: float
    rank: int
    top_tokens: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True)
class Round:
    """The result of one verification for one request.

    Attributes
    ----------
    request : int
        Index of the prompt.
    tokens : list of int
        Emitted token ids; `accepted` drafts and one more, unless the text ended among them.
    pieces : list of (str, str)
        Their text, as ("accepted" | "replaced" | "bonus", string) in order.
    drafted, accepted : int
        Draft tokens offered to the target, and accepted by it.
    finish : str or None
        None, or the reason of the text's end: "length", "eos" or "stop".
    seconds : dict of str to float
        Seconds of the round, whole batch: "draft", "target", "verify", and "logprobs" if requested.
    status : int
        Status bits (see `verify_chain`).
    tree : VerifiedTree or None
        The tree that was drafted, None with chains.
    logprobs : list of TokenLogprobs or None
        One for each of `tokens`, if requested.
    chain : list of int or None
        The chain that was drafted, `drafted` tokens, None with trees.
    read : list of int
        Tokens of each text, padding included, in each forward pass of the target; several passes where it has recurrent
        layers and too many accepted tokens were pending.
    """

    request: int
    tokens: list[int]
    pieces: list[tuple[str, str]]
    drafted: int
    accepted: int
    finish: str | None
    seconds: dict[str, float]
    status: int = 0
    tree: VerifiedTree | None = None
    logprobs: list[TokenLogprobs] | None = None
    chain: list[int] | None = None
    read: list[int] = field(default_factory=lambda: [0])

    @property
    def tested(self) -> int:
        """Draft tokens that the verifier tested: those up to the first rejection."""
        return min(self.accepted + 1, self.drafted) if self.tree is None else self.tree.tested


@dataclass
class Generation:
    """A text in its rounds, finished or not. Seconds are those of the batch it was generated in."""

    prompt: list[int]
    """The tokens of the prompt."""
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """All tokens that were written."""
        return [token for entry in self.rounds for token in entry.tokens]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """The log-probabilities of the tokens; empty if not requested."""
        return [score for entry in self.rounds for score in entry.logprobs or ()]

    @property
    def text(self) -> str:
        """The written text, up to a stop string; empty without a tokenizer."""
        return "".join(piece for entry in self.rounds for _, piece in entry.pieces)

    @property
    def finish(self) -> str | None:
        """The reason of the text's end: "length", "eos" or "stop"; None if it has not ended."""
        return self.rounds[-1].finish if self.rounds else None

    @property
    def target_calls(self) -> int:
        """Forward passes of the target: one a round, and those that settled pending tokens (`Round.read`)."""
        return sum(len(entry.read) for entry in self.rounds)

    @property
    def drafted(self) -> int:
        """Draft tokens offered to the target."""
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        """Draft tokens that the target accepted."""
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
        """Tokens written for each forward pass of the target."""
        return len(self.tokens) / self.target_calls if self.rounds else 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all rounds by part: "draft", "target", "verify", and "logprobs" if requested."""
        parts = self.rounds[0].seconds if self.rounds else ("draft", "target", "verify")
        return {part: sum(entry.seconds[part] for entry in self.rounds) for part in parts}

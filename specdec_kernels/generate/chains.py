"""Rounds with chains of draft tokens: draft, read, verify, roll back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from specdec_kernels.generate.arguments import FROM_LAWS
from specdec_kernels.generate.control import Learner, Times, line
from specdec_kernels.generate.edits import Record, before
from specdec_kernels.generate.noise import Noise, Sampling, keywords, marked
from specdec_kernels.generate.parallel import verify
from specdec_kernels.generate.policies import FixedLength
from specdec_kernels.generate.protocols import Drafts, Emitted, Law, Outcome
from specdec_kernels.generate.results import Round
from specdec_kernels.generate.rounds import PENDING, Rounds, Stopwatch


class Passes:
    """Seconds of the target's forwards by the tokens they read, and the number of tokens that may therefore be pending.

    Pending tokens are read in every round until another forward settles them. With e tokens more a round, settled
    every n rounds, and ``base + slope * tokens`` seconds a forward, a round pays base / n + slope * e * n / 2 for that:
    least at n = sqrt(2 base / (slope e)), when n e tokens are pending.

    Examples
    --------
    >>> passes = Passes()
    >>> for tokens in 3 * [5, 9, 17]: passes.add([tokens], 1 + 0.02 * tokens, emitted=2.0)
    >>> passes.pending()  # sqrt(2 * 2 / 0.02)
    14
    """

    MOST = 64

    def __init__(self) -> None:
        self.times, self.rounds, self.emitted = Times(), 0, 0.0

    def add(self, read: list[int], seconds: float, emitted: float) -> None:
        """Count a round: the tokens of each forward, the seconds of all, and the tokens that a text got."""
        self.rounds, self.emitted = self.rounds + 1, self.emitted + emitted
        if len(read) == 1:
            self.times.add(read[0], seconds)

    def settle_at_once(self, batch: int) -> bool:
        """Whether a forward that settles the texts of a batch costs less than a round without drafts for each does.

        With a accepted drafts a round, the forward costs the 1 + a tokens that it does not emit, the rounds a tokens
        each: less for one text, whatever a is.
        """
        return (batch - 1) * (self.emitted - self.rounds) > self.rounds

    def pending(self) -> int | None:
        """The most tokens that are to be pending; None until two lengths have measured times."""
        measured = self.times.measured()
        if len(measured[0]) < 2:
            return None
        base, slope = line(*measured)
        return round(max(1.0, min(self.MOST, (2 * base / max(slope, 1e-12) * self.emitted / self.rounds) ** 0.5)))


class ChainRounds(Rounds):
    """Plays rounds with a chain of drafts per text, whose length is `policy`'s."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.passes = Passes()

    def room(self, limit: int) -> int:
        return min(self.policy.max_k, limit)

    def play(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None, watch: Stopwatch,
    ) -> Outcome:  # fmt: skip
        learned = self.passes.pending() if isinstance(self.policy, Learner) else None
        most = self.max_pending or learned or PENDING
        if not self.may_settle(len(self.reader.settling(length, most))):
            limit = [0] * len(length)
        proposed, draft_prob = self.draft(text, length, limit, noise, sampling, record)
        drafts = proposed.tokens
        watch.lap("draft")
        slots, first = drafts.shape[1], len(self.reader.passes)
        self.reader.settle(text, length, most if slots else max(length))
        logits = self.reader.read(text, [end + slots for end in length], rows=slots + 1)
        watch.lap("target")
        law = keywords(noise, sampling, marked(noise, text, drafts))
        tokens, accepted, status = self.verify(proposed, logits, draft_prob, law, sampling, record)
        chains, written = [[token for token in row if token >= 0] for row in drafts.tolist()], tokens.tolist()
        drafted = [len(chain) for chain in chains]
        watch.lap("verify")
        # The last emitted token is not in the cache yet: the target has not read it.
        self.committed = [end + count for end, count in zip(length, accepted, strict=True)]
        self.length, self.seen, self.tokens, self.record = length, (proposed, logits, sampling), tokens, record
        pairs = list(zip(accepted, drafted, strict=True))
        emitted = [row[: count + 1] for row, count in zip(written, accepted, strict=True)]
        read = self.reader.passes[first:]
        self.passes.add(read, watch.seconds["target"], 1 + sum(accepted) / len(accepted))
        self.spare = [spare + 1 + count - len(read) for spare, count in zip(self.spare, accepted, strict=True)]
        ends = [a == d for a, d in pairs]
        return Outcome(emitted, drafted, accepted, ends, status, [None] * len(length), chains, read)

    def start(self, batch: int, capacity: int) -> None:
        super().start(batch, capacity)
        self.spare = [0] * batch  # tokens of each text beyond the target's passes

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        self.spare = [self.spare[row] for row in rows]

    def may_settle(self, passes: int) -> bool:
        """Whether so many separate forwards may settle what is pending; else a round without drafts does it.

        Accepted drafts pay for them, so that no text has more than one pass beyond those of plain sampling.
        """
        return not passes or (passes <= min(self.spare) + 1 and self.passes.settle_at_once(len(self.spare)))

    def laws_of(self, row: int) -> Iterator[Law]:
        proposed, logits, _ = self.seen
        for slot, law in enumerate(logits[row]):
            yield Law(self.target, self.length[row] + slot, law)
        for slot, law in enumerate([] if proposed.logits is None else proposed.logits[row]):
            yield Law(self.drafter.language_model, self.length[row] + slot, law)

    def emitted(self) -> Emitted:
        return Emitted(self.tokens, self.seen[1])

    def settle(self, rounds: Sequence[Round]) -> None:
        proposed, logits, sampling = self.seen
        if type(self.policy).look is not FixedLength.look:  # that one does nothing, so no rows are edited for it
            drafts, wide = proposed.tokens, proposed.wide(self.target.config.vocab_size)
            self.policy.look(drafts, self.edited(drafts, logits, self.record), wide, sampling)
        self.policy.observe(rounds)
        self.reader.roll_back(self.committed)
        if self.drafter is not None:
            self.drafter.roll_back(self.committed)

    def edited(self, drafts: torch.Tensor, logits: torch.Tensor, record: Record | None) -> torch.Tensor:
        """The target's logits with the edits that the verification applied."""
        return logits if record is None else record.edited(logits, before(pad(drafts, (0, 1), value=-1)))

    def draft(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None,
    ) -> tuple[Drafts, float | torch.Tensor]:  # fmt: skip
        """Draft tokens [B, K], padded with -1, with logits where the verifier needs them, and draft_prob.

        K is at least one more than a request drafts where its next slot was skipped at random: the verifier needs the
        draft's law there.
        """
        plan = self.policy.plan(noise, limit)
        if self.drafter is None:
            return Drafts(torch.empty(len(length), 0, dtype=torch.int64, device=text.device), None), 1.0
        slots, draft_prob = list(plan.lengths), plan.draft_prob
        if isinstance(draft_prob, torch.Tensor):
            for row, (count, most) in enumerate(zip(plan.lengths, limit, strict=True)):
                slots[row] += count < min(most, self.policy.max_k) and bool(draft_prob[row, count] < 1)
            # Beyond its slots a request's drafts have ended with certainty.
            begin = torch.tensor(slots, device=text.device, dtype=torch.int64)[:, None]
            ended = torch.arange(max(slots), device=text.device, dtype=torch.int64) >= begin
            draft_prob = draft_prob[:, : max(slots)].masked_fill(ended, 1.0) if max(slots) else 1.0
        drafts = self.drafter.propose(text, length, plan.lengths, max(slots), noise, sampling, record)
        return drafts if self.method in FROM_LAWS else drafts._replace(logits=None), draft_prob

    def verify(
        self, drafts: Drafts, logits: torch.Tensor, draft_prob: float | torch.Tensor, law: dict[str, Any],
        sampling: Sampling, record: Record | None,
    ) -> tuple[torch.Tensor, list[int], list[int]]:  # fmt: skip
        """Emitted tokens [B, K + 1], number accepted and status as lists."""
        method = "race" if self.method == "plain" else self.method  # a race without drafts
        verdict = verify(
            "verify_chain", self.target, drafts.tokens, logits, drafts.laws(sampling), method=method,
            draft_prob=draft_prob, edits=None if record is None else record.of_requests(), **law,
        )  # fmt: skip
        return verdict.tokens, verdict.num_accepted.tolist(), verdict.status.tolist()

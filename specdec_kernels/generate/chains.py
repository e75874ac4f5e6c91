"""Rounds with chains of draft tokens: draft, read, verify, roll back."""

from __future__ import annotations

from typing import NamedTuple

import torch

import specdec_kernels as specdec


class Outcome(NamedTuple):
    """What a round gave every text: lists over the batch.

    tokens : emitted, one more than accepted
    drafted, accepted : number of draft tokens
    complete : whether the text had no further draft, so that its last token is a bonus and not a replacement
    status : the verifier's
    trees : `DraftedTree`s, or None with chains
    """

    tokens: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    complete: list[bool]
    status: list[int]
    trees: list


class ChainRounds:
    """Plays rounds with a chain of drafts per text, as long as `policy` says."""

    def __init__(self, target, drafter, method, policy):
        self.target, self.drafter, self.method, self.policy = target, drafter, method, policy
        self.room = policy.max_k

    def start(self, batch: int, capacity: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens, drafts included."""
        self.reader = self.target.reader(batch, capacity)
        if self.drafter is not None:
            self.drafter.start(batch, capacity, self.target.config.vocab_size)

    @property
    def memories(self) -> list:
        return [self.reader] if self.drafter is None else [self.reader, self.drafter]

    def play(self, text: torch.Tensor, length: list[int], limit: list[int], clock, watch) -> Outcome:
        """A round of texts of length[b] tokens that can use at most limit[b] drafts."""
        drafts, laws, draft_prob = self.draft(text, length, limit, clock)
        watch.lap("draft")
        slots = drafts.shape[1]
        logits = self.reader.read(text, [end + slots for end in length], rows=slots + 1)
        watch.lap("target")
        tokens, accepted, status = self.verify(drafts, logits, laws, draft_prob, clock)
        drafted, tokens = (drafts >= 0).sum(1).tolist(), tokens.tolist()
        watch.lap("verify")
        # The last token emitted is not cached yet: the target has not read it.
        self.committed = [end + count for end, count in zip(length, accepted, strict=True)]
        self.seen = drafts, logits, laws, clock.temperature
        pairs = list(zip(accepted, drafted, strict=True))
        emitted = [row[: count + 1] for row, count in zip(tokens, accepted, strict=True)]
        return Outcome(emitted, drafted, accepted, [a == d for a, d in pairs], status, [None] * len(length))

    def settle(self, rounds) -> None:
        """Learn from a round that has ended, and forget the rejected drafts."""
        self.policy.look(*self.seen)
        self.policy.observe(rounds)
        for memory in self.memories:
            memory.roll_back(self.committed)

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        for memory in self.memories:
            memory.keep(rows)

    def draft(self, text, length, limit, clock):
        """Draft tokens [B, K] with -1 where there are none, the draft's logits [B, K, V] or None, and draft_prob.

        K is at least one more than a request drafts where its next slot might have been drafted and was not:
        the verifier needs the draft's law there.
        """
        plan = self.policy.plan(clock.seed, clock.position, limit)
        if self.drafter is None:
            return torch.empty(len(length), 0, dtype=torch.int64, device=text.device), None, 1.0
        slots, draft_prob = list(plan.count), plan.draft_prob
        if self.policy.randomised:
            for row, (count, most) in enumerate(zip(plan.count, limit, strict=True)):
                slots[row] += count < min(most, self.policy.max_k) and bool(draft_prob[row, count] < 1)
            # Beyond its slots a request's drafts have ended for certain.
            ended = torch.arange(max(slots), device=text.device) >= torch.tensor(slots, device=text.device)[:, None]
            draft_prob = draft_prob[:, : max(slots)].masked_fill(ended, 1.0) if max(slots) else 1.0
        drafts, laws = self.drafter.propose(text, length, plan.count, max(slots), clock)
        return drafts, laws if self.method == "rejection" else None, draft_prob

    def verify(self, drafts, logits, laws, draft_prob, clock):
        """Emitted tokens [B, K + 1], number accepted and status as lists."""
        noise = dict(seed=clock.seed, position=clock.position, temperature=clock.temperature)
        if self.method == "plain":
            return specdec.race_sample(logits[:, 0], **noise)[:, None], [0] * len(drafts), [0] * len(drafts)
        verdict = specdec.verify_chain(drafts, logits, laws, method=self.method, draft_prob=draft_prob, **noise)
        return verdict.tokens, verdict.num_accepted.tolist(), verdict.status.tolist()

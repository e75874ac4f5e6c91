"""Requests that come, end, swap places, are preempted and come back, in an engine with few places, by chance.

Whatever was in a request's place before, whoever stands beside it: its text is the one that it writes alone.
"""

import random
from collections import Counter
from typing import NamedTuple

from specdec_kernels import race_sample

PLACES = 3


class Wish(NamedTuple):
    """What a request asks for. ``length``: tokens to write; ``more``: what only some engines have."""

    prompt: list
    seed: int
    length: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    more: dict = {}  # noqa: RUF012  nobody writes to it


# Neighbours differ in all: what one has on, the next one has off.
NUMBERS = (
    {},
    {"top_k": 3, "temperature": 0.7},
    {"frequency": 0.9, "presence": 0.3},
    {"temperature": 0.0},
    {"top_p": 0.6, "repetition": 1.6},
    {"temperature": 1.6, "min_p": 0.1},
    {"temperature": 0.0, "frequency": 0.8},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.05, "presence": 0.8},
)


def wishes(count, vocabulary, numbers=NUMBERS, more=({},)):
    """So many, by number. No two have the same seed, and some of the seeds are close."""
    return [
        Wish(
            [(3 * i + j) % vocabulary for j in range(1 + i % 3)], 1000 + i if i % 2 else -(2**40) * i, 5 + i * 5 % 11,
            **numbers[i % len(numbers)], more=more[i % len(more)],
        )
        for i in range(count)
    ]  # fmt: skip


class Engine:
    """What the machine asks of an engine; ``most`` is how many drafts it may be told to verify."""

    most = 0
    orders = True  # whether a step may be of some of its requests, in any order

    def admit(self, name, wish, said):
        """Begin a request, or begin it again with what it has said."""
        raise NotImplementedError

    def step(self, names, counts):
        """{name: tokens} that became known, of a step with these numbers of drafts, or fewer: it says so in the list.

        Of a name that is not among the first, nothing happened to the request.
        """
        raise NotImplementedError

    def drop(self, name):
        """A request has ended, or is preempted."""
        raise NotImplementedError


def played(engine, asked, seed):
    """Texts by number, what happened to each, and how many drafts were offered and accepted.

    What happens is ("admit", tokens said), ("step", drafts) or ("drop",).
    """
    rng, waiting, running = random.Random(seed), list(range(len(asked))), []
    texts, told, drafts = [[] for _ in asked], [[] for _ in asked], Counter()
    while waiting or running:
        new = []
        while waiting and len(running) < PLACES and (not running or rng.random() < 0.6):
            name = waiting.pop(0)
            engine.admit(name, asked[name], list(texts[name]))
            told[name].append(("admit", len(texts[name])))
            running.insert(rng.randrange(len(running) + 1), name)
            new.append(name)
        if engine.orders and rng.random() < 0.5:
            rng.shuffle(running)
        batch = [name for name in running if rng.random() < 0.8] if engine.orders else list(running)
        batch = batch or running[:1]
        plain = rng.random() < 0.2
        counts = [0 if name in new or plain else rng.randrange(engine.most + 1) for name in batch]
        found = engine.step(batch, counts)
        for name, tokens in found.items():
            texts[name] += tokens
        drafts.update(offered=sum(counts), accepted=sum(len(tokens) - 1 for tokens in found.values()))
        for name, count in zip(batch, counts, strict=True):
            if name in found:
                told[name].append(("step", count))
        for name in [name for name in running if len(texts[name]) >= asked[name].length]:
            engine.drop(name)
            running.remove(name)
            told[name].append(("drop",))
        if running and waiting and rng.random() < 0.2:
            name = running.pop(rng.randrange(len(running)))
            engine.drop(name)
            told[name].append(("drop",))
            waiting.insert(rng.randrange(len(waiting) + 1), name)
    return [text[: wish.length] for text, wish in zip(texts, asked, strict=True)], told, drafts


def alone(engine, wish, told):
    """The text of a request to which the same happens, with nobody beside it."""
    text = []
    for what, *number in told:
        if what == "admit":
            engine.admit(0, wish, text[: number[0]])
            del text[number[0] :]
        elif what == "step":
            text += engine.step([0], number).get(0, [])
        else:
            engine.drop(0)
    return text[: wish.length]


def by_hand(wish, row_after, sampling, nonce=0, edit=None):
    """The text that a race writes, token by token; ``edit(row, said)`` is what only some engines do to logits."""
    prompt = len(wish.prompt)
    text, counts = list(wish.prompt), Counter()
    while len(text) < prompt + wish.length:
        row = row_after(text).float().clone()
        for token, value in wish.more.get("bias", {}).items():
            row[token] += value
        for token in {*text}:
            row[token] *= wish.repetition ** (-1 if row[token] > 0 else 1)
        for token, count in counts.items():
            row[token] -= wish.frequency * count + wish.presence
        if edit is not None:
            row = edit(row, text[prompt:])
        text.append(int(race_sample(row, seed=wish.seed, position=len(text), sampling=sampling, nonce=nonce)))
        counts[text[-1]] += 1
    return text[prompt:]


def assert_all_accepted(engine, vocabulary):
    """Drafts of the target itself, of requests with filters that differ, are all accepted."""
    asked = wishes(3, vocabulary, ({}, {"top_k": 3, "temperature": 0.7}, {"temperature": 0.0}))
    for name, wish in enumerate(asked):
        engine.admit(name, wish, [])
    for counts in ([0] * 3, [3] * 3, [1, 3, 2], [3, 0, 1]):
        found = engine.step([*range(3)], list(counts))
        assert [len(found[name]) for name in range(3)] == [count + 1 for count in counts]


def check(make, asked, seeds, expected=None, replay=True):
    """Play, once for each of the seeds; the share of drafts that were accepted.

    ``expected``: the text of each whatever happens, None where there is none.
    """
    returned, drafts = 0, Counter()
    for seed in seeds:
        texts, told, counts = played(make(), asked, seed)
        drafts += counts
        returned += sum(what.count(("drop",)) > 1 for what in told)
        for name, (wish, text) in enumerate(zip(asked, texts, strict=True)):
            if replay:
                assert text == alone(make(), wish, told[name]), (seed, name, wish, told[name])
            if expected is not None and expected[name] is not None:
                assert text == expected[name], (seed, name, wish, told[name])
    assert returned > 2  # some came back
    return drafts["accepted"] / max(drafts["offered"], 1)

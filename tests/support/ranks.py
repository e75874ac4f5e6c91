"""Ranks that share a vocabulary, played by threads of one process: one computes at a time."""

import contextvars
import threading

import torch

import specdec_kernels
from specdec_kernels.sharded import VocabShard
from tests.support.cases import chain_call
from tests.support.ops import grouped
from tests.support.trees import depths, tree_call


class Stage:
    """The meeting point of a test's ranks. A rank computes while it holds the baton, and else waits."""

    def __init__(self, ranks):
        self.ranks, self.sent = ranks, 0
        self._baton, self._meeting, self._told = threading.Lock(), threading.Barrier(ranks), [None] * ranks

    def run(self, act):
        """``act(rank)`` of every rank, in order."""
        results, errors = [None] * self.ranks, []

        def play(rank):
            with self._baton:
                try:
                    results[rank] = act(rank)
                except threading.BrokenBarrierError:
                    pass
                except BaseException as error:
                    errors.append(error)
                    self._meeting.abort()

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(play, i)) for i in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def gather(self, rank, mine):
        assert mine.is_contiguous()  # collectives require it
        self._told[rank] = mine
        self._meet()
        every = torch.stack(self._told)
        self._meet()
        self.sent += mine.numel() * mine.element_size()
        return every

    def _meet(self):
        self._baton.release()
        try:
            self._meeting.wait(timeout=60)
        finally:
            self._baton.acquire()


class PlayedShard(VocabShard):
    """The shard of a played rank."""

    def __init__(self, vocab, vocab_start, stage, rank, debug=False):
        super().__init__(vocab, vocab_start, debug=debug)
        self.stage, self.rank, self.ranks = stage, rank, stage.ranks

    def gather(self, mine):
        return self.stage.gather(self.rank, mine)


ROWS = ("target", "draft", "rows")  # arguments that have columns


def on_ranks(op, begins, call, debug=False):
    """The results of a sharded op on every rank: rank i has the columns from ``begins[i]`` on."""
    rows = next(call[name] for name in ROWS if call.get(name) is not None)
    ends = [*begins[1:], rows.shape[-1]]
    stage = Stage(len(begins))

    def act(rank):
        own = slice(begins[rank], ends[rank])
        mine = {name: x[..., own] if name in ROWS and x is not None else x for name, x in call.items()}
        shard = PlayedShard(rows.shape[-1], begins[rank], stage, rank, debug)
        return op(**grouped(mine), shard=shard)

    return stage.run(act)


def chain_call_with_hits(vocabulary, requests=16, slots=3, seed=5, **how):
    """A chain_call in which the drafts are accepted more often: half of them are the target's winners."""
    call = chain_call(seed, requests, slots, vocabulary, **how)
    return _with_hits(call, slice(0, slots), torch.arange(slots))


def tree_call_with_hits(vocabulary, requests, nodes, seed=3, **how):
    """A tree_call in which drafts are accepted more often: the winner of each node is the token of some child."""
    call = tree_call(seed, requests, nodes, vocabulary, **how)
    parents = call["parents"]
    depth = torch.tensor([depths(row) for row in parents.tolist()]).gather(1, parents.clamp(min=0))
    return _with_hits(call, parents.clamp(min=0), depth)


def _with_hits(call, rows, step):
    drafts = call["draft_tokens"]
    every = torch.arange(len(drafts))[:, None]
    target = call["target"][every, rows] if isinstance(rows, torch.Tensor) else call["target"][:, rows]
    winners = specdec_kernels.race_sample(
        target, seed=call["seed"][:, None], position=call["position"][:, None] + step, space=call["space"],
        temperature=call["temperature"][:, None],
    )  # fmt: skip
    hits = torch.rand(drafts.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    call["draft_tokens"] = torch.where(hits & (drafts >= 0), winners, drafts)
    return call

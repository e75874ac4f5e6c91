"""The slice of the vocabulary that a rank has, and the one way by which ranks communicate."""

import contextlib
import functools
import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist

from specdec_kernels._constants import MASS_TILE, PART_UNIT
from specdec_kernels.calls import inputs

# Newer versions of torch have it under the first name, and warn of the second.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class VocabShard:
    """The slice of the vocabulary that this rank's LM head gives: tokens from ``vocab_start`` on.

    Slices may be of different sizes, of no token, too. Together they are the vocabulary, in any order of the ranks.

    Parameters
    ----------
    vocab : int
        Tokens of the whole vocabulary.
    vocab_start : int
        The first token of this rank's slice: a multiple of 128, so that a group of the race has one owner.
        ``method="rejection"``, ``"block"`` and ``"traversal"`` need a multiple of 1,024, for the same reason: their
        masses are summed in tiles of so many tokens. The slice of a rank without tokens, whose rows are [..., 0], may
        begin anywhere, behind the vocabulary, too; the first call moves it there.
    group : ProcessGroup, optional
        The ranks that share the vocabulary. Default: the default group of ``torch.distributed``.
    debug : bool
        Before every op compare how the ranks were called. If ranks disagree, all raise a ValueError that names
        one. It costs a collective of 64 bytes a rank, and waits for the device.

    Raises
    ------
    ValueError
        If ``vocab_start`` is inside of the vocabulary and not a multiple of 128.

    Notes
    -----
    ``gather`` is the only communication. An engine with another communicator overrides it in a subclass. Then
    ``gather_later`` calls that, and has its result when it returns.
    A rank that is lost, or does not call, ends the others' wait by the timeout of the group
    (``init_process_group(timeout=...)``, 30 minutes unless it is given).

    Examples
    --------
    >>> from specdec_kernels.sharded import VocabShard
    >>> VocabShard(128_256, 64_512).vocab_start
    64512
    """

    def __init__(self, vocab: int, vocab_start: int, group=None, *, debug: bool = False) -> None:
        self.vocab, self.group, self.debug = inputs.whole("vocab", vocab, "an int of 1 or more", 1), group, debug
        units = f"a multiple of {PART_UNIT} inside [0, {self.vocab}), and of {MASS_TILE:,} for rejection; or more"
        self.vocab_start = inputs.whole("vocab_start", vocab_start, units, 0)
        if self.vocab_start < self.vocab:
            inputs.whole("vocab_start", vocab_start, units, 0, step=PART_UNIT)
        self._checked, self.slices, self.is_empty = None, None, False

    @classmethod
    def even(cls, vocab: int, group=None, *, debug: bool = False) -> "VocabShard":
        """This rank's slice if slices differ by at most one tile of 1,024 tokens; of 128 in a small vocabulary."""
        return cls(vocab, cls.bounds(vocab, dist.get_world_size(group))[dist.get_rank(group)], group, debug=debug)

    @staticmethod
    def bounds(vocab: int, ranks: int) -> list[int]:
        """The first tokens of even slices for so many ranks, and at last ``vocab``."""
        unit = MASS_TILE if vocab > MASS_TILE * (ranks - 1) else PART_UNIT
        units = -(-vocab // unit)
        if units < ranks:
            raise ValueError(f"vocab: expected {PART_UNIT} tokens for each rank but the last; got {vocab} for {ranks}")
        return [*(unit * (units * rank // ranks) for rank in range(ranks)), vocab]

    @functools.cached_property
    def ranks(self) -> int:
        """The number of ranks that share the vocabulary."""
        return dist.get_world_size(self.group)

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, [ranks, ...]: each contiguous, all of one shape."""
        return self._sent(mine)()

    def gather_later(self, mine: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that waits for the result of ``gather``, so that the caller can work until then."""
        if type(self).gather is VocabShard.gather:
            return self._sent(mine)
        every = self.gather(mine)
        return lambda: every

    def _sent(self, mine):
        if self.ranks == 1 or mine.numel() == 0:
            every = mine.unsqueeze(0).expand(self.ranks, *mine.shape)
            return lambda: every
        every = mine.new_empty((self.ranks, *mine.shape))
        with self._losses_named():
            work = all_gather(every.flatten(0, 1), mine, group=self.group, async_op=True)

        def received():
            with self._losses_named():
                work.wait()
            return every

        return received

    @contextlib.contextmanager
    def _losses_named(self):
        try:
            yield
        except RuntimeError as error:  # the exact class depends on the backend
            reason = str(error).strip().split("\n")[0]
            raise ConnectionError(
                f"rank {dist.get_rank(self.group)} of {self.ranks} that share a vocabulary has lost another one, or "
                f"has waited for it past the timeout of the group ({reason})"
            ) from error

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, op, rows, empty=False):
        """Check the slice of ``rows`` at the first call; with ``debug``, at each call, whether all ranks agree.

        ``empty``: this rank has no tokens, and rows of ``with_a_column``.
        """
        size = 0 if empty else rows.shape[-1]
        if self._checked != size:
            self._check_slices(rows, size)
            self._checked, self.is_empty = size, empty
            if empty:
                self.vocab_start = -(-self.vocab // MASS_TILE) * MASS_TILE
        if self.debug:
            self._check_alike(op, rows)

    def check_tiles(self, op):
        """Raise unless every rank's slice begins with a tile; ranks exchange their starts at the first call."""
        for first in [self.vocab_start] if self.slices is None else self.slices:
            if first % MASS_TILE:
                raise ValueError(
                    f"shard: expected slices that begin with multiples of {MASS_TILE:,} for {op}, which sums tiles of "
                    f"so many tokens; got vocab_start {first}"
                )

    def _check_slices(self, rows, size):
        mine = torch.tensor([self.vocab_start, size, self.vocab], device=rows.device, dtype=torch.int64)
        slices = sorted((first, first + size) for first, size, _ in self.gather(mine).tolist() if size)
        at = 0
        for first, end in [*slices, (self.vocab, self.vocab)]:
            if first != at:
                raise ValueError(
                    f"shard: expected slices that are the vocabulary together, [0, {self.vocab}); got {slices}, where "
                    f"one should begin with token {at}"
                )
            at = end
        self.slices = [first for first, _ in slices]
        self.most_tiles = max(-(-(end - first) // MASS_TILE) for first, end in slices)

    def _check_alike(self, op, rows):
        shape = (*rows.shape[:-1], *(-1,) * 5)[:5]
        mine = [hash_of(op), *shape, self.vocab, hash_of(str(rows.dtype))]
        reported = self.gather(torch.tensor(mine, device=rows.device, dtype=torch.int64)).tolist()
        for rank, other in enumerate(reported):
            if other != reported[0]:
                raise ValueError(
                    f"{op}: expected all ranks to be called alike; got rows {_shown(other)} on rank {rank} and "
                    f"{_shown(reported[0])} on rank 0 (op, dimensions, vocabulary and dtype are compared)"
                )


def with_a_column(rows, space="logits"):
    """(rows, whether this rank has no tokens): rows without tokens get a column without weight, which no race picks.

    That token lies behind the vocabulary, so it equals no draft, and no other rank has it.
    """
    if not isinstance(rows, torch.Tensor) or rows.ndim == 0 or rows.shape[-1] > 0:
        return rows, False
    return rows.new_full((*rows.shape[:-1], 1), 0.0 if space == "probs" else -torch.inf), True


def hash_of(word):
    """A number for a word, the same on every rank."""
    return zlib.crc32(word.encode())


def _shown(reported):
    return [size for size in reported[1:6] if size != -1]

"""How a verdict is written where an engine wants it otherwise: ``Form``, and its checks."""

from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._types import Count

EMITTED, ADDED, ZEROS = 1, 2, 4  # as in csrc/include/specdec.h


class Form(NamedTuple):
    """How ``verify_chain`` and ``verify_tree`` write what ``out`` has, for engines that want it so from one launch.

    With an ``index`` the tokens of all requests lie in one row, ``out.tokens`` [any]: the token after node i of request
    b is written to ``out.tokens[index[b, i]]``, and the path is of these places in the place of nodes. Of chains node 0
    is the last committed token, and node i draft i - 1. Each node has a place of its own. One outside of the row is not
    written: the path has -1 there, and the status 8.

    Attributes
    ----------
    index : Tensor, optional
        int32 or int64, [B, K+1] for chains, [B, N] for trees.
    path : Tensor, optional
        int32 [B, K+1]: of chains, the path is written here. Needed with ``index``. Trees have it in ``out``.
    num_passed : Tensor, optional
        int32 [B]: of chains, how many drafts pass their own test is written here: those that were accepted, and those
        behind the rejected one, up to the first -1, that their own coins would accept. With rejection alone, of
        probabilities of one vocabulary.
    zeros : bool
        Whether tokens have 0 after the last, not -1, so that each can be looked up in a table: for padded batches,
        where idle requests have no token at all. The path has -1 all the same. With an ``index`` the places of all
        nodes that are not on the path get 0, those of idle requests among them.
    count : str
        What ``out.num_accepted`` counts: "accepted" drafts, or "emitted" tokens, one more.
    add : bool
        Whether that, and ``num_passed``, is added to what is there. Idle requests add nothing.
    bonus : Tensor, optional
        int32 or int64 [B]: of chains, the token after a request's last draft is given. It is written where all drafts
        are accepted. The target has no row for it then: it is [B, K, V], or packed [D, V] with request b's rows from
        ``cu_drafts[b]`` on. A chain that ends early, at a -1, has a row there and draws from it; so does one that
        ``max_drafts`` cuts off. A token out of the vocabulary gives token 0 and the status 8. Without ``cu_rows`` and
        ``InputPositions``.
    """

    index: torch.Tensor | None = None
    path: torch.Tensor | None = None
    num_passed: torch.Tensor | None = None
    zeros: bool = False
    count: Count = "accepted"
    add: bool = False
    bonus: torch.Tensor | None = None


PLAIN = Form()


def checked(form, out, shape):
    """(form, the bits of its choices, the shape of tokens) for paths of this ``shape``."""
    if form is None:
        return PLAIN, 0, shape
    if not isinstance(form, Form):
        raise TypeError(f"form: expected a Form; got {inputs.shown(form)}")
    inputs.check_choice("form.count", form.count, ("accepted", "emitted"))
    zeros, add = (inputs.flag(f"form.{name}", getattr(form, name)) for name in ("zeros", "add"))
    given = (None,) * 3 if out is None else out
    if add and given[-2] is None:
        raise ValueError("out.num_accepted: expected a counter with form.add=True; got None")
    bits = EMITTED * (form.count == "emitted") | ADDED * add | ZEROS * zeros
    if form.index is None:
        return form, bits, shape
    if not isinstance(given[0], torch.Tensor) or given[0].ndim != 1:
        raise ValueError(f"out.tokens: expected one dimension with form.index; got {inputs.shown(given[0])}")
    return form, bits, given[0].shape


def check_index(form, shape, device):
    """The index of these requests and nodes."""
    if form.index is not None:
        inputs.check_tensor("form.index", form.index, inputs.TOKEN_DTYPES, 2)
        inputs.check_shape("form.index", form.index, shape)
        inputs.check_device("form.index", form.index, device)


def check_bonus(bonus, batch, device, by_rows, by_input):
    """A token of each request, in a call without what has one item for each row."""
    inputs.check_tensor("form.bonus", bonus, inputs.TOKEN_DTYPES, 1)
    inputs.check_shape("form.bonus", bonus, (batch,))
    inputs.check_device("form.bonus", bonus, device)
    if by_rows:
        raise ValueError("packing.cu_rows: expected None with form.bonus; got a tensor")
    if by_input:
        raise ValueError("position: expected an int or an int64 tensor with form.bonus; got InputPositions")


def is_empty(form):
    """Whether there is an index, of no requests. It has no address, so native code would take it for none."""
    return form.index is not None and form.index.numel() == 0


def check_tree(form):
    """Trees have these elsewhere, or not at all."""
    for name in ("path", "num_passed", "bonus"):
        if getattr(form, name) is not None:
            raise ValueError(f"form.{name}: expected None for trees; got {inputs.shown(getattr(form, name))}")

"""first_arrivals: the winners of rows, from what their parts found."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op

FIRST_ARRIVALS = Op(
    "first_arrivals",
    result=tuple,
    packed=kinds.ints("P*3:c"),
    tokens=kinds.Output(torch.int64, "tokens", "*"),
    status=kinds.Output(torch.int32, "status", "*"),
    empty=kinds.Output(torch.int32, "empty", "*"),
)


def first_arrivals(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the candidates that the parts of each row found, the one that arrives first: the best score wins, and of
    equal ones the lower token.

    Parameters
    ----------
    packed : Tensor
        int32 [parts, ..., 3], contiguous: of each part and row a token, the bits of its float32 score, and the status.
        A score of -inf is of no candidate; one of +inf is of a request that is not live.

    Returns
    -------
    tuple of Tensor
        Tokens, int64 [...]: 0 where no part has a candidate. Status, int32 [...]: the bits of all parts, and 1 there.
        And int32 [...]: 1 there, else 0.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import first_arrivals
    >>> scores = torch.tensor([[0.5], [2.0]])  # of two parts of one row
    >>> tokens, status = torch.tensor([[7], [1030]], dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    >>> first_arrivals(torch.stack([tokens, scores.view(torch.int32), status], dim=-1))[0].tolist()
    [1030]
    """
    if (found := FIRST_ARRIVALS.direct(False, packed, None, None, None)) is not None:
        return found
    inputs.check_tensor("packed", packed, (torch.int32,), None)
    if packed.ndim < 2 or packed.shape[-1] != 3 or packed.shape[0] == 0 or not packed.is_contiguous():
        raise ValueError(f"packed: expected contiguous int32 [parts, ..., 3]; got {inputs.shown(packed)}")
    tokens, status, empty = FIRST_ARRIVALS.new({"*": packed.shape[1:-1], "device": packed.device})
    FIRST_ARRIVALS(
        packed.view(len(packed), -1), tokens.view(-1), status.view(-1), empty.view(-1),
    )  # fmt: skip
    return tokens, status, empty

"""The types of public arguments, for annotations."""

from collections.abc import Sequence
from typing import Literal

import torch

Number = float | torch.Tensor  # float32
Counter = int | torch.Tensor  # int64 or int32
Space = Literal["logits", "probs"]
ChainMethod = Literal["rejection", "race", "block"]
TreeMethod = Literal["rejection", "race", "traversal", "paths"]
Method = Literal["rejection", "race"]  # of chains and trees, and of rows in parts
Count = Literal["accepted", "emitted"]
Layout = Literal["bool", "additive", "bits"]
BuiltLayout = Literal["full", "nodes", "bits"]
Tensors = torch.Tensor | Sequence["Tensors"]

"""Private names of torch. Where a torch lacks one, the replacement is slower and as correct.

Without the first three every call goes through torch's dispatcher, as under a mode. Without the last one
``torch.export`` does not save programs that return our results.
"""

import operator

import torch
from torch.autograd import forward_ad


def of_torch(name, otherwise):
    """The object with this dotted name in torch; else ``otherwise``."""
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        return otherwise


PRIVATE = {
    "dispatch_modes": ("_C._len_torch_dispatch_stack", lambda: 1),
    "function_modes": ("_C._len_torch_function_stack", lambda: 1),
    "profiles": ("autograd._profiler_enabled", lambda: True),
    "transforms": ("_C._functorch.peek_interpreter_stack", lambda: None),
    "is_wrapped": ("_C._functorch.is_functorch_wrapped_tensor", lambda x: False),
    "is_batched": ("_C._functorch.is_batchedtensor", lambda x: False),
    "unwrapped": ("_C._functorch.get_unwrapped", lambda x: x),
    "is_zeros": ("Tensor._is_zerotensor", lambda x: False),
    "negative_view": ("_neg_view", lambda x: None),
    "is_functional": ("_is_functional_tensor", lambda x: False),
    "save_by_name": ("utils._pytree._register_namedtuple", lambda kind, *, serialized_type_name: None),
}
globals().update({ours: of_torch(*names) for ours, names in PRIVATE.items()})


def forward_mode():
    """Whether tensors may carry tangents; True where torch lacks the name, so that each tensor is checked."""
    return getattr(forward_ad, "_current_level", 0) >= 0

"""How many torch operations a call launches: all that reach torch's dispatcher but views and allocations."""

from torch.utils._python_dispatch import TorchDispatchMode

ALLOCATIONS = ("empty", "empty_like", "new_empty")


class Launches(TorchDispatchMode):
    """The names of what was launched, in order: ours begin with ``specdec::``."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        schema = op._schema
        views = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        if not views and schema.name.removeprefix("aten::") not in ALLOCATIONS:
            self.names.append(schema.name)
        return op(*args, **(kwargs or {}))


def launches(call):
    """Names of a call's launches, once what it keeps from call to call is there."""
    call()
    with Launches() as found:
        call()
    return found.names

"""Host time of a call of the Triton backend, with a driver that launches nothing, so that no GPU is needed.

Eight requests with tensors for all numbers. ``backend`` is the backend's function; ``whole`` is the public function
around it, with its checks.
"""

import pytest
import torch
from harness import OURS, VOCABULARY

import specdec_kernels as sd

pytest.importorskip("triton")
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._block_chain import accept_block_kernel
from specdec_kernels.triton_kernels._race_chain import race_chain_kernel
from specdec_kernels.triton_kernels._sample_chain import sample_chain_kernel
from specdec_kernels.triton_kernels._scan_chain import scan_chain_kernel

from specdec_kernels import backends, triton_kernels
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import Edit, Law, Noise
from specdec_kernels.ops import Verdict
from tests.support.triton_host import forget, mocked

pytestmark = pytest.mark.skipif(_launch.INTERPRETED, reason="the interpreter launches otherwise")
REQUESTS, DRAFTS = 8, 5
TARGET, DRAFT = (
    torch.zeros(REQUESTS, count, VOCABULARY, dtype=torch.bfloat16) for count in (DRAFTS + 1, DRAFTS)
)  # fmt: skip
TOKENS = torch.zeros(REQUESTS, DRAFTS, dtype=torch.int64)
COUNTERS, TEMPERATURE = torch.arange(REQUESTS), torch.ones(REQUESTS)
OUT = Verdict(torch.empty(REQUESTS, DRAFTS + 1, dtype=torch.int64), *torch.empty(2, REQUESTS, dtype=torch.int32))
LAUNCHES = {"race": 1, "rejection": 2}

backends.register("triton-mocked", triton_kernels, ("cpu",))


def by_backend(method):
    law, noise = Law("logits", TEMPERATURE), Noise(COUNTERS, COUNTERS, 0)
    draft = DRAFT if method == "rejection" else None
    nothing = dict.fromkeys(OPS["verify_chain"].arguments)
    call = OPS["verify_chain"].Call(**nothing | OUT._asdict() | {
        "draft_tokens": TOKENS, "target": TARGET, "draft": draft, "tokens_by_row": False, "method": method,
        "target_law": law, "draft_law": law, "edits": Edit(), "draft_prob": 1.0, "epsilon": 0.0, "noise": noise,
        "output_format": 0,
    })  # fmt: skip
    return lambda: triton_kernels.verify_chain(call)


def by_all(method):
    draft = DRAFT if method == "rejection" else None
    numbers = {"seed": COUNTERS, "position": COUNTERS, "temperature": TEMPERATURE}
    return lambda: sd.verify_chain(TOKENS, TARGET, draft, method=method, **numbers, out=OUT)


@pytest.mark.parametrize("part", ["backend", "whole"])
@pytest.mark.parametrize("method", LAUNCHES)
def bench_call(measure, method, part, threads):
    run = by_backend(method) if part == "backend" else by_all(method)
    with mocked() as machine, sd.backend("triton-mocked"):

        def check(_):
            run()
            machine.launched.clear()
            run()
            assert len(machine.launched) == LAUNCHES[method]
            assert all(arguments[7] is None for arguments in machine.launched), "not launched directly"

        measure("host_cost of Triton", OURS, {"method": method, "part": part}, run, [()] * 3, check)
    for kernel in (race_chain_kernel, scan_chain_kernel, accept_block_kernel, sample_chain_kernel):
        forget(kernel)

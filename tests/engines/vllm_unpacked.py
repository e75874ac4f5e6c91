"""vLLM's Triton code, as it stands in its files, on a CPU: in Triton's interpreter, without what it compiles.

The files of `FILES` are run as they are. All else that they import is a stand-in: its names are there and do nothing.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from unittest import mock

import pytest
import torch

from tests.engines.unpacked import FOLDER

FILES = (
    "vllm.v1.outputs",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.sample.ops.topk_topp_triton",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.fly",
    "vllm.v1.worker.gpu.buffer_utils",
    "vllm.v1.worker.gpu.input_batch",
    "vllm.v1.worker.gpu.model_states.interface",
    "vllm.v1.worker.gpu.sample.bad_words",
    "vllm.v1.worker.gpu.sample.gumbel",
    "vllm.v1.worker.gpu.sample.logit_bias",
    "vllm.v1.worker.gpu.sample.logits_processor.interface",
    "vllm.v1.worker.gpu.sample.logprob",
    "vllm.v1.worker.gpu.sample.min_p",
    "vllm.v1.worker.gpu.sample.penalties",
    "vllm.v1.worker.gpu.sample.sampler",
    "vllm.v1.worker.gpu.sample.states",
    "vllm.v1.worker.gpu.sample.thinking_budget",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "vllm.v1.worker.gpu.spec_decode.speculator",
    "vllm.v1.worker.worker_base",
)


class StandIn(types.ModuleType):
    """A module that has every name: a class, of which others may be made."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *given, **named: None})
        setattr(self, name, made)
        return made


class Dispatcher:
    """``triton_kernel_dispatcher_with_warmup``: the function says how its kernel is launched with its own arguments."""

    def __init__(self, function, kernel):
        self.function, self.kernel = function, kernel

    def __call__(self, *given, **more):
        names = self.kernel.arg_names
        grid, launch = self.function(*given, **more)[:2]
        places = {name.lower().removesuffix("_ptr"): name for name in names}
        given = dict(zip(self.function.__code__.co_varnames, given, strict=False)) | more
        launch = {places[name]: x for name, x in given.items() if name in places} | launch
        for name in set(names) - set(launch):  # strides of what is there
            tensor, dimension = name.lower().split("_stride")
            launch[name] = given[tensor].stride(int(dimension.removeprefix("_") or 0))
        launch.pop("num_warps", None)
        self.kernel[grid](**launch)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds all of vLLM: the files of `FILES`, and stand-ins."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "vllm":
            return None
        if name in FILES:
            return importlib.util.spec_from_file_location(name, FOLDER / f"{name.replace('.', '/')}.py")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        names = {
            "vllm.triton_utils": triton_names,
            "vllm.logger": lambda: {"init_logger": lambda name: mock.MagicMock()},
            "vllm.platforms": lambda: {
                "current_platform": mock.MagicMock(
                    **dict.fromkeys(("is_cuda", "is_cuda_alike", "is_xpu"), lambda: False), device_type="cpu"
                ),
            },
            "vllm.utils.math_utils": lambda: {
                "cdiv": lambda a, b: -(-a // b), "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
            },
            "vllm.utils.platform_utils": lambda: {
                "num_compute_units": lambda index: 4, "is_uva_available": lambda: False,
            },
            "vllm.envs": lambda: {"VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": 8, "VLLM_MAX_NUM_BAD_WORDS": 2},
            "vllm.sampling_params": lambda: {"MAX_LOGPROB_TOKEN_IDS": 128},
            "vllm.utils.torch_utils": lambda: {"async_tensor_h2d": torch.tensor},
            "vllm.tracing": lambda: {"instrument": lambda **named: lambda function: function},
            "vllm.utils.gpu_sync_debug": lambda: {"gpu_sync_allowed": mock.MagicMock()},
            "vllm.model_executor.warmup.jit_warmup_triton_helper": lambda: {
                "triton_kernel_dispatcher_with_warmup": lambda kernel, **_: lambda call: Dispatcher(call, kernel),
            },
        }  # fmt: skip
        vars(module).update(names.get(module.__name__, dict)())


def triton_names():
    import triton
    import triton.language as tl

    from tests.engines.triton_cpu import log1p

    return {"HAS_TRITON": True, "triton": triton, "tl": tl, "tldevice": types.SimpleNamespace(log1p=log1p)}


def load(name):
    """One of `FILES`, imported."""
    if not (FOLDER / "vllm").exists():
        pytest.skip("vllm is not unpacked")
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("it is for Triton's interpreter")
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        from tests.engines.triton_cpu import count_in_tensors

        sys.meta_path.insert(0, Finder())
        count_in_tensors()
    return importlib.import_module(name)

"""SGLang's Triton code, as it stands in its files, on a CPU: in Triton's interpreter."""

import importlib.util
import os
import sys
import types
from unittest import mock

import pytest
import torch

from tests.engines.unpacked import FOLDER

KINDS = ("is_cpu", "is_cuda", "is_hip", "is_musa", "is_npu", "is_xpu")


def load(name):
    """A module of ``sglang.kernels.ops.speculative``, for a device of no kind; what else it imports is a stand-in."""
    file = FOLDER / "sglang/kernels/ops/speculative" / f"{name}.py"
    if not file.exists():
        pytest.skip("sglang is not unpacked")
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("it is for Triton's interpreter")
    from tests.support import triton_device  # noqa: F401  makes the interpreter quicker

    utils = types.SimpleNamespace(**dict.fromkeys(KINDS, lambda: False))
    stand_ins = {f"sglang.{part}": mock.MagicMock() for part in ("srt", "srt.platforms", "srt.platforms.interface")}
    spec = importlib.util.spec_from_file_location(f"unpacked_{name}", file)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"sglang": mock.MagicMock(), **stand_ins, "sglang.srt.utils": utils}):
        spec.loader.exec_module(module)
    return module

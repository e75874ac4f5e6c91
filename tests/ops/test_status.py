"""The status bits are the same ones everywhere."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import specdec_kernels
from specdec_kernels import Status, cutoff, logprobs, overlap, race_sample, residual
from specdec_kernels.ops import TreeVerdict, Verdict
from specdec_kernels.status import TEXTS

pytestmark = pytest.mark.one_backend


def test_of_the_header():
    header = Path(specdec_kernels.headers.get_include()) / "specdec" / "c" / "parts.h"
    found = re.findall(r"\bSPECDEC_STATUS_(\w+) = (\d+)", header.read_text())
    assert found == [("OK", "0"), *((status.name, str(status.value)) for status in Status)]


def test_of_the_triton_kernels():
    (folder,) = importlib.util.find_spec("specdec_kernels.triton_kernels").submodule_search_locations
    text = (Path(folder) / "_math.py").read_text()
    found = dict(re.findall(r"(?m)^([A-Z_]+) = tl\.constexpr\((\d+)\)$", text))
    assert {status.name: str(status.value) for status in Status}.items() <= found.items()


def test_are_bits_that_differ():
    assert [status.value for status in Status] == [1 << i for i in range(len(Status))]


def test_each_has_a_text():
    assert set(TEXTS) == set(Status)


def test_a_negative_probability_is_named():
    wrong = torch.tensor([0.6, 0.5, -0.1])
    with pytest.raises(RuntimeError, match=r"residual: row 0: a NaN, \+inf or a negative probability in a row"):
        residual(wrong, torch.tensor([0.2, 0.2, 0.6]), space="probs", check=True)
    for op in (cutoff, logprobs, overlap, race_sample, residual, Verdict, TreeVerdict):
        assert "1 a NaN, +inf or a negative probability in a row" in " ".join(op.__doc__.split())

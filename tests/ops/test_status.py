"""The status bits are the same ones everywhere."""

import importlib.util
import re
from pathlib import Path

import pytest

import specdec_kernels
from specdec_kernels import Status
from specdec_kernels.calls import inputs

pytestmark = pytest.mark.one_backend


def test_of_the_header():
    header = Path(specdec_kernels.headers.get_include()) / "specdec.h"
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
    assert set(inputs.STATUS) == set(Status)

"""The headers alone: an engine in C++ can use them without torch, Python or a library of ours."""

import re
from pathlib import Path

import pytest
import torch

from specdec_kernels import race_sample, verify_chain
from specdec_kernels.headers import get_include
from tests.backends.test_c_api import run
from tests.support.cases import seeds
from tests.support.laws import P, Q

HEADERS = sorted(Path(get_include(), "specdec").glob("*.h"))
C_PARTS = {f"c/{part.name}" for part in Path(get_include(), "specdec", "c").glob("*.h")}
EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_chain.cpp"
COMPILER = ["g++", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-I", get_include()]


def test_the_example_decides_as_the_package_does(tmp_path):
    run(*COMPILER, "-O2", EXAMPLE, "-o", tmp_path / "verify_chain")
    figures = [float(word) for word in run(tmp_path / "verify_chain").split() if word[0].isdigit()]
    count = 200_000
    drafts = race_sample(Q.expand(count, 2, -1), seed=seeds(count)[:, None], position=torch.arange(2), space="probs")
    verdict = verify_chain(
        drafts, P.expand(count, 3, -1), Q.expand(count, 2, -1), space="probs", seed=seeds(count), position=0
    )
    accepted, _, *first = figures
    assert accepted == round(verdict.num_accepted.double().mean().item(), 4)
    assert first == [round(n / count, 4) for n in verdict.tokens[:, 0].bincount(minlength=4).tolist()]


def test_the_page_lists_every_header():
    page = Path(__file__).parents[2] / "docs" / "cpp.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `specdec/")]
    listed = re.findall(r"`specdec/(\w+\.h)`", " ".join(rows))
    assert sorted(listed) == [header.name for header in HEADERS]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
def test_every_header_stands_alone(header):
    run(*COMPILER, "-fsyntax-only", "-x", "c++", "-", text=f'#include "specdec/{header.name}"\nint main() {{}}\n')


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
def test_headers_include_the_standard_library_and_each_other_only(header):
    included = re.findall(r'#include [<"]([^>"]+)[>"]', header.read_text())
    assert {name for name in included if "." in name} <= {"../specdec_sharded.h"} | C_PARTS | {
        other.name for other in HEADERS
    }

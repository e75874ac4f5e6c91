"""specdec.h and libspecdec.so: an engine in C gets the ops without Python, and its mistakes are errors, not crashes.

Python calls the same functions, so all other tests check their results.
"""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

import specdec_kernels
from setup import build_folder
from specdec_kernels import race_sample, verify_chain
from specdec_kernels.calls.op import OPS
from specdec_kernels.headers import get_include, get_library_dir
from tests.backends import c_api_exact, c_api_misuse
from tests.backends.host_cuda import build as host_cuda

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "c_api.c"
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
C = [os.environ.get("CC", "gcc"), "-std=c11", *WARNINGS, "-I", get_include()]
CXX = [os.environ.get("CXX", "g++"), "-I", get_include()]


def run(*command, text=None):
    finished = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def built_for(machine, source, program):
    """A program in C that runs its ops on the CPU, or on the played GPU."""
    if machine == "cpu":
        place = get_library_dir()
        run(*C, source, f"-L{place}", f"-Wl,-rpath,{place}", "-lspecdec", "-o", program)
    else:
        library = host_cuda.build("specdec_c")
        played = ["-std=c++20", "-DON_GPU", *host_cuda.include_flags()]
        run(*CXX, *played, "-x", "c++", source, "-x", "none", library, f"-Wl,-rpath,{library.parent}", "-o", program)
    return program


@pytest.fixture(params=["cpu", "cuda-host"])
def built(request, tmp_path):
    return lambda source: built_for(request.param, source, tmp_path / source.stem)


def test_the_example_gives_the_bits_of_the_package(built):
    rows = re.findall(r"drafted ([-\d ]+) accepted (\d+) emitted ([-\d ]+) status (\d+)", run(built(EXAMPLE)))
    requests, drafts, vocabulary = 2, 3, 5000

    def logits(count, step):
        request, row, token = torch.meshgrid(*map(torch.arange, (requests, count, vocabulary)), indexing="ij")
        words = (token + 31 * row + 977 * request) * 2654435761 & 0xFFFFFFFF
        return ((words >> 22) // step * step / 128).float()

    seeds, positions = torch.tensor([1, 2]), torch.tensor([[5, 6, 7], [20, 21, 22]])
    draft = logits(drafts, 256)
    drafted = race_sample(draft, temperature=0.75, seed=seeds[:, None], position=positions)
    verdict = verify_chain(
        drafted, logits(drafts + 1, 1), draft, temperature=0.75, seed=seeds, position=positions[:, 0]
    )
    assert len(rows) == requests
    for b, (tokens, accepted, emitted, status) in enumerate(rows):
        assert [int(x) for x in tokens.split()] == drafted[b].tolist()
        assert int(accepted) == verdict.num_accepted[b]
        assert [int(x) for x in emitted.split()] == verdict.tokens[b, : int(accepted) + 1].tolist()
        assert int(status) == verdict.status[b]
    assert 0 < verdict.num_accepted.sum() < requests * drafts  # both outcomes


def test_every_mistake_is_an_error(built, tmp_path):
    assert run(built(c_api_misuse.written(tmp_path))) == ""


def test_every_size_that_does_not_fit_is_left_to_python(tmp_path):
    source, program, objects = tmp_path / "exact.cpp", tmp_path / "exact", build_folder() / "c_api_checks.o"
    source.write_text(c_api_exact.text(), encoding="utf-8")
    run(*CXX, "-std=c++17", "-I", ROOT / "csrc", source, objects, "-o", program)
    assert run(program) == ""


@pytest.mark.parametrize("compiler", [C, [*CXX, "-std=c++11", *WARNINGS]], ids=["C11", "C++11"])
def test_the_header_stands_alone(compiler):
    language = "c" if compiler is C else "c++"
    text = "#include <specdec_sharded.h>\n#include <specdec.h>\n#include <specdec_sharded.h>\n"
    if language == "c++":  # as some include headers of C
        text = f'extern "C" {{\n{text}}}\n'
    run(*compiler, "-fsyntax-only", "-x", language, "-", text=f"{text}int main(void) {{ return 0; }}\n")


def test_the_kernels_headers_stand_alone():
    text = "#include <specdec/cuda.cuh>\nint main() {}\n"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", *host_cuda.include_flags()]
    run(*CXX, *flags, "-fsyntax-only", "-x", "c++", "-", text=text)


def test_header_and_package_have_one_version():
    version = int(run(*C, "-E", "-P", "-x", "c", "-", text="#include <specdec.h>\nSPECDEC_VERSION").split()[-1])
    assert specdec_kernels.__version__ == f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def test_the_library_offers_specdec_h_and_asks_nothing_of_python():
    library = Path(get_library_dir(), "libspecdec.so")
    names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    others = "version|error_string|last_error|cuda_available|cuda_capture|cuda_wait"
    declared = set(re.findall(rf"\b(specdec_(?:{others}))\(", header()))
    declared |= {f"specdec_{machine}_{op}" for machine in ("cpu", "cuda") for op in OPS}
    assert {name for name in names if name.startswith("specdec_")} == declared
    assert not re.search(r"\b_?Py[A-Z_]", run("nm", "-D", "--undefined-only", library))


def test_the_page_quotes_the_example():
    page = (EXAMPLE.parents[1] / "docs" / "cpp.md").read_text()
    quotes = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = EXAMPLE.read_text()
    assert len(quotes) == 2
    assert all(quote in example or textwrap.indent(quote, "  ") in example for quote in quotes)


def test_the_header_declares_every_op():
    declared = r"^SPECDEC_DECLARE\(specdec_cpu_(\w+), specdec_cuda_\1, specdec_\1_params, \w+\)$"
    assert set(re.findall(declared, header(), re.MULTILINE)) == set(OPS)


def header():
    parts = sorted(Path(get_include(), "specdec", "c").glob("*.h"))
    return "".join(path.read_text() for path in (Path(get_include(), "specdec.h"), *parts))

"""The CPU backend on ARM: libspecdec compiled for aarch64, with the compiler's vectors, gives the bits of this machine.

A user-mode emulator runs it. Its processor is one of the first of its kind, so no newer instruction passes.
"""

import shutil
import sys
from pathlib import Path

import pytest

from setup import CSRC, NinjaBuild, NinjaFile
from specdec_kernels.calls.op import OPS
from specdec_kernels.headers import get_library_dir
from tests.backends import c_api_misuse
from tests.backends.host_cuda.build import ROOT, run_ninja
from tests.backends.test_c_api import CXX, EXAMPLE, C, run
from tests.backends.test_headers import EXAMPLE as HEADERS_EXAMPLE

ARM_C, ARM_CXX, EMULATOR = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"
CALLS = Path(__file__).parent / "arm" / "calls.cpp"
FOLDER = ROOT / "build" / "arm"

pytestmark = [
    pytest.mark.slow,
    *(
        pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} not found: Debian has it in {package}")
        for tool, package in (
            (ARM_C, "gcc-aarch64-linux-gnu"), (ARM_CXX, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user"),
        )
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def library():
    """The folder of libspecdec.so for ARM, built where a source changed."""
    ninja = NinjaFile(FOLDER)
    ninja.rule("cxx", f"{ARM_CXX} -Werror -MMD -MF $out.d $flags -c $in -o $out", depfile=True)
    objects = NinjaBuild.compile_cpu(ninja, ["scalar"], ["-I", ninja.seen(CSRC / "include")])
    ninja.rule("library", f"{ARM_CXX} -shared -pthread -Wl,--no-undefined,-soname=$out $in -o $out")
    ninja.build("libspecdec.so", "library", objects)
    run_ninja(FOLDER, str(ninja))
    return FOLDER


def on_arm(program, *arguments):
    """What a program for ARM prints."""
    libraries = Path(run(ARM_CXX, "-print-file-name=ld-linux-aarch64.so.1").strip()).resolve().parents[1]
    return run(EMULATOR, "-cpu", "cortex-a53", "-L", libraries, program, *arguments)


def linked(command, source, folder, program):
    """A program for whichever machine the command compiles for."""
    run(*command, source, f"-L{folder}", f"-Wl,-rpath,{folder}", "-lspecdec", "-o", program)
    return program


def test_the_examples(library, tmp_path):
    for name, source, here, there in (
        ("c_api", EXAMPLE, C, [ARM_C, *C[1:]]),
        ("misuse", c_api_misuse.written(tmp_path), C, [ARM_C, *C[1:]]),
        ("headers", HEADERS_EXAMPLE, [*CXX, "-O2"], [ARM_CXX, *CXX[1:], "-O2"]),
    ):
        native = linked(here, source, get_library_dir(), tmp_path / name)
        assert on_arm(linked(there, source, library, tmp_path / f"{name}_arm")) == run(native)


def test_every_op_gives_the_bits_of_this_machine(library, tmp_path):
    recorder, calls = tmp_path / "recorder.so", tmp_path / "calls"
    run(*CXX, "-std=c++17", "-O1", "-shared", "-fPIC", "-DRECORD", CALLS, "-ldl", "-o", recorder)
    counts = dict(
        line.split() for line in run(sys.executable, "-m", "tests.backends.arm.record", recorder, calls).splitlines()
    )
    assert set(counts) == set(OPS)
    assert "0" not in counts.values()
    expected = f"{sum(map(int, counts.values()))} calls\n"
    program = linked([ARM_CXX, *CXX[1:], "-std=c++17", "-O1"], CALLS, library, tmp_path / "calls_arm")
    for threads in (1, 3):
        assert on_arm(program, calls, threads) == expected
    calls.unlink()  # 70 MB

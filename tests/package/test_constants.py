"""A number with a meaning, the ordered key of a float and a bound of an error stand once in a language."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPP, PYTHON, TRITON = "csrc", "specdec_kernels", "triton_kernels"
# What: (where it is looked for, what it looks like, the one file that may have it).
ONCE = {
    "ordered key, C++": (CPP, r"0x80000000", "csrc/include/specdec/arithmetic.h"),
    "ordered key, Triton": (TRITON, r"0x80000000", "triton_kernels/_math.py"),
    "tokens of a mass tile, C API": ("csrc/c_api", r"\b(1023|1024)\b", None),
    "tokens of a mass tile, Python": (PYTHON, r"^\w+ = 1024\b|// 1024\b", "specdec_kernels/_constants.py"),
    "tokens of a mass tile, Triton": (TRITON, r"MASS_TILE = tl|// 1024\b", "triton_kernels/_math.py"),
    "bounds of errors, CPU": ("csrc/cpu", r"\d[eE]-\d", None),
    "bounds of errors, CUDA's own instructions": ("csrc/cuda", r"\d[eE]-\d", "csrc/cuda/rows/draw.cuh"),
    "bounds of errors, Triton": (TRITON, r"\d[eE]-\d", "triton_kernels/_math.py"),
    "the smallest normal number, Python": (PYTHON, r"float32\)\.tiny|2\.0\*\*-126", "specdec_kernels/_constants.py"),
    "the largest number, Python": (PYTHON, r"float32\)\.max\b|2\.0\*\*128", "specdec_kernels/_constants.py"),
    "the coldest temperature, Python": (PYTHON, r"2\.0\*\*-64", "specdec_kernels/_constants.py"),
    "the unit of sums, Python": (PYTHON, r"2\.0\*\*-?42", None),
    "uniforms of leaves, Python": (PYTHON, r"^\w+ = (2\*\*30|1 << 30)", "specdec_kernels/_constants.py"),
    "no token, Python": (PYTHON, r"0x7FFFFFFF", None),
    "no token, Triton": (TRITON, r"0x7FFFFFFF", "triton_kernels/_math.py"),
}
# What other things are by chance: programs for users, theory and models of other engines have numbers of their own.
APART = ("generate", "studies", "theory", "cli", "engines", "include", "cuda", "triton_kernels")


def sources(folder):
    for path in sorted((ROOT / folder).rglob("*")):
        inside = path.relative_to(ROOT / folder).parts
        if path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh") and not (folder == PYTHON and inside[0] in APART):
            comment = r'"""[^"]*"""|#.*' if path.suffix == ".py" else r"//.*"
            yield path.relative_to(ROOT).as_posix(), re.sub(comment, "", path.read_text())


@pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="needs the source tree")
@pytest.mark.parametrize("name", ONCE)
def test_a_constant_stands_once(name):
    folder, pattern, home = ONCE[name]
    found = [path for path, text in sources(folder) for _ in re.findall(pattern, text, re.MULTILINE)]
    assert set(found) == ({home} if home else set())

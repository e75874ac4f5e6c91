"""Proves that a rename changed names alone, between two checkouts that are built.

    python -m tests.support.same_code BEFORE AFTER                      objects as built, PTX of Triton, syntax trees
    python -m tests.support.same_code BEFORE AFTER --archs sm_80 sm_100a    and SASS that is compiled for these, too

The first look takes seconds: tokens of C++ and syntax trees of Python, each with its identifiers numbered in the order
in which they come. It tells files whose names do not map one to one; the compiled code then decides.

Functions are compared without the names in them and without their order, so files and functions may move. Syntax trees
of Python leave out docstrings, texts and the order of imports.
"""

import argparse
import ast
import collections
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup import NVCC_FLAGS, find_nvcc
from tests.support.cuda_aot import disassembler, run

FOLDERS = ("csrc", "triton_kernels", "specdec_kernels", "bench", "tests")
CPP = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])+\'|[A-Za-z_]\w*|(?:\d|\.\d)[\w.\']*|\\\n|\S', re.S
)
SYMBOL = re.compile(r"<[^>]*>|\b_Z\w+|`\([^)]*\)")
PTX = """
import hashlib, json, re, torch
from tests.support import triton_aot
for name, launch in triton_aot.kernels(torch.bfloat16, "logits", triton_aot.VOCABULARY, arch="sm_90").items():
    text = triton_aot.compiled(*launch, triton_aot.ARCHS["sm_90"])[0].asm["ptx"]
    text = re.sub(r"\\.loc.*|\\.file.*|//.*", "", text.split(".section")[0]).replace(launch[0].__name__, "kernel")
    print(json.dumps(hashlib.sha256(re.sub(r"\\s+", " ", text).encode()).hexdigest()))
"""


class Code(str):
    """A function's instructions without names; equal texts are equal, whatever the function's ``name``."""

    def __new__(cls, part, separator):
        name, _, text = part.partition(separator)
        code = super().__new__(cls, SYMBOL.sub("", text).strip())
        code.name = name
        return code


def machine_code(path):
    text = run("objdump", "-d", "-w", "--no-show-raw-insn", "--no-addresses", path)
    return [Code(part, ":\n") for part in re.split(r"\n(?=<)", text)[1:]]


def sass(path):
    """The kernels of an object; none if it has no device code."""
    try:
        text = run(disassembler(), "-sass", path)
    except RuntimeError as error:
        if "does not contain device code" not in str(error):
            raise
        return []
    return [Code(part, "\n") for part in text.split("Function : ")[1:]]


def sass_for(kernel):
    root, source, arch = kernel
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernels.cubin")
        flags = [*NVCC_FLAGS, "-I", root / "csrc" / "include", f"-arch={arch}", "-cubin"]
        run(find_nvcc()[0], *flags, root / source, "-o", binary)
        return sass(binary)


def ptx(root):
    """The hashes of what Triton's kernels compile to, in a process of that checkout."""
    done = subprocess.run([sys.executable, "-c", PTX], cwd=root, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split()]


def sources(root, pattern):
    return sorted(path.relative_to(root) for path in root.glob(pattern))


def tree(path):
    """A syntax tree as a text, its identifiers by the order in which they come, and the number of texts in it."""
    numbers, module = {}, ast.parse(path.read_text())
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [
                child for child in body
                if not isinstance(child, (ast.Import, ast.ImportFrom))
                and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
                and not (isinstance(child, ast.Assign) and getattr(child.targets[0], "id", "") == "__all__")
            ]  # fmt: skip
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str):
                setattr(node, field, f"n{numbers.setdefault(name, len(numbers))}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(module)


def tokens(path):
    """The tokens of a C++ file without comments, its identifiers by the order in which they come, texts empty."""
    numbers, found = {}, []
    for token in CPP.findall(path.read_text()):
        if token[0].isalpha() or token[0] == "_":
            found.append(numbers.setdefault(token, len(numbers)))
        elif not token.startswith(("//", "/*", "\\")):
            found.append('""' if token[0] == '"' else token)
    return [a for a, b in zip(found, [*found[1:], None], strict=True) if not a == b == '""']  # texts that are joined


def differing_files(before, after, renamed):
    """Files whose tokens or syntax trees differ by more than names. ``renamed``: path before -> path after."""
    listed = run("git", "-C", before, "ls-files", *FOLDERS).split()
    for old in (name for name in listed if Path(name).suffix in (".py", ".h", ".cpp", ".cu", ".cuh", ".c")):
        new, read = renamed.get(old, old), tree if old.endswith(".py") else tokens
        if not (after / new).exists() or read(before / old) != read(after / new):
            yield new


def compare(what, before, after):
    missing, new = (list((a - b).elements()) for a, b in ((before, after), (after, before)))
    print(f"{what}: {sum(before.values())} before, {len(missing)} of them differ, {len(new)} are new")
    for part in missing:
        print(f"  {getattr(part, 'name', part)}")
    return not missing and not new


def counted(function, items):
    with ThreadPoolExecutor(2) as pool:
        return collections.Counter(part for parts in pool.map(function, items) for part in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--archs", nargs="*", default=[])
    parser.add_argument("--skip", nargs="*", default=[], choices=("objects", "ptx", "files"))
    options = parser.parse_args()
    roots = options.before.resolve(), options.after.resolve()
    same = []
    if "objects" not in options.skip:
        objects = [sorted(root.glob("build/ninja-*/*.o")) for root in roots]
        same.append(compare("machine code", *(counted(machine_code, paths) for paths in objects)))
        same.append(compare("SASS", *(counted(sass, [o for o in paths if ".cuda.o" in o.name]) for paths in objects)))
    for arch in options.archs:
        kernels = [[(root, source, arch) for source in sources(root, "csrc/cuda/ops/*.cu")] for root in roots]
        same.append(compare(f"SASS of {arch}", *(counted(sass_for, each) for each in kernels)))
    if "ptx" not in options.skip:
        same.append(compare("Triton's PTX", *(collections.Counter(ptx(root)) for root in roots)))
    if "files" not in options.skip:
        base = run("git", "-C", roots[0], "rev-parse", "HEAD").strip()
        moved = run("git", "-C", roots[1], "diff", "--name-status", "-M50", "--diff-filter=R", base).splitlines()
        differing = list(differing_files(*roots, dict(line.split("\t")[1:] for line in moved)))
        print(f"tokens and syntax trees: {len(differing)} files differ", *differing, sep="\n  ")
        same.append(not differing)
    sys.exit(not all(same))


if __name__ == "__main__":
    main()

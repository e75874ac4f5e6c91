"""Builds what the Kernel Hub loads: the ops in Triton and plain torch, and from wheels those for CPUs, compiled.

    python packaging/hub/build.py build/hub dist/*.whl
    python -c "import kernels; print(kernels.get_local_kernel('build/hub').__all__)"

A kernel of the Hub is loaded under a name of its own, beside others of its kind. So imports become relative, and the
namespace of the ops in torch is made from what is in the files. The compiled library gets a name of its own, too, for a
process has one library of a name. patchelf writes it. Seen: kernels 0.17.2.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "specdec_kernels"
VARIANTS = {"torch-cpu": "cpu", "torch-cuda": "cuda", "torch-rocm": "rocm"}
# Of wheels: for every torch from the oldest that we take, as nothing of it is linked.
COMPILED = "torch-stable-abi211-cpu-{machine}-linux"
FOLDERS = {name: ROOT / PACKAGE / name for name in ("calls", "ops", "backends/reference")}
FOLDERS["triton_kernels"] = ROOT / "triton_kernels"
FILES = {
    "__init__.py": HERE / "package.py",
    "_parents.py": HERE / "parents.py",
    **{
        name: ROOT / PACKAGE / name
        for name in (
            "_constants.py", "layout.py", "sampling.py", "status.py", "backends/__init__.py", "backends/triton.py",
            "backends/cpu.py", "backends/_cores.py", "backends/_native.py",
        )
    },
}  # fmt: skip
WITHOUT_C, WITH_C = ("backends/cpu.py", "backends/_cores.py", "backends/_native.py"), ("_parents.py",)  # left out
# Beside imports: each text stands in its file once, or the build fails. Then what changes where nothing is compiled.
CHANGES = {
    "calls/op.py": [
        ('torch.library.Library("specdec", "DEF")', 'torch.library.Library("{namespace}", "DEF")'),
        ("getattr(torch.ops.specdec, name)", "getattr(torch.ops.{namespace}, name)"),
    ],
    "backends/__init__.py": [
        ('    "cuda": ("specdec_kernels.backends.cuda", ("cuda",)),\n', ""),
        ('"specdec_kernels.backends.triton"', 'f"{{__name__}}.triton"'),
        ('"specdec_kernels.backends.reference"', 'f"{{__name__}}.reference"'),
        ('"specdec_kernels.backends.cpu"', 'f"{{__name__}}.cpu"'),
        ('return "cuda" if _cuda_runs() else "triton"', 'return "triton"'),
    ],
    "backends/triton.py": [
        ("import _check_place, triton_kernels", "import triton_kernels"),
        ('_check_place(triton_kernels, "triton_kernels", "../triton_kernels")\n', ""),
    ],
    "triton_kernels/__init__.py": [('if __name__ != "specdec_kernels.triton_kernels":', "if False:")],
}
PLAIN = {
    "ops/_trees.py": [("from specdec_kernels import _C\n", "from specdec_kernels import _parents as _C\n")],
    "calls/op.py": [
        ("from specdec_kernels import _C, backends\n", "from specdec_kernels import _parents as _C, backends\n"),
    ],
    "backends/__init__.py": [
        ('    "cpu": (f"{__name__}.cpu", ("cpu",)),\n', ""),
        ('        return "cpu"\n', '        return "reference"\n'),
    ],
}
LEFT_OUT = {"backends/__init__.py": ("_cuda_runs", "build_info")}


def relative(text: str, name: str) -> str:
    """The imports of a file of the package, relative."""
    lines, dots = text.split("\n"), "." * (name.count("/") + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
            below = node.module.removeprefix(PACKAGE).removeprefix(".")
            line = node.lineno - 1
            lines[line] = lines[line].replace(f"from {node.module} ", f"from {dots}{below} ", 1)
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] == PACKAGE for alias in node.names):
            raise ValueError(f"{name}, line {node.lineno}: expected 'from ... import'; got 'import'")
    return "\n".join(lines)


def without(text: str, functions: tuple[str, ...]) -> str:
    """A file without some of its functions."""
    lines = text.split("\n")
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    for function in sorted((found[name] for name in functions), key=lambda node: -node.lineno):
        first = min([function.lineno, *(x.lineno for x in function.decorator_list)])
        del lines[first - 1 : function.end_lineno]
    listed = "|".join(f'"{function}", ' for function in functions)
    return re.sub(listed, "", "\n".join(lines))


def sources() -> dict[str, str]:
    """The package's files by name, as they are here."""
    found = dict(FILES)
    for folder, place in FOLDERS.items():
        found |= {f"{folder}/{path.relative_to(place)}": path for path in sorted(place.rglob("*.py"))}
    return {name: path.read_text() for name, path in sorted(found.items())}


def package(backend: str = "cpu", compiled: bool = False) -> tuple[dict[str, str], str]:
    """The package's files as the Hub wants them, and a name that is theirs alone, for them and their ops."""
    texts = sources()
    digits = hashlib.sha256("\0".join(x for pair in texts.items() for x in pair).encode()).hexdigest()[:12]
    namespace = f"_{PACKAGE}_{backend}_{digits}"
    for name, changes in [*CHANGES.items(), *([] if compiled else PLAIN.items())]:
        for old, new in changes:
            if texts[name].count(old) != 1:
                raise ValueError(f"{name}: expected {old!r} once; got it {texts[name].count(old)} times")
            texts[name] = texts[name].replace(old, new.format(namespace=namespace))
    for name, functions in LEFT_OUT.items():
        texts[name] = without(texts[name], functions)
    left = WITH_C if compiled else WITHOUT_C
    return {name: relative(text, name) for name, text in texts.items() if name not in left}, namespace


def unpack(wheels: list[Path], place: Path, library: str) -> None:
    """The compiled parts of wheels for one machine: a module for each Python, and the library under this name."""
    (place / "lib").mkdir(parents=True, exist_ok=True)
    kept = place / "lib" / library
    for wheel in wheels:
        archive = zipfile.ZipFile(wheel)
        (module,) = (name for name in archive.namelist() if re.fullmatch(rf"{PACKAGE}/_C\..*\.so", name))
        (place / Path(module).name).write_bytes(archive.read(module))
        code = archive.read(f"{PACKAGE}/lib/libspecdec.so")
        if kept.exists() and kept.read_bytes() != code:
            raise ValueError(f"{wheel.name}: expected the library of the other wheels; got another one")
        kept.write_bytes(code)
        subprocess.run(
            ["patchelf", "--replace-needed", "libspecdec.so", library, place / Path(module).name], check=True
        )
    subprocess.run(["patchelf", "--set-soname", library, kept], check=True)


def metadata(place: Path, name: str, version: int, backend: str) -> dict:
    """What the client reads of a variant, with the digest of each file."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    hashes = {path: base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode() for path in files}
    address = runpy.run_path(str(ROOT / "setup.py"), run_name="setup_py")["REPOSITORY"]
    return {
        "name": "specdec-kernels", "id": name, "version": version, "license": "Apache-2.0",
        **({"upstream": address} if address else {}),
        "python-depends": [], "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {path.relative_to(place).as_posix(): found for path, found in hashes.items()},
        },
    }  # fmt: skip


def build(folder: Path, wheels: list[Path], version: int = 1) -> None:
    """Write ``build/<variant>`` for each variant into a folder; what was there of them is deleted."""
    machines = {re.search(r"(x86_64|aarch64)\.whl$", wheel.name)[1] for wheel in wheels}
    if len(machines) > 1:
        raise ValueError(f"wheels: expected those of one machine; got {', '.join(sorted(machines))}")
    compiled = {COMPILED.format(machine=machine): "cpu" for machine in machines}
    for variant, backend in {**VARIANTS, **compiled}.items():
        texts, namespace = package(backend, variant in compiled)
        place = folder / "build" / variant
        shutil.rmtree(place, ignore_errors=True)
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        if variant in compiled:
            unpack(wheels, place, f"lib{namespace}.so")
        found = metadata(place, namespace, version, backend)
        (place / "metadata.json").write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the kernel's folder is written")
    parser.add_argument("wheels", type=Path, nargs="*", help="of one machine, each for another Python")
    parser.add_argument("--version", type=int, default=1, help="of the kernel on the Hub, a whole number")
    options = parser.parse_args()
    build(options.folder, options.wheels, options.version)


if __name__ == "__main__":
    main()

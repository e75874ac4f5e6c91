"""Builds what the Kernel Hub loads: the ops in Triton and plain torch, with nothing compiled.

    python packaging/hub/build.py build/hub
    python -c "import kernels; print(kernels.get_local_kernel('build/hub').__all__)"

A kernel of the Hub is loaded under a name of its own, beside others of its kind. So imports become relative, and the
namespace of the ops in torch is made from what is in the files. Seen: kernels 0.17.2.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "specdec_kernels"
VARIANTS = ("cpu", "cuda", "rocm")
FOLDERS = {name: ROOT / PACKAGE / name for name in ("calls", "ops", "backends/reference")}
FOLDERS["triton_kernels"] = ROOT / "triton_kernels"
FILES = {
    "__init__.py": HERE / "package.py",
    "_constants.py": ROOT / PACKAGE / "_constants.py",
    "_parents.py": HERE / "parents.py",
    "layout.py": ROOT / PACKAGE / "layout.py",
    "sampling.py": ROOT / PACKAGE / "sampling.py",
    "status.py": ROOT / PACKAGE / "status.py",
    "backends/__init__.py": ROOT / PACKAGE / "backends/__init__.py",
    "backends/triton.py": ROOT / PACKAGE / "backends/triton.py",
}
# Beside imports: each text stands in its file once, or the build fails.
CHANGES = {
    "ops/_trees.py": [("from specdec_kernels import _C\n", "from specdec_kernels import _parents as _C\n")],
    "calls/op.py": [
        ("from specdec_kernels import _C, backends\n", "from specdec_kernels import _parents as _C, backends\n"),
        ('torch.library.Library("specdec", "DEF")', 'torch.library.Library("{namespace}", "DEF")'),
        ("getattr(torch.ops.specdec, name)", "getattr(torch.ops.{namespace}, name)"),
    ],
    "backends/__init__.py": [
        ('    "cpu": ("specdec_kernels.backends.cpu", ("cpu",)),\n', ""),
        ('    "cuda": ("specdec_kernels.backends.cuda", ("cuda",)),\n', ""),
        ('"specdec_kernels.backends.triton"', 'f"{{__name__}}.triton"'),
        ('"specdec_kernels.backends.reference"', 'f"{{__name__}}.reference"'),
        ('        return "cpu"\n', '        return "reference"\n'),
        ('return "cuda" if _cuda_runs() else "triton"', 'return "triton"'),
    ],
    "backends/triton.py": [
        ("import _check_place, triton_kernels", "import triton_kernels"),
        ('_check_place(triton_kernels, "triton_kernels", "../triton_kernels")\n', ""),
    ],
    "triton_kernels/__init__.py": [('if __name__ != "specdec_kernels.triton_kernels":', "if False:")],
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


def package() -> tuple[dict[str, str], str]:
    """The package's files as the Hub wants them, and what they are called by: 12 digits that are theirs alone."""
    texts = sources()
    digits = hashlib.sha256("\0".join(x for pair in texts.items() for x in pair).encode()).hexdigest()[:12]
    for name, changes in CHANGES.items():
        for old, new in changes:
            if texts[name].count(old) != 1:
                raise ValueError(f"{name}: expected {old!r} once; got it {texts[name].count(old)} times")
            texts[name] = texts[name].replace(old, new.format(namespace=f"_{PACKAGE}_{digits}"))
    for name, functions in LEFT_OUT.items():
        texts[name] = without(texts[name], functions)
    return {name: relative(text, name) for name, text in texts.items()}, digits


def build(folder: Path, version: int = 1) -> None:
    """Write ``build/torch-<backend>`` for each variant into a folder; what was there of them is deleted."""
    texts, digits = package()
    for variant in VARIANTS:
        place = folder / "build" / f"torch-{variant}"
        shutil.rmtree(place, ignore_errors=True)
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        metadata = {
            "name": "specdec-kernels", "id": f"_{PACKAGE}_{variant}_{digits}", "version": version,
            "license": "Apache-2.0", "python-depends": [], "backend": {"type": variant},
        }  # fmt: skip
        (place / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the kernel's folder is written")
    parser.add_argument("--version", type=int, default=1, help="of the kernel on the Hub, a whole number")
    options = parser.parse_args()
    build(options.folder, options.version)


if __name__ == "__main__":
    main()

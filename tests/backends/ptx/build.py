"""Builds what runs nvcc's PTX, through ninja, under ``build/``: the objects of the project's own build hold it,
translate.py makes C++ of it, and that is linked with these objects, so their host code launches it.

    python -m tests.backends.ptx.build     ahead of the tests
"""

import hashlib
import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setup import NinjaFile, build_folder, compiler_cache, write_if_changed
from tests.backends.host_cuda.build import FLAGS as HOST_FLAGS
from tests.backends.host_cuda.build import HERE as HOST
from tests.backends.host_cuda.build import ROOT, include_flags, run_ninja
from tests.backends.ptx.translate import translate
from tests.support.cuda_aot import disassembler

HERE = Path(__file__).resolve().parent
MODULE = "specdec_ptx"
FOLDER = ROOT / "build" / f"ptx-{sys.implementation.cache_tag}"
MACHINE = [HERE / "instructions.cpp", HERE / "cudart.cpp", HOST / "machine.cpp", HOST / "control.cpp"]
# Frames of translated kernels are up to 100 KB: without optimisation no variables share a place. To optimise them would
# take four times as long as all their tests. Integers wrap around.
STACK = ["-DHOST_CUDA_STACK=262144"]
KERNEL_FLAGS = "-std=c++17 -O0 -fPIC -fwrapv -ffp-contract=off -w".split()
CXX = shlex.split(os.environ.get("CXX", "g++"))


def no_compiler():
    """Why PTX cannot be run here, or None."""
    return None if shutil.which(CXX[0]) else "no C++ compiler"


def project():
    """The build.ninja of the project's own build, "" if there is none."""
    path = build_folder() / "build.ninja"
    return path.read_text() if path.exists() else ""


def unavailable():
    """Why the kernels' PTX cannot be run here, or None."""
    if reason := no_compiler():
        return reason
    archs = set(re.findall(r"code=compute_(\d+)", project()))
    if len(archs) != 1 or int(archs.pop()) < 90:  # clusters are in the code of 90 and above
        return "no PTX of one architecture in the project's build: SPECDEC_CUDA_ARCHS=90a+PTX puts it there"
    return None if disassembler() else "no cuobjdump"


def machine_file(folder):
    """A ninja file with the rules, and the machine's objects."""
    ninja = NinjaFile(folder)
    cxx = shlex.join([*compiler_cache(CXX[0]), *CXX])
    ninja.rule("cxx", f"{cxx} -MMD -MF $out.d $flags -c $in -o $out", depfile=True)
    ninja.rule("library", f"{shlex.join(CXX)} -shared $in -ldl -o $out")
    flags = [
        *HOST_FLAGS,
        "-O1",
        *STACK,
        *(ninja.seen(flag) if flag.startswith(str(ROOT)) else flag for flag in include_flags()),
    ]
    return ninja, flags, [ninja.compile("cxx", source, flags) for source in MACHINE]


def ninja_file():
    ninja, flags, objects = machine_file(FOLDER)
    python = shlex.join(["env", f"PYTHONPATH={ninja.seen(ROOT)}", sys.executable])
    ninja.rule("ptx", f"{shlex.quote(disassembler())} -ptx $in >$out")
    ninja.rule("translate", f"{python} -m tests.backends.ptx.translate $in $out")
    tables = [ninja.seen(HERE / name) for name in ("translate.py", "forms.py")]
    built = re.findall(r"^build (\S+): \w+ \S*csrc/((?:cuda|c_api|python)/\S+)$", project(), re.MULTILINE)
    # Those that take longest to compile come first.
    for name, source in sorted(built, key=lambda found: -(ROOT / "csrc" / found[1]).stat().st_size):
        if source in ("c_api/cpu.cpp", "python/module.cpp"):  # module.cpp of the machine stands in for the second
            continue
        compiled = ninja.seen(build_folder() / name)
        objects.append(compiled)
        if source.endswith(".cu"):
            stem = name.partition(".")[0]
            ninja.build(f"{stem}.ptx", "ptx", [compiled])
            ninja.build(f"{stem}.cpp", "translate", [f"{stem}.ptx", *tables])
            ninja.build(f"{stem}.o", "cxx", [f"{stem}.cpp"], [*KERNEL_FLAGS, "-I", ninja.seen(HERE)])
            objects.append(f"{stem}.o")
    module = ninja.compile("cxx", HOST / "module.cpp", [*flags, f"-DHOST_CUDA_MODULE={MODULE}"])
    ninja.build(path_of(MODULE).name, "library", [*objects, module])
    return str(ninja)


def path_of(name):
    return FOLDER / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def build():
    """The path of the module with all kernels, built if it is older than a source."""
    run_ninja(FOLDER, ninja_file(), path_of(MODULE).name)
    return path_of(MODULE)


def build_text(text):
    """The path of a library with the kernels of a PTX text, named by what it holds."""
    source = translate(text, "test.ptx")
    folder = FOLDER / "texts"
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_if_changed(folder / f"{name}.cpp", source)
    ninja, _, objects = machine_file(folder)
    ninja.build(f"{name}.o", "cxx", [f"{name}.cpp"], [*KERNEL_FLAGS, "-I", ninja.seen(HERE)])
    ninja.build(f"{name}.so", "library", [*objects, f"{name}.o"])
    run_ninja(folder, str(ninja), f"{name}.so")
    return folder / f"{name}.so"


if __name__ == "__main__":
    if reason := unavailable():
        print(f"tests.backends.ptx: nothing to build ({reason})")
    else:
        build()

"""Builds ``libspecdec.so``, the ops for C, and ``specdec_kernels._C``, which hands them to Python, through ninja.

It builds what this machine can use: C++ for every processor and for this one, CUDA for the GPUs that it sees. What is
asked for is built, too. What CMake and pkg-config read is written beside the library.

Environment:

``SPECDEC_CUDA``         ``auto`` (default: where nvcc is found, and a GPU is seen or an architecture asked for), ``0``
                         or ``1``.
``SPECDEC_CUDA_ARCHS``   architectures separated by ``;``, ``+PTX`` for code that newer GPUs compile for themselves; or
``TORCH_CUDA_ARCH_LIST`` as torch writes them, ``8.0;9.0+PTX``. Default: those of the GPUs that are seen; with
                         ``SPECDEC_CUDA=1`` and none, ``80;90+PTX;100;120`` as far as nvcc knows them.
``SPECDEC_ISAS``         instruction sets besides the baseline, separated by ``;``, or ``all``. Default: the best that
                         this machine has.
``SPECDEC_LABEL``        ``1``: a wheel's version says what was built, ``+cpu`` or nvcc's release, ``+cu130``.
``CXX``                  the C++ compiler (default ``g++``); ``MAX_JOBS`` compilations at once (default: all cores).

Nothing of torch is needed. Metadata lives in pyproject.toml, but for what follows from the address below.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
# The project's public address, "https://HOST/OWNER/NAME"; empty while it has none. The links of a package's page and
# its project URLs are made of it, and of nothing else.
REPOSITORY = ""

# -ffp-contract=off: every multiply and add rounds on its own, so that each instruction set gives the same bits.
CXX_FLAGS = "-O3 -std=c++17 -fPIC -ffp-contract=off -fno-math-errno -fvisibility=hidden -Wall -Wextra".split()
# Least capable first. The linker keeps the first copy of an inline function that several objects define, so this
# is also the order in which objects are linked: code that every machine runs must never come from a later one.
ISA_FLAGS = {
    "scalar": [],
    "avx2": "-mavx2 -mfma -mf16c -mbmi2".split(),
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2".split(),
}
# Compiled once, as they look through no rows: SPECDEC_OTHER_OPS of csrc/include/specdec/ops.h, and their caller.
COMPILED_ONCE = {
    f"{name}.cpp"
    for name in (
        "dispatch threads first_arrivals walk_tables store_rows tree_mask tree_positions tree_parents build_tree "
        "merge_chains compact_kv count_tokens uniform context_seeds"
    ).split()
}
CPU_SOURCES = sorted((CSRC / "cpu").rglob("*.cpp"))
# The processor that is built for. A cross build has told sysconfig.
MACHINE = sysconfig.get_platform().rpartition("-")[2]
MACOS = sysconfig.get_platform().startswith("macosx")
CUDA_FOR_C = CSRC / "c_api" / "cuda.cpp"
LIBRARY = Path("lib", "libspecdec.dylib" if MACOS else "libspecdec.so")  # beside _C, which finds it there
# For other build systems, beside LIBRARY: template -> place. Both places are two folders below that of `lib`'s parent.
TEMPLATES = {
    "specdec.pc.in": Path("pkgconfig", "specdec.pc"),
    "specdec-config.cmake.in": Path("cmake", "specdec", "specdec-config.cmake"),
    "specdec-config-version.cmake.in": Path("cmake", "specdec", "specdec-config-version.cmake"),
}
# --fmad=false is nvcc's -ffp-contract=off.
NVCC_FLAGS = "-O3 -std=c++17 --fmad=false".split()
# csrc/cuda needs no instructions of one chip alone (90a, 100a): so these run on later ones of their kind, too.
DEFAULT_CUDA_ARCHS = ("80", "90+PTX", "100", "120")
OLDEST_CUDA_ARCH = 80


def say(text):
    print(f"specdec_kernels: {text}", flush=True)


def first_line(command):
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return output.strip().splitlines()[0]


def compiler_cache(compiler):
    """ccache or sccache, to be put before a compiler that is not one of them itself; empty where there is none."""
    caches = ("ccache", "sccache")
    found = next(filter(None, map(shutil.which, caches)), None)
    itself = Path(shutil.which(compiler) or compiler).resolve().name in caches
    return [found] if found and not itself else []


def isas(cxx):
    """The instruction sets to compile, least capable first, and the others of this architecture."""
    known = list(ISA_FLAGS) if MACHINE == "x86_64" else ["scalar"]
    asked = os.environ.get("SPECDEC_ISAS", "").lower()
    if asked:
        wanted = known if asked == "all" else ["scalar", *filter(None, map(str.strip, asked.split(";")))]
    else:
        here = subprocess.run([*cxx, *"-march=native -dM -E -x c++ /dev/null".split()], capture_output=True, text=True)
        has = {line.split()[1].strip("_").lower() for line in here.stdout.splitlines()}
        needs = {isa: {flag.removeprefix("-m") for flag in ISA_FLAGS[isa]} for isa in known}
        wanted = ["scalar", *[isa for isa in known if needs[isa] <= has][-1:]]
    if unknown := set(wanted) - set(known):
        raise SystemExit(f"SPECDEC_ISAS: expected all, or some of {';'.join(known)}, got {min(unknown)!r}")
    return [isa for isa in known if isa in wanted], [isa for isa in known if isa not in wanted]


def visible_gpus():
    """Compute capabilities of the GPUs that the driver lists and these kernels run on, such as ``90``."""
    smi = shutil.which("nvidia-smi")
    query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True).stdout if smi else ""
    found = {int(line.replace(".", "")) for line in re.findall(r"^\d+\.\d$", listed, re.MULTILINE)}
    return [str(arch) for arch in sorted(found) if arch >= OLDEST_CUDA_ARCH]


def asked_archs():
    """The architectures that the environment asks for, as ``SPECDEC_CUDA_ARCHS`` writes them."""
    own = os.environ.get("SPECDEC_CUDA_ARCHS", "")
    name, example = ("SPECDEC_CUDA_ARCHS", "80;90+PTX") if own else ("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    pattern = r"(\d{2,3})([af]?(?:\+PTX)?)" if own else r"(\d{1,2}\.\d)([af]?(?:\+PTX)?)"
    asked = []
    for arch in filter(None, re.split("[; ]+", os.environ.get(name, ""))):
        found = re.fullmatch(pattern, arch)
        if not found:
            raise SystemExit(f"{name}: expected a list like {example}, got {arch!r}")
        number = found[1].replace(".", "")
        if own or int(number) >= OLDEST_CUDA_ARCH:  # torch itself may be built for older ones, too
            asked.append(number + found[2])
    return asked


def find_nvcc():
    """Its path, or None, and the reason."""
    choice = os.environ.get("SPECDEC_CUDA", "auto").lower()
    if choice not in ("auto", "0", "1"):
        raise SystemExit(f"SPECDEC_CUDA: expected auto, 0 or 1, got {choice!r}")
    if choice == "0":
        return None, "SPECDEC_CUDA=0"
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=str(Path(home, "bin"))) if home else shutil.which("nvcc")
    if not nvcc and choice == "1":
        raise SystemExit("SPECDEC_CUDA=1, but nvcc not found: install CUDA's toolkit, or set CUDA_HOME")
    return nvcc, f"{nvcc} found" if nvcc else "nvcc not found: install CUDA's toolkit, or set CUDA_HOME"


def cuda_toolkit():
    """The nvcc to build with, or None, and the reason for the choice."""
    nvcc, reason = find_nvcc()
    if nvcc and os.environ.get("SPECDEC_CUDA") != "1" and not asked_archs() and not visible_gpus():
        return None, "nvcc found, but no GPU: SPECDEC_CUDA=1 or SPECDEC_CUDA_ARCHS=90 builds it nevertheless"
    return nvcc, reason


def cuda_archs(nvcc):
    if asked := asked_archs():
        return asked
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    known = {line.removeprefix("compute_") for line in listed.split()}
    newest = max(int(arch) for arch in known if arch.isdigit())
    # A GPU that nvcc does not know is newer, and compiles the newest code that nvcc knows for itself.
    seen = dict.fromkeys(arch if arch in known else f"{newest}+PTX" for arch in visible_gpus())
    return list(seen) or [arch for arch in DEFAULT_CUDA_ARCHS if arch.removesuffix("+PTX") in known]


def label():
    """What tells wheels with CUDA and without apart, where the environment asks for it. An sdist has neither."""
    if os.environ.get("SPECDEC_LABEL") != "1" or "sdist" in sys.argv:
        return ""
    nvcc, _ = cuda_toolkit()
    if not nvcc:
        return "+cpu"
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return "+cu" + "".join(re.search(r"release (\d+)\.(\d+)", told).groups())


def ninja_command():
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
    else:
        found = shutil.which("ninja", path=ninja.BIN_DIR) or shutil.which("ninja")
    if not found:
        raise SystemExit("ninja not found: pip install ninja")
    return [found, *(["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else [])]


class NinjaFile:
    """The text of a build.ninja: one rule per kind of command, header dependencies from depfiles.

    Paths in this tree are written as seen from ``folder``, so that a copy of the tree has nothing to build again.
    """

    def __init__(self, folder):
        self.folder = folder
        self.lines = ["ninja_required_version = 1.5"]

    def seen(self, path):
        return os.path.relpath(path, self.folder)

    @staticmethod
    def path(value):
        return str(value).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    def rule(self, name, command, depfile=False):
        self.lines += [f"rule {name}", f"  command = {command}", f"  description = {name} $out"]
        if depfile:
            self.lines += ["  depfile = $out.d", "  deps = gcc"]

    def build(self, output, rule, inputs, flags=()):
        self.lines.append(f"build {self.path(output)}: {rule} {' '.join(map(self.path, inputs))}")
        if flags:
            self.lines.append(f"  flags = {shlex.join(flags).replace('$', '$$')}")

    def compile(self, rule, source, flags, variant=""):
        output = f"{source.parent.name}_{source.stem}{variant}.o"
        self.build(output, rule, [self.seen(source)], flags)
        return output

    def __str__(self):
        return "\n".join(self.lines) + "\n"


def write_if_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def replace(path, source):
    """A copy at ``path``. Replaced, not overwritten: a process that has the old file mapped keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    shutil.copyfile(source, fresh)
    fresh.replace(path)


def write_configuration(library, include, metadata):
    """What CMake and pkg-config read, in the folder of ``library``. They find ``include`` by the way from there."""
    for template, place in TEMPLATES.items():
        target = library.parent / place
        target.parent.mkdir(parents=True, exist_ok=True)
        values = {
            "@VERSION@": metadata.get_version(),
            "@DESCRIPTION@": metadata.get_description(),
            "@LIBRARY@": library.name,
            "@SONAME@": f"@rpath/{library.name}" if MACOS else library.name,
            "@INCLUDE@": Path(os.path.relpath(include, target.parent)).as_posix(),
        }
        text = (ROOT / "packaging" / template).read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        target.write_text(text, encoding="utf-8")


def description(readme, version, repository=REPOSITORY):
    """The README as a package's page shows it: links into the repository are absolute.

    Without an address they become their text, and pictures go, with their captions.
    """
    if not repository:
        readme = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n(<sub>.*?</sub>\n\n)?", "", readme, flags=re.MULTILINE | re.DOTALL)

    def link(match):
        image, text, address = match.groups()
        if "://" in address or address.startswith("#"):
            return match[0]
        page = f"{repository}/{'raw' if image else 'blob'}/v{version}/{address}"
        return f"{image}[{text}]({page})" if repository else text

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, readme)


def project_urls(repository=REPOSITORY):
    pages = {
        "Source": "",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Documentation": "/tree/main/docs",
    }
    return {name: repository + page for name, page in pages.items()} if repository else {}


def build_folder():
    return ROOT / "build" / f"ninja-{sysconfig.get_platform()}-{sys.implementation.cache_tag}"


class NinjaBuild(build_ext):
    """Builds in ``build/ninja-<platform>-<python>``, whatever command asked, so that every build is incremental."""

    def build_extension(self, ext):
        folder = build_folder()
        folder.mkdir(parents=True, exist_ok=True)
        module = self.write_ninja(folder)
        command = [*ninja_command(), "-C", str(folder)]
        if subprocess.run(command).returncode:
            raise SystemExit(f"the build failed: {shlex.join(command)}")
        target = Path(self.get_ext_fullpath(ext.name))
        replace(target.parent / LIBRARY, folder / LIBRARY)
        replace(target, folder / module)
        write_configuration(target.parent / LIBRARY, target.parent / "include", self.distribution.metadata)

    def copy_extensions_to_source(self):
        """For ``--inplace`` and editable installs: setuptools knows of the module alone."""
        super().copy_extensions_to_source()
        (module,) = self.extensions
        built = Path(self.build_lib, self.get_ext_filename(module.name)).parent
        library = ROOT / "specdec_kernels" / LIBRARY
        replace(library, built / LIBRARY)
        write_configuration(library, CSRC / "include", self.distribution.metadata)

    def write_ninja(self, folder):
        import pybind11

        cxx = shlex.split(os.environ.get("CXX", "g++"))
        nvcc, reason = cuda_toolkit()
        archs = cuda_archs(nvcc) if nvcc else []
        chosen, others = isas(cxx)
        info = {
            "compiler": first_line([*cxx, "--version"]),
            "flags": shlex.join(CXX_FLAGS),
            "machine": MACHINE,
            "isas": chosen,
            "pybind11": pybind11.__version__,
            "cuda": subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
            if nvcc
            else None,
            "cuda_archs": archs,
            "cuda_reason": reason,
        }
        cache = compiler_cache(cxx[0])
        through = f" through {cache[0]}" if cache else ""
        without = f", without {', '.join(others)} (SPECDEC_ISAS=all builds all)" if others else ""
        say(f"C++ by {info['compiler']}{through}, instruction sets {', '.join(chosen)}{without}")
        say(f"CUDA for {', '.join(archs)} ({reason})" if nvcc else f"without CUDA ({reason})")
        write_if_changed(
            folder / "specdec_build_info.h",
            f'#pragma once\n#define SPECDEC_BUILD_INFO R"json({json.dumps(info)})json"\n',
        )

        ninja = NinjaFile(folder)
        ninja.rule("cxx", f"{shlex.join([*cache, *cxx])} -MMD -MF $out.d $flags -c $in -o $out", depfile=True)
        include = ["-I", ninja.seen(CSRC / "include")]
        define = ["-DSPECDEC_WITH_CUDA"] if nvcc else []
        python = ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_paths()["include"], "-I", "."]
        objects = self.compile_cuda(ninja, nvcc, archs, [*define, *include]) if nvcc else []
        objects += self.compile_cpu(ninja, chosen, include, but=[CUDA_FOR_C] if nvcc else [])
        linker = f"{shlex.quote(nvcc)} -cudart static" if nvcc else shlex.join(cxx)
        through = ["-Xcompiler"] if nvcc else []
        ninja.rule("library", f"{linker} -shared $flags $in -o $out")
        # Its threads run its code for ever, so it is never unloaded. macOS has no option for that.
        asked = ["--no-undefined", f"-soname={LIBRARY.name}", "-z", "nodelete"]
        if MACOS:
            asked = ["-install_name", f"@rpath/{LIBRARY.name}"]
        linked = [part for flag in asked for part in ("-Xlinker", flag)]
        ninja.build(LIBRARY, "library", objects, [*through, "-pthread", *linked])

        bindings = [path for path in sorted((CSRC / "python").glob("*.cpp")) if nvcc or path.name != "cuda.cpp"]
        flags = [*CXX_FLAGS, *define, *include, *python]
        objects = [ninja.compile("cxx", source, flags, variant=".cuda" if nvcc else "") for source in bindings]
        objects.append("c_api_checks.o")  # direct calls are judged by the same checks
        module = f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
        ninja.rule("module", f"{shlex.join(cxx)} -shared $flags $in -o $out")
        beside = ["@loader_path", "-Wl,-undefined,dynamic_lookup"] if MACOS else ["$ORIGIN"]
        ninja.build(module, "module", [*objects, LIBRARY], [f"-Wl,-rpath,{beside[0]}/{LIBRARY.parent}", *beside[1:]])
        write_if_changed(folder / "build.ninja", str(ninja))
        return module

    @staticmethod
    def compile_cpu(ninja, isas, include, but=()):
        """The C++ of the library for these instruction sets, least capable first, without some files; the objects."""
        objects = []
        for source in (*sorted((CSRC / "c_api").glob("*.cpp")), *CPU_SOURCES):
            if source not in but and (source.parent.name == "c_api" or source.name in COMPILED_ONCE):
                has = [f"-DSPECDEC_HAS_{isa.upper()}" for isa in isas] if source.name == "dispatch.cpp" else []
                objects.append(ninja.compile("cxx", source, [*CXX_FLAGS, *has, *include]))
        for isa in isas:
            flags = [*CXX_FLAGS, *ISA_FLAGS[isa], f"-DSPECDEC_ISA={isa}", *include]
            for source in CPU_SOURCES:
                if source.name not in COMPILED_ONCE:
                    objects.append(ninja.compile("cxx", source, flags, variant=f".{isa}"))
        return objects

    @staticmethod
    def compile_cuda(ninja, nvcc, archs, include):
        """Each .cu once, for all architectures; the objects."""
        # What each kernel takes goes into a file; of the rest warnings and errors are shown.
        command = f"{shlex.join([*compiler_cache(nvcc), nvcc])} -MMD -MF $out.d $flags -c $in -o $out >$out.log 2>&1"
        show = "{ status=$$?; cat $out.log; exit $$status; }; grep -A4 warning $out.log || true"
        ninja.rule("nvcc", f"{command} || {show}", depfile=True)
        flags = [*NVCC_FLAGS, *"--resource-usage -cudart static -Xcompiler -fPIC,-fvisibility=hidden,-Wall".split()]
        for arch in archs:
            number = arch.removesuffix("+PTX")
            flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
            if arch != number:
                flags += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
        # nvcc hands a .cpp to the C++ compiler, and knows where the CUDA headers are.
        sources = (CUDA_FOR_C, *sorted((CSRC / "cuda" / "ops").glob("*.cu")))
        return [ninja.compile("nvcc", source, [*flags, *include], variant=".cuda") for source in sources]


# The import name triton_kernels belongs to another project, so ours is installed inside the package; the headers go
# along as data, for engines in C++. specdec/cuda.cuh names those of csrc/cuda by the way from one folder to the other.
MAPPED = {
    "specdec_kernels.triton_kernels": "triton_kernels",
    "specdec_kernels.include": "csrc/include",
    "specdec_kernels.cuda": "csrc/cuda",
}
EXTENSION = Extension(
    "specdec_kernels._C",
    sources=[str(path.relative_to(ROOT)) for path in (*sorted((CSRC / "python").glob("*.cpp")), *CPU_SOURCES)],
)
if __name__ == "__main__":
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), version),
        long_description_content_type="text/markdown",
        project_urls=project_urls(),
        packages=[*find_packages(ROOT, include=["specdec_kernels*"]), *MAPPED],
        package_dir=MAPPED,
        include_package_data=False,
        ext_modules=[EXTENSION],
        options={"egg_info": {"tag_build": label()}},
        cmdclass={"build_ext": NinjaBuild},
    )

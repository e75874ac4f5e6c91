"""Compiles every CUDA kernel for GPUs that need not be here, and reports its registers, memory and instructions.

    python -m tests.support.cuda_aot sm_90a      the kernels' figures there, as JSON
    python -m tests.support.cuda_aot table       writes the committed table

It needs nvcc, and cuobjdump from the toolkit or from the triton wheel. Compiled files stay under ``build/``; objects of
the package's build are taken from there.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup import CSRC, NVCC_FLAGS, ROOT, build_folder, find_nvcc

TABLE = ROOT / "bench" / "results" / "compiled" / "cuda.json"
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120")
MEMORY = {"LD", "LDG", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG", "LDGSTS"}
BRANCHES = {"BRA", "BRX", "CALL", "EXIT", "RET", "BSSY", "BSYNC", "WARPSYNC"}


def disassembler():
    """The path of cuobjdump, or None."""
    nvcc, _ = find_nvcc()
    wheel = importlib.util.find_spec("triton")
    folders = [Path(nvcc).parent] if nvcc else []
    if wheel:
        folders.append(Path(wheel.origin).parent / "backends" / "nvidia" / "bin")
    return shutil.which("cuobjdump", path=os.pathsep.join(map(str, folders)))


def unavailable():
    """The reason why nothing can be compiled here, or None."""
    nvcc, reason = find_nvcc()
    return reason if not nvcc else None if disassembler() else "no cuobjdump"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout + done.stderr


def compiler():
    return f"nvcc {re.search(r'V([0-9.]+)', run(find_nvcc()[0], '--version'))[1]}"


def name_of(mangled):
    name = run("c++filt", mangled)
    return re.search(r"(\w+_kernel(<[^(]*>)?)\(", re.sub(r"specdec::cuda::|_GLOBAL__N_\w+::", "", name))[1]


def resources(log):
    """mangled name -> the resources that ptxas reports."""
    for part in log.split("Compiling entry function ")[1:]:
        shared = re.search(r"(\d+) bytes smem", part)
        yield (
            part.split("'")[1],
            {
                "registers": int(re.search(r"Used (\d+) registers", part)[1]),
                "spill_bytes": sum(int(found) for found in re.findall(r"(\d+) bytes spill", part)),
                "stack_bytes": int(re.search(r"(\d+) bytes stack frame", part)[1]),
                "shared_bytes": int(shared[1]) if shared else 0,
            },
        )


# Address, predicate, name and operands.
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\d+ +)?([A-Z][\w.]*)\s*([^;]*);")


def instructions_of(sass):
    return [name for _, _, name, _ in LINE.findall(sass)]


def runs(sass, bits):
    """Loads of so many bits from global memory, by runs that are in flight at once: (all of them, those that stream).

    A run ends where one of them is waited for, where control leaves, and where it may come from elsewhere. A branch
    that is not taken waits for nothing.
    """
    together, streamed, waited = [0], [0], set()
    targets = set(re.findall(r"(?:BRA|BSSY)\S* .*?0x0*([0-9a-f]+) ;", sass))
    for address, condition, name, operands in LINE.findall(sass):
        kind, *modifiers = name.split(".")
        widths = {"U8", "S8", "U16", "S16", "64", "128"}.intersection(modifiers) or {"32"}
        is_load = kind in ("LDG", "LD") and widths == {str(bits)} and "STRONG" not in modifiers
        used = re.findall(r"\bR\d+", operands)
        leaves = kind in BRANCHES and not (kind == "BRA" and condition)
        if leaves or address.lstrip("0") in targets or waited.intersection(used[is_load:]):
            together.append(0)
            streamed.append(0)
            waited = set()
        if is_load:
            together[-1] += 1
            streamed[-1] += "NA" in modifiers  # load_stream: not stored in the L1 cache
            first = int(used[0][1:])
            waited |= {f"R{first + i}" for i in range(bits // 32)}
    return together, streamed


def loads(sass):
    """The 16-byte loads from global memory, and how many are in flight at once: the most, and the fewest that stream.

    A row's end and its middle are streamed by different loads, so the fewest are those of the slower path. Rows that do
    not start on 16 bytes are loaded by words.
    """
    together, streamed = runs(sass, 128)
    return {
        "loads_of_16": sum(together),
        "loads_together": max(together),
        "fewest_together": min(filter(None, streamed), default=0),
        "words_together": max(runs(sass, 32)[0]),
    }


def order(instructions):
    """The instructions that order blocks: fences, loads and atomics at other blocks' scope, invalidated caches."""
    return {
        "fences": sum(instruction.startswith(("MEMBAR", "FENCE")) for instruction in instructions),
        "strong": sum("STRONG" in instruction for instruction in instructions),
        "emptied_caches": sum(instruction.startswith("CCTL.IVALL") for instruction in instructions),
    }


def touches_early(instructions):
    """Whether a kernel that waits for the one before it (ACQBULK) touches memory before that."""
    before = instructions[: instructions.index("ACQBULK")] if "ACQBULK" in instructions else []
    return any(instruction.split(".")[0] in MEMORY for instruction in before)


def before_loops(ptx):
    """Kernels in which a row's load stands before a loop, in one run with the loop's beginning.

    The compiler moved such a load past its guard inside of the loop.
    """
    found = set()
    for entry in ptx.split(".entry ")[1:]:
        lines = [line.strip() for line in entry.splitlines()]
        place = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\$\w+:", line)}
        branches = ((i, re.search(r"\bbra\S*\s+(\$\w+);", line)) for i, line in enumerate(lines))
        for first in {place[to[1]] for i, to in branches if to and place[to[1]] < i}:
            for line in reversed(lines[:first]):
                if line[:-1] in place or re.search(r"\b(bra|ret)\b", line):
                    break
                if line.startswith("ld.global.nc.L1::no_allocate"):  # load_stream
                    found.add(name_of(re.match(r"\w+", entry)[0]))
    return found


def rows_of(source, arch, log, binary):
    """A row for each kernel of a file, from ptxas' report and from the instructions."""
    taken = dict(resources(log))
    rows = []
    for text in run(disassembler(), "-sass", binary).split("Function : ")[1:]:
        name = text.split()[0]
        row = {"op": source.stem, "kernel": name_of(name), "arch": arch, **taken[name]}
        instructions = instructions_of(text)
        if touches_early(instructions):
            raise RuntimeError(f"{row['kernel']} touches memory before it waits for the kernel before it")
        rows.append({**row, **loads(text), **order(instructions), "compiler": compiler()})
    return sorted(rows, key=lambda row: row["kernel"])


def compiled(source, arch):
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernels.cubin")
        flags = [*NVCC_FLAGS, "-I", CSRC / "include", "--resource-usage", f"-arch={arch}", "-cubin"]
        return rows_of(source, arch, run(find_nvcc()[0], *flags, source, "-o", cubin), cubin)


def object_of(source):
    """The object of a file in the package's build; None if a source is newer."""
    binary = build_folder() / f"ops_{source.stem}.cuda.o"
    newest = max(path.stat().st_mtime for path in texts())
    return binary if binary.exists() and binary.stat().st_mtime > newest else None


def ptx_of(source):
    """The PTX of the package's build for sm_90a, or None."""
    binary = object_of(source)
    text = run(disassembler(), "-ptx", binary) if binary else ""
    return text if f"arch = {ARCHS[1]}" in text else None


def built(source, arch):
    """The result of `compiled`, from the package's build if that has this architecture alone."""
    import specdec_kernels

    binary = object_of(source)
    archs = [arch.removesuffix("+PTX") for arch in specdec_kernels.build_info()["cuda_archs"]]
    if archs != [arch.removeprefix("sm_")] or binary is None:
        return None
    return rows_of(source, arch, binary.with_suffix(".o.log").read_text(), binary)


def texts():
    folders = [CSRC / "cuda", CSRC / "include" / "specdec"]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def digest():
    """The hash of all that could change a figure."""
    h = hashlib.sha256(" ".join([*NVCC_FLAGS, compiler(), Path(__file__).read_text()]).encode())
    for path in texts():
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:16]


def report(arch):
    """A row for each kernel, compiled or from the cache."""
    cache = ROOT / "build" / "compiled" / f"{digest()}-{arch}.json"
    if not cache.exists():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = sorted((CSRC / "cuda" / "ops").glob("*.cu"))
            found = pool.map(lambda source: built(source, arch) or compiled(source, arch), sources)
            rows = [row for rows in found for row in rows]
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = cache.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(rows))
        fresh.replace(cache)
    return json.loads(cache.read_text())


def write_table():
    rows = [row for arch in ARCHS for row in report(arch)]
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    TABLE.write_text(f"[\n{lines}\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("table", *ARCHS))
    what = parser.parse_args().what
    if reason := unavailable():
        parser.error(f"nothing can be compiled here: {reason}")
    if what == "table":
        write_table()
    else:
        print(json.dumps(report(what)))


if __name__ == "__main__":
    main()

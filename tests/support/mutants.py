"""Draws mutants, plants them in a copy of the tree, and says which test kills each.

    python -m tests.support.mutants                             how many there are, by folder and operator
    python -m tests.support.mutants --list --in csrc/cpu/race   their addresses
    python -m tests.support.mutants --try 100 --seed 1          draws as many over all folders; a line of JSON each
    python -m tests.support.mutants --only ADDRESS...           tries these

`mutators.py` says what a mutant and its address are. `survivors.txt` has those that no test can kill, and why, and
those that none kills yet. A mutant that the compiler refuses is left out.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.mutators import mutants_of
from tests.support.planting import BUILDS, ROOT, UNSOUND, VARIABLE, Change, build, make_tree, number_of, plant

FOLDERS = (
    "csrc/include/specdec",
    "csrc/cpu",
    "csrc/cuda",
    "csrc/c_api/checks.cpp",
    "csrc/python/direct.cpp",
    "csrc/python/reading.cpp",
    "csrc/python/values.cpp",
    "triton_kernels",
    "specdec_kernels/ops",
    "specdec_kernels/calls",
    "specdec_kernels/backends/reference",
    "specdec_kernels/sharded",
)
SURVIVORS = Path(__file__).with_name("survivors.txt")
LONGEST = 15  # seconds of the processor for one test; of doing nothing, too


# Of tests of ops: those that take seconds each.
LONG = (
    "Frequency ManyDraws thousand many_children several_rounds compiles watches every_op long_row many_tiles wide_rows"
)


def ops(names, backend):
    without = {"cpu": "reference cuda triton", "reference": "cpu cuda triton", "both": "cuda triton"}.get(backend)
    if without:  # so tests that are about no backend run, too
        backend = " and ".join(f"not {word}" for word in without.split())
    quick = " and ".join(f"not {word}" for word in LONG.split())
    return f"{' '.join(f'tests/ops/test_{name}.py' for name in names.split())} -k '({backend}) and {quick}'"


# What decides a file's mutants, by the beginning of its name: one set of tests after another. `{op}` stands for all
# tests of ops whose names begin as the file's does. The first line that fits counts.
RANDOM = "tests/backends/test_random_calls.py tests/ops/test_small_calls.py -k 'OracleCpu or (few and cpu)'"
BOUNDS = "tests/backends/test_cpu_bounds.py tests/backends/test_bounds.py"
CHAINS = "verify_chain verify chain_laws"
TREES = "verify_tree verify parents traversal tree_laws"
WALKS = f"{CHAINS} {TREES}"
FORMS = "paths traversal_laws verify_linked_tree output_format status bonus row_seeds input_rows"
LAWS = "sampling cutoff logprobs filters"
HEADERS = (
    ops(f"{{op}} race_sample race_topk residual residual_sums overlap {LAWS}", "cpu"), ops(WALKS, "cpu"), BOUNDS,
    RANDOM, ops(f"{FORMS} residual_race", "cpu"),
)  # fmt: skip
CPU = {
    "csrc/include/specdec/c/": (
        ops("verify_chain sampling compact_kv tree_mask", "cpu"), ops(f"{FORMS} offsets logprobs", "cpu"),
    ),
    "csrc/include/specdec/link": (ops("tree_parents verify_linked_tree", "cpu"),),
    "csrc/include/specdec/optimal": (
        "tests/ops/test_trees.py tests/theory/test_trees.py", "tests/generate/test_trees.py",
    ),
    "csrc/include/specdec/part": (ops("race_sample race_topk residual_race residual_sums", "cpu"), ops(WALKS, "cpu")),
    "csrc/include/specdec/walk_tables": (ops("walk_tables", "cpu"), "tests/sharded/test_rejection.py -k cpu"),
    "csrc/include/": HEADERS,
    "csrc/cpu/ops/": (ops("{op}", "cpu"), RANDOM, ops("rows parents request_index shared_rows threads", "cpu")),
    "csrc/cpu/race/": (
        ops("race_sample race_topk residual_race verify_chain draft_map", "cpu"), BOUNDS, RANDOM,
        ops("shared_rows", "cpu") + " tests/backends/test_sizes.py",
    ),
    "csrc/cpu/rows/edit": (ops("edits", "cpu"), "tests/backends/test_cpu_edits.py", RANDOM),
    "csrc/cpu/rows/": (*HEADERS, ops("shared_rows offsets", "cpu"), "tests/backends/test_sizes.py -k cpu"),
    "csrc/cpu/walk/": HEADERS[1:],
    "csrc/cpu/simd": HEADERS,
    "csrc/cpu/": ("tests/backends/test_cpu_threads.py tests/backends/test_cores.py", ops("threads shared_rows", "cpu")),
    "csrc/python/": (
        ops("direct bad_input", "both"), ops("numbers outputs draft_map output_format", "cpu"),
    ),
    "csrc/c_api/": (
        "tests/backends/test_c_api.py -k '(mistake or every_size) and not cuda'", ops("bad_input direct", "cpu"),
    ),
}  # fmt: skip
NAMES = ("chains", "edges", "filters", "order", "trees")
CUDA_CHAINS, EDGES, FILTERS_CUDA, ORDER, CUDA_TREES = (f"tests/backends/test_cuda_{name}.py" for name in NAMES)
RANDOM_CUDA = "tests/backends/test_random_calls.py -k 'OracleCuda or PlayedMachine'"
CUDA = {
    "csrc/cuda/ops/tree_positions": (ops("tree_positions parents", "cuda-host"),),
    "csrc/cuda/ops/verify_chain": (ops(CHAINS, "cuda-host"), CUDA_CHAINS, RANDOM_CUDA),
    "csrc/cuda/ops/": (ops("{op} rows", "cuda-host"), EDGES, RANDOM_CUDA),
    "csrc/cuda/rows/cut": (ops("cutoff filters", "cuda-host"), FILTERS_CUDA, CUDA_CHAINS, RANDOM_CUDA),
    "csrc/cuda/rows/edit": (ops("edits", "cuda-host"), FILTERS_CUDA, RANDOM_CUDA),
    "csrc/cuda/rows/": (
        ops("race_sample residual cutoff edits verify_chain", "cuda-host"), EDGES, CUDA_CHAINS, RANDOM_CUDA,
    ),
    "csrc/cuda/team/launch": ("tests/backends/test_cuda_ops.py -k 'Launch or odd or teams'", RANDOM_CUDA),
    "csrc/cuda/team/": (ops("race_sample race_topk residual verify_tree", "cuda-host"), EDGES, ORDER, RANDOM_CUDA),
    "csrc/cuda/chain/filtered": (CUDA_CHAINS, RANDOM_CUDA, ORDER),
    "csrc/cuda/chain/": (ops("verify_chain", "cuda-host"), RANDOM_CUDA, ORDER, CUDA_CHAINS),
    "csrc/cuda/tree/": (ops("verify_chain verify_tree verify traversal paths", "cuda-host"), CUDA_TREES, RANDOM_CUDA),
    "csrc/cuda/": (ops("race_sample", "cuda-host"), EDGES, "tests/backends/test_cuda_backend.py"),
}  # fmt: skip
PARTS = "residual_sums residual_race mass_tiles tile_laws count_at_least token_logits walk_tables first_arrivals"
HERE = "-k 'not cuda and not triton'"
TRITON = "tests/backends/test_triton_{}.py"
MACHINE, RANDOM_TRITON = TRITON.format("machine"), "tests/backends/test_random_calls.py -k OtherBackends"
PYTHON = {
    "triton_kernels/_edits": (ops("edits", "triton"), RANDOM_TRITON, TRITON.format("ops")),
    "triton_kernels/_cuts": (ops("cutoff filters", "triton"), RANDOM_TRITON, TRITON.format("ops")),
    "triton_kernels/_filter": (ops("cutoff filters", "triton"), RANDOM_TRITON, TRITON.format("ops")),
    "triton_kernels/_tr": (ops(TREES, "triton"), TRITON.format("trees"), RANDOM_TRITON),
    **dict.fromkeys(
        ("triton_kernels/_scan_tree", "triton_kernels/_sample_tree"),
        (ops(f"{TREES} paths", "triton"), TRITON.format("trees"), RANDOM_TRITON),
    ),
    "triton_kernels/_block_chain": (ops("verify_chain traversal_laws", "triton"), TRITON.format("ops"), RANDOM_TRITON),
    "triton_kernels/_paths": (ops("paths", "triton"), RANDOM_TRITON),
    "triton_kernels/_children": (ops("verify_tree verify_linked_tree paths", "triton"), TRITON.format("trees")),
    "triton_kernels/_la": (ops("race_sample sampling", "triton"), TRITON.format("launch"), RANDOM_TRITON),
    "triton_kernels/_math": (TRITON.format("math"), ops("race_sample residual verify_chain", "triton")),
    "triton_kernels/_": (
        ops("race_sample verify_chain residual", "triton"), RANDOM_TRITON, TRITON.format("ops"), MACHINE,
    ),
    "triton_kernels/tree_positions": (ops("tree_positions parents", "triton"),),
    "triton_kernels/": (ops("{op} rows", "triton"), RANDOM_TRITON, TRITON.format("ops"), MACHINE),
    "specdec_kernels/ops/": (
        ops("{op} overlap parents", "both"), ops("bad_input direct registration draft_map output_format", "both"),
        ops(LAWS, "both"),
    ),
    "specdec_kernels/calls/": (
        ops("bad_input registration direct", "both"),
        ops("numbers outputs sampling noise check_logits", "both"), "tests/package/test_types.py",
    ),
    "specdec_kernels/backends/reference/": (
        ops(f"{{op}} rows parents {LAWS} residual", "reference"), ops(f"{WALKS} registration", "reference"),
        ops(f"{FORMS} overlap mass_tiles request_index compact_kv", "reference"), ops(f"{{op}} {LAWS} {TREES}", "cpu"),
    ),
    "specdec_kernels/sharded/_parts": (
        ops(PARTS, "both"), ops("bad_input", "both"),
        f"tests/sharded/test_rejection.py tests/sharded/test_races.py {HERE}",
    ),
    "specdec_kernels/sharded/": (
        f"tests/sharded/{{op}} {HERE}",
        f"tests/sharded/test_rejection.py {HERE}", f"tests/sharded/test_races.py tests/sharded/test_trees.py {HERE}",
        f"tests/sharded/test_filters.py tests/sharded/test_check_logits.py tests/sharded/test_writes.py {HERE}",
    ),
}  # fmt: skip


def tests_of(file):
    """One set of tests after another: the arguments of pytest."""
    table = PYTHON if file.endswith(".py") else CUDA if file.startswith("csrc/cuda/") else CPU
    sets = next(sets for begin, sets in table.items() if file.startswith(begin))
    for folder, name in (("tests/ops", "test_{op}.py"), ("tests/sharded", "{op}")):
        paths = (ROOT / folder).glob(f"test_{Path(file).stem.strip('_')}*.py")
        about = " ".join(path.relative_to(ROOT).as_posix() for path in paths)
        sets = [tests.replace(f"{folder}/{name}", about) for tests in sets]
    sets = [*sets, *["tests/ops/test_small_calls.py -k 'few and cpu'"] * ("backends/reference/" in file)]
    stages = [" ".join(each for each in tests.split(" ") if is_there(each)) for tests in sets]
    return [tests for tests in stages if "tests/" in tests]


def is_there(argument):
    return not argument.startswith("tests/") or (ROOT / argument).exists()


def all_mutants(folders=FOLDERS):
    """folder -> address -> mutant."""
    found = {}
    for folder in folders:
        top = ROOT / folder
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in files:
            if path.suffix in (".h", ".cuh", ".cpp", ".cu", ".py"):
                found.setdefault(folder, {}).update(mutants_of(path.relative_to(ROOT).as_posix(), path.read_text()))
    return found


def survivors():
    """address -> (kind, why): kind is "equivalent" or "gap"."""
    found = {}
    for line in SURVIVORS.read_text().splitlines()[1:]:
        kind, address, why = line.split(maxsplit=2)
        head, _, numbers = address.rpartition(":")
        for first, last in re.findall(r"(\d+)-?(\d*)", numbers):
            found |= {f"{head}:{number}": (kind, why) for number in range(int(first), int(last or first) + 1)}
    return found


def draw(number, seed, folders):
    """Addresses: as many of each folder, and there of each operator, as far as there are."""
    rng, known, drawn = random.Random(seed), survivors(), {}
    for i, mutants in enumerate(all_mutants(folders).values()):
        queues = collections.defaultdict(list)
        for mutant in mutants.values():
            if known.get(mutant.address, ("",))[0] != "equivalent":
                queues[mutant.operator].append(mutant)
        for queue in queues.values():
            rng.shuffle(queue)
        share = number * (i + 1) // len(folders) - number * i // len(folders)
        turns = [queue[k] for k in range(share) for queue in queues.values() if k < len(queue)]
        drawn |= {mutant.address: mutant for mutant in turns[:share]}
    return drawn


# ---- what compiles ---------------------------------------------------------------------------------------------------


def syntax_commands(kind):
    """Commands that compile each source of a kind, and write nothing."""
    import pybind11

    from setup import COMPILED_ONCE, CPU_SOURCES, CSRC, CXX_FLAGS, ISA_FLAGS, isas
    from tests.backends.host_cuda.build import FLAGS, KERNELS, include_flags

    compiler = [os.environ.get("CXX", "g++"), "-fsyntax-only", "-w", "-fdiagnostics-color=never"]
    if kind == "cuda":
        return [[*compiler, *FLAGS, *include_flags(), "-x", "c++", str(path)] for path in KERNELS]
    include = ["-I", str(CSRC / "include")]
    python = ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_paths()["include"]]
    alone = [CSRC / "c_api" / "checks.cpp", CSRC / "c_api" / "cpu.cpp"]
    alone += [CSRC / "python" / f"{name}.cpp" for name in ("direct", "reading", "values")]
    commands = [[*compiler, *CXX_FLAGS, *include, *python, str(path)] for path in alone]
    for isa in isas(compiler[:1])[0]:
        own = [*compiler, *CXX_FLAGS, *ISA_FLAGS[isa], f"-DSPECDEC_ISA={isa}", *include]
        commands += [[*own, str(path)] for path in CPU_SOURCES if isa == "scalar" or path.name not in COMPILED_ONCE]
    return commands


def refused(output, tree, changes):
    """The changes that a compiler's errors are about: by the lines that they have in the tree's sources."""
    numbers = {number_of(name): name for name in changes}
    lines, blamed = {}, set()

    def numbers_at(file, line):
        path = tree / file
        if path not in lines:
            lines[path] = {}
            text = path.read_text().partition("#line 1\n")[2] if path.exists() else ""
            for match in re.finditer(rf"{VARIABLE}\((\d+)\)(?:[^\n]*)\n", text):
                name = numbers[int(match[1])]
                first = text.count("\n", 0, match.start()) + 1
                for k in range(first, first + changes[name].other.count("\n") + 2):
                    lines[path].setdefault(k, set()).add(name)
        return lines[path].get(line, set())

    for error in re.split(r"(?m)^(?=In file included|\S+: In )", output):
        if ": error: " not in error and ": fatal" not in error:
            continue
        places = re.findall(r"(?m)^(?:\S*/)?((?:csrc|tests)/\S+?):(\d+):\d+: (?:error|  )", error)
        places += re.findall(r"((?:csrc|tests)/[^\s:]+):(\d+)[:,]\d*", error)
        blamed |= next(filter(None, (numbers_at(file, int(line)) for file, line in places)), set())
        if not blamed:  # a declaration was left out: the change before
            near = [(lines[tree / file], int(line)) for file, line in places]
            blamed |= next(
                (each[max(k for k in each if k < line)] for each, line in near if min(each, default=line) < line), set()
            )
    return blamed


def compiled(kind, changes, name):
    """A tree with those changes that compile, built; and these changes."""
    changes, commands = dict(changes), None
    while True:
        tree = make_tree(kind, changes, name=name)
        if kind not in BUILDS:
            return tree, changes
        if commands is None:
            inside = ROOT.as_posix() + "/"
            commands = [[word.replace(inside, f"{tree}/") for word in command] for command in syntax_commands(kind)]
        run = functools.partial(subprocess.run, cwd=tree, capture_output=True, text=True)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            outputs = [done.stderr for done in pool.map(run, commands)]
        commands = [command for command, output in zip(commands, outputs, strict=True) if output]
        output = "".join(outputs) if commands else build(kind, tree)
        if not output:
            return tree, changes
        blamed = refused(output, tree, changes)
        if not blamed:
            raise RuntimeError(output[-6000:])
        print(f"{kind}: {len(blamed)} do not compile", file=sys.stderr, flush=True)
        changes = {key: change for key, change in changes.items() if key not in blamed}


# ---- trying ----------------------------------------------------------------------------------------------------------


def attempt(mutants, suffix=""):
    """Yields each mutant with what became of it, "killed", "time", "survived" or "not compiled"; the test; seconds. If
    the test fails without the mutant, too, "unsound" comes after the first."""
    stages = {address: tests_of(address.partition(":")[0]) for address in mutants}
    by_kind = collections.defaultdict(dict)
    for address, mutant in mutants.items():
        file = address.partition(":")[0]
        change = Change(file, mutant.start, mutant.stop, mutant.other, mutant.form, stages[address][0])
        by_kind["python" if file.endswith(".py") else "cuda" if file.startswith("csrc/cuda/") else "cpu"][address] = (
            change
        )
    for kind, changes in by_kind.items():
        tree, left = compiled(kind, changes, f"mutants-{kind}{suffix}")
        for address in changes.keys() - left.keys():
            yield mutants[address], "not compiled", None, 0
        spent = collections.Counter()
        for stage in range(max(map(len, stages.values()))):
            asked = {a: c._replace(tests=stages[a][stage]) for a, c in left.items() if stage < len(stages[a])}
            for address, seen in tried(asked, tree):
                spent[address] += seen.seconds
                if seen.wrong == UNSOUND:
                    yield mutants[address], "unsound", seen.test, spent[address]
                elif seen.test:
                    del left[address]
                    yield mutants[address], "time" if seen.wrong == "time" else "killed", seen.test, spent[address]
        for address in left:
            yield mutants[address], "survived", None, spent[address]


def tried(changes, tree):
    """As planting.plant, each change in a process that has the package. What only an import runs has one of its own."""
    again = {}
    for address, seen in plant(changes, tree, fresh=False, longest=LONGEST) if changes else ():
        if seen.wrong == "import":
            again[address] = changes[address]
        elif seen.test is None and seen.wrong:
            raise RuntimeError(f"{address}: {changes[address].tests}: {seen.wrong}")
        else:
            yield address, seen
    yield from plant(again, tree, longest=LONGEST) if again else ()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", type=int, dest="number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in", action="append", dest="folders")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--copy", default="", help="ending of the copy's name: each run beside others needs its own")
    options = parser.parse_args()
    folders = options.folders or FOLDERS
    if options.only:
        files = dict.fromkeys(address.partition(":")[0] for address in options.only)
        every = {address: mutant for mutants in all_mutants(files).values() for address, mutant in mutants.items()}
        chosen = {address: every[address] for address in options.only}
    elif options.number:
        chosen = draw(options.number, options.seed, folders)
    else:
        for folder, mutants in all_mutants(folders).items():
            counts = collections.Counter(mutant.operator for mutant in mutants.values())
            print(folder, len(mutants), dict(sorted(counts.items())))
            for mutant in mutants.values() if options.list else ():
                print(f"{mutant.address}  {mutant.shown}")
        return
    for mutant, outcome, test, seconds in attempt(chosen, options.copy):
        row = {"mutant": mutant.address, "change": mutant.shown, "outcome": outcome, "test": test}
        print(json.dumps(row | {"seconds": round(seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()

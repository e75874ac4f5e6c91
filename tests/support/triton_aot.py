"""Compiles every Triton kernel ahead of time, as calls do, for GPUs that need not be here.

    python -m tests.support.triton_aot sm_90               the resources of each kernel, as JSON
    python -m tests.support.triton_aot ir                  every kernel, after the compiler's front end
    python -m tests.support.triton_aot specialisations     how many programs calls of all shapes would compile
    python -m tests.support.triton_aot unusual             the resources on sm_90 of calls with all optional arguments
    python -m tests.support.triton_aot table               writes the committed table
    python -m tests.support.triton_aot newest              writes that of another Triton: sm_90, bfloat16 logits

Run without TRITON_INTERPRET, which leaves nothing to compile.
"""

import argparse
import contextlib
import io
import json
import re
from pathlib import Path

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.code_generator import CodeGenerator
from triton.runtime.jit import create_function_from_signature

from specdec_kernels import LogitEdits, backend, backends, triton_kernels
from specdec_kernels.calls.kinds import Group
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import ALLOWED_BY_ROW, FILTERED, Edit, Law, Noise
from specdec_kernels.ops.cutoff import Cut
from tests.support import triton_order
from tests.support.calls import every_call

TABLE = Path(__file__).parents[2] / "bench" / "results" / "compiled" / "triton.json"
NEWEST = TABLE.with_name("triton_newest.json")
ARCHS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
VOCABULARY = 128_256
SPACES = ("logits", "probs")
# Kernels that are compiled anew for each method of verification.
STEPS = (
    "race_chain",
    "scan_chain",
    "accept_block",
    "sample_chain",
    "race_tree",
    "scan_tree",
    "accept_tree",
    "sample_tree",
)
SUMS = ("accept", "tv", "kl", "harmonic")

triton.knobs.nvidia.dump_ptxas_log = True
triton.knobs.compilation.always_compile = True  # a cached program has no log
visit_return = CodeGenerator.visit_Return


def returned(generator, node):
    """Raise where Triton 3.6 does: for a function that returns a None, in a tuple too."""

    def has_none(kind):
        return any(map(has_none, kind.types)) if isinstance(kind, tl.tuple_type) else kind == tl.constexpr_type(None)

    visit_return(generator, node)
    if node.value is not None and hasattr(generator, "return_vals") and has_none(generator.return_vals[-1].type):
        raise TypeError("a None is returned, which Triton 3.6 cannot do")


CodeGenerator.visit_Return = returned


def recorded(call):
    """The launches of a call: (kernel, warps, arguments)."""
    launches = []

    def record(kernel, grid, num_warps, arguments):
        launches.append((kernel, num_warps, arguments))

    launch, on_device = _launch.launch, _launch.on_device
    _launch.launch, _launch.on_device = record, lambda tensor: contextlib.nullcontext()
    try:
        call()
    finally:
        _launch.launch, _launch.on_device = launch, on_device
    return launches


def specialised(kernel, num_warps, arguments, target):
    """(options, signature, constants, attributes) that Triton's launch would choose."""
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    keywords = {"num_warps": num_warps, "debug": False, **_launch.options_of(kernel, arguments, target.backend)}
    bound, specialization, options = bind(**_launch.seen_by_triton(arguments), **keywords)
    return kernel._pack_args(backend, options, bound, specialization, options)


def compiled(kernel, num_warps, arguments, target):
    """(program, ptxas' report)."""
    options, signature, constants, attributes = specialised(kernel, num_warps, arguments, target)
    with contextlib.redirect_stdout(io.StringIO()) as log:
        program = triton.compile(
            ASTSource(kernel, signature, constants, attributes), target=target, options=options.__dict__
        )  # fmt: skip
    return program, log.getvalue()


def read(kernel, num_warps, arguments, target):
    """The front end, which fails where a kernel is wrong: its source becomes Triton's IR. A tenth of the time."""
    options, signature, constants, attributes = specialised(kernel, num_warps, arguments, target)
    chosen, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    chosen.load_dialects(context)
    source = ASTSource(kernel, signature, constants, attributes)
    functions = chosen.get_codegen_implementation(options), chosen.get_module_map()
    return source.make_ir(target, options, *functions, context)


def figures(program, log, target):
    """(registers a thread, spilled bytes a thread, shared bytes a block)."""
    if target.backend == "hip":
        text = program.asm["amdgcn"]
        registers, spilled = (int(re.search(rf"\.vgpr_{name}:\s+(\d+)", text)[1]) for name in ("count", "spill_count"))
        return registers, 4 * spilled, program.metadata.shared
    spilled = sum(int(found) for found in re.findall(r"(\d+) bytes spill", log))
    return int(re.search(r"Used (\d+) registers", log)[1]), spilled, program.metadata.shared


def calls(dtype, space, vocabulary, requests=2, drafts=4, number=None):
    """Every op, with per-request tensors where they lead to more code, or one ``number`` for all."""
    shown = set()
    for name, call in chosen_calls(dtype, space, vocabulary, requests, drafts, number):
        shown.add(name.split(",")[0])
        yield name, call
    if dtype == torch.bfloat16:  # the other ops read no rows of the vocabulary
        yield from other_calls(shown, requests, number)


def other_calls(shown, requests, number):
    """The ops that are not ``shown``, each as its test calls it first; tensors repeated for more requests.

    Their calls that are named "edited" or "cut", too: kernels have more code then.
    """
    chosen = set(shown)
    backends.register("triton-recorded", triton_kernels, ("cpu",))
    for named, (function, arguments) in every_call().items():
        name = function.__name__
        if name not in chosen and named.endswith((", edited", ", cut")):
            name = named
        if name in shown:
            continue
        shown.add(name)
        kinds = OPS[function.__name__].arguments.items()
        of_a_range = ("num", "prefix_len")
        counters = {
            part for part, kind in kinds if kind.role == "number" and kind.type == "SymInt" and part not in of_a_range
        }
        counters |= {
            part for _, kind in kinds if kind.role == "noise" and isinstance(kind, Group) for part in Noise._fields
        }
        if name == "verify_linked_tree":  # not all requests may have the same noise
            counters.remove("seed")

        def other(part, value, counters=counters):
            if isinstance(value, (LogitEdits, Cut)):
                return type(value)(*(other(part, x) for x in value))
            if not isinstance(value, torch.Tensor):
                return value
            return number if part in counters and number is not None else torch.cat([value] * requests)

        def call(function=function, arguments=arguments, other=other):
            with backend("triton-recorded"):
                function(**{part: other(part, value) for part, value in arguments.items()})

        yield name, call


def chosen_calls(dtype, space, vocabulary, requests, drafts, number):
    """Calls whose sizes and types decide what is compiled."""
    target = torch.empty(requests, drafts + 1, vocabulary, dtype=dtype)
    draft = torch.empty(requests, drafts, vocabulary, dtype=dtype)
    head = target[:, :drafts]
    seed = torch.zeros(requests, dtype=torch.int64) if number is None else number
    row_seed = torch.zeros(requests, drafts, dtype=torch.int64) if number is None else number
    temperature = torch.ones(requests)
    row_temperature = temperature[:, None].expand(requests, drafts)
    tokens = torch.zeros(requests, drafts + 1, dtype=torch.int64)
    draft_tokens = tokens[:, :drafts]
    counts = torch.zeros(2, requests, dtype=torch.int32)
    row_tokens = torch.zeros(requests, drafts, 4, dtype=torch.int64)
    figures = torch.zeros(4, requests * drafts)
    probs = torch.empty(requests, drafts, vocabulary)
    parents, path = tokens.clone(), tokens.int()
    whole_draft = torch.empty_like(target)

    noise, row_noise = Noise(seed, seed, seed), Noise(row_seed, row_seed, row_seed)

    def run(op, **given):
        return made(op, **given)[1]()

    def laws(temperature):
        return {"target_law": Law(space, temperature), "draft_law": Law(space, temperature)}

    def everything(*places):
        """An Edit of lists for each of these places, and a mask for each row."""
        words, lists = -(-vocabulary // 32), (requests, places[1] if len(places) > 1 else 1)
        numbers = torch.ones(places)
        mask = torch.zeros(*lists, words, dtype=torch.int32)
        allowed = torch.zeros(requests, lists[1] if len(places) > 1 else drafts + 1, words, dtype=torch.int32)
        spans = torch.zeros(*lists, 2, dtype=torch.int32)
        listed = torch.zeros(requests * drafts, dtype=torch.int32)
        pending = torch.zeros(*lists, drafts, dtype=torch.int64)
        counts = torch.empty(*lists, vocabulary, dtype=torch.int32)
        return Edit(
            allowed, listed, listed.float(), spans, numbers, numbers, numbers, mask, mask, counts, pending,
            ALLOWED_BY_ROW,
        )  # fmt: skip

    accepted, status = counts
    verdict = {"tokens": tokens, "num_accepted": accepted, "status": status, "noise": noise, "target": target}

    def chain(method, draft, laws, edits=Edit()):  # noqa: B008
        run("verify_chain", draft_tokens=draft_tokens, draft=draft, method=method, edits=edits, **verdict, **laws)

    def tree(method, draft, laws, edits=Edit(), leaves=None):  # noqa: B008
        shape = {"draft_tokens": tokens, "parents": parents, "path": path, "leaves": leaves}
        run("verify_tree", draft=draft, method=method, edits=edits, **shape, **verdict, **laws)

    def race(op, law, edits=Edit()):  # noqa: B008
        drawn = row_tokens.flatten(0, 1) if op == "race_topk" else row_tokens[..., 0].flatten()
        run(op, rows=head, law=law, edits=edits, noise=row_noise, tokens=drawn)

    one, each = laws(1.0), laws(temperature)
    pair = {"target": head, "draft": draft, **laws(row_temperature)}
    yield "verify_chain, race", lambda: chain("race", None, one)
    yield "verify_chain, rejection", lambda: chain("rejection", draft, each)
    yield "verify_chain, one-hot rejection", lambda: chain("rejection", None, one)
    yield "verify_chain, block", lambda: chain("block", draft, each)
    yield "race_sample", lambda: race("race_sample", Law(space, 1.0))
    yield "race_topk", lambda: race("race_topk", Law(space, 1.0))
    yield "residual", lambda: run("residual", **pair, draft_prob=1.0, probs=probs.flatten(0, 1), mass=figures[0])
    yield "overlap", lambda: run("overlap", **pair, **dict(zip(SUMS, figures, strict=True)))
    if space == "logits":
        top_k = 50 if number is None else number
        rules = Law(space, row_temperature, top_k, row_temperature, row_temperature, 3)
        ids, kept = row_tokens[..., 0].flatten(), counts.flatten()
        cut = {"value": figures[0], "last": ids, "count": kept, "mass": ids, "max": figures[1]}
        yield "cutoff", lambda: run("cutoff", rows=head, law=rules, **cut)
        law = rules._replace(rules=3 | FILTERED)
        yield "race_sample, filtered", lambda: race("race_sample", law)
        whole = Law(space, temperature, top_k, temperature, temperature, 3 | FILTERED)
        both = {"target_law": whole, "draft_law": whole}
        yield "verify_chain, race, filtered", lambda: chain("race", None, both)
        yield (
            "verify_chain, rejection, filtered",
            lambda: chain("rejection", draft, both | {"draft_law": Law(space, 1.0)}),
        )
        yield "race_topk, filtered", lambda: race("race_topk", law)
        yield "verify_tree, race, filtered", lambda: tree("race", None, both)
        yield "verify_tree, rejection, filtered", lambda: tree("rejection", whole_draft, both)
        best = {"top_tokens": row_tokens.flatten(0, 1), "top_logprobs": torch.zeros(requests * drafts, 4)}
        yield "logprobs", lambda: run(
            "logprobs", rows=head, tokens=draft_tokens, law=law, logprob=figures[0], rank=kept, **best
        )  # fmt: skip
    yield "verify_tree, race", lambda: tree("race", None, one)
    yield "verify_tree, rejection", lambda: tree("rejection", whole_draft, each)
    yield "verify_tree, one-hot rejection", lambda: tree("rejection", None, one)
    yield "verify_tree, traversal", lambda: tree("traversal", whole_draft, each)
    yield "verify_tree, one-hot traversal", lambda: tree("traversal", None, one)
    yield "verify_tree, paths", lambda: tree("paths", whole_draft, each, leaves=parents.int())
    if dtype == torch.bfloat16 and space == "logits":
        edit, of_rows = everything(requests), everything(requests, drafts)
        yield "race_sample, edited", lambda: race("race_sample", Law(space, 1.0), of_rows)
        yield "cutoff, edited", lambda: run("cutoff", rows=head, law=law, edits=of_rows, **cut)
        yield "verify_chain, race, edited", lambda: chain("race", None, one, edit)
        yield "verify_chain, rejection, edited", lambda: chain("rejection", draft, each, edit)
        yield "verify_tree, race, edited", lambda: tree("race", None, one, edit)
        yield "verify_tree, rejection, edited", lambda: tree("rejection", whole_draft, each, edit)
        yield "verify_tree, traversal, edited", lambda: tree("traversal", whole_draft, each, edit)
    if dtype == torch.bfloat16:  # no rows of the vocabulary in these
        mask = torch.zeros(requests, drafts + 1, 64, dtype=torch.bool)
        layers = [torch.empty(requests, 2, 16, 128, dtype=dtype) for _ in range(4)]
        shape = {"parents": parents, "prefix_len": seed, "status": status}
        merged = {"paths": draft_tokens, "draft_tokens": tokens, "parents": path, "leaves": counts.T.contiguous()}
        moved = {"caches": layers, "path": path, "prefix_len": seed, "status": status}
        yield "tree_mask", lambda: run("tree_mask", columns=mask.shape[-1], mask=mask, **shape)
        yield "tree_positions", lambda: run("tree_positions", positions=tokens, **shape)
        yield "merge_chains", lambda: run("merge_chains", **merged)
        yield "compact_kv", lambda: run("compact_kv", **moved)
        yield "compact_kv, pages", lambda: run("compact_kv", block_table=path, **moved)


OFF = {
    "edits": Edit(), "vocab_start": 0, "tokens_by_row": False, "replacement": False, "draft_prob": 1.0, "epsilon": 0.0,
    "output_format": 0,
}  # fmt: skip


def made(op, **given):
    """(the op, a call of it by these arguments); all others are off."""
    kind = OPS[op].Call
    off = {name: OFF.get(name) for name in kind._fields}
    return op, lambda: getattr(triton_kernels, op)(kind(**off | given))


def unusual_calls(target_space, draft_space, vocabulary=99, requests=2, drafts=2):
    """The ops on rows with all optional arguments: mapped drafts with another law, requests by index, a status."""
    target = torch.empty(requests, drafts + 1, vocabulary)
    draft = torch.empty(requests, drafts + 1, vocabulary // 2, dtype=torch.bfloat16)
    draft_map = torch.arange(vocabulary // 2, dtype=torch.int32)
    index = torch.zeros(requests, dtype=torch.int32)
    numbers, row_numbers = torch.ones(requests), torch.ones(requests, drafts + 1)
    laws = Law(target_space, numbers), Law(draft_space, numbers.clone())
    row_laws = Law(target_space, row_numbers), Law(draft_space, row_numbers.clone())
    counters, row_counters = numbers.int(), row_numbers.int()
    noise, row_noise = (
        Noise(seed, x, x) for seed, x in ((counters.long(), counters), (row_counters.long(), row_counters))
    )
    tokens, path = row_numbers.long(), row_numbers.int()
    counts, row_counts = counters.clone(), row_numbers.int().flatten()
    figures = torch.zeros(4, row_counts.numel())
    probs = torch.empty(row_counts.numel(), vocabulary)

    verdict = {"tokens": tokens, "num_accepted": counts, "status": counts, "noise": noise, "input_positions": tokens}
    laws, row_laws = (dict(zip(("target_law", "draft_law"), both, strict=True)) for both in (laws, row_laws))
    asked = {"draft_map": draft_map, "request_index": index}
    yield made(
        "verify_chain", draft_tokens=tokens[:, 1:], target=target, draft=draft[:, 1:], method="rejection",
        draft_prob=numbers, epsilon=numbers, input_nonces=counters, path=path, num_passed=counts.clone(),
        **verdict | {"tokens": tokens.int().flatten(), "index": tokens, "bonus": counts, "output_format": 7}, **laws,
        **asked | {"request_index": index.long()},
    )  # fmt: skip
    yield made(
        "verify_tree", draft_tokens=tokens, parents=tokens, target=target, draft=draft, method="rejection", path=path,
        **verdict | {"tokens": tokens.int().flatten(), "index": tokens, "output_format": 7}, **laws, **asked,
    )  # fmt: skip
    raced = {"rows": draft, "law": row_laws["draft_law"], "noise": row_noise, "status": row_counts, **asked}
    yield made("race_sample", tokens=tokens.flatten(), scores=figures[0], **raced)
    yield made("race_topk", tokens=tokens.view(-1, 1), scores=figures[0].view(-1, 1), **raced)
    pair = {"target": target, "draft": draft, "status": row_counts, **row_laws, **asked}
    yield made("residual", draft_prob=row_numbers, probs=probs, mass=figures[0], **pair)
    yield made("overlap", **dict(zip(SUMS, figures, strict=True)), **pair)


def kernels(*arguments, calls=calls, arch="sm_90", **options):
    """name -> launch, of every kernel."""
    found = {}
    for op, call in calls(*arguments, **options):
        _launch.TICKETS_ORDER_STORES = ARCHS[arch].backend == "cuda"
        for launch in recorded(call):
            own = launch[0].__name__.removesuffix("_kernel")
            stage = launch[2].get("STAGE", own if own in STEPS else None)
            own += next((f", {kind}" for kind in ("edited", "pages", "cut") if op.endswith(f", {kind}")), "")
            name = own if stage is None else f"{op}: {stage}"
            found.setdefault(name, launch)
    return found


def row(name, launch, dtype, space, arch):
    program, log = compiled(*launch, ARCHS[arch])
    registers, spilled, shared = figures(program, log, ARCHS[arch])
    return program, {
        "kernel": name, "dtype": str(dtype).removeprefix("torch."), "space": space, "arch": arch,
        "registers": registers, "spill_bytes": spilled, "shared_bytes": shared,
        "compiler": f"triton {triton.__version__}",
    }  # fmt: skip


def all_read():
    """The kernels for both kinds of GPU, after the front end; of the second those that differ from the first's."""
    found = {}
    for arch in ("sm_90", "gfx942"):
        for name, launch in kernels(torch.bfloat16, "logits", VOCABULARY, arch=arch).items():
            if name not in found:
                read(*launch, ARCHS[arch])
                found[name] = arch
    return found


def report(arch, vocabulary, only, dtype, space):
    """A row for each kernel, or for those in ``only``, with counts of fused multiply-adds, loads of 16 bytes, and
    tickets.
    """
    for name, launch in kernels(dtype, space, vocabulary, arch=arch).items():
        if only and name not in only:
            continue
        program, found = row(name, launch, dtype, space, arch)
        text = program.asm.get("ptx", "")
        found["fused"] = len(re.findall(r"\bfma\.\S*f32\b", text))
        found["fused_by_name"] = len(re.findall(r"math\.fma\b", program.asm["ttir"]))
        found["faults"], found["tickets"] = triton_order.faults(program, ARCHS[arch])
        if name == "verify_chain, rejection: scan_chain":
            found["unseen"] = triton_order.unseen(program, ARCHS[arch])
        found["vector_loads"] = len(re.findall(r"ld\.global\S*\.(?:v4\.b32|v2\.b64)", text))
        yield found


def specialisations(target):
    """kernel -> how many programs calls that differ in every number would compile; 1 is right."""
    found = {}
    for requests, drafts in ((1, 1), (2, 4), (16, 15), (17, 16)):
        for number in (None, 1, 16, -1, 2**40):
            options = {"requests": requests, "drafts": drafts, "number": number}
            for name, launch in kernels(torch.bfloat16, "logits", 128, **options).items():
                kind = (name, number is None)
                found.setdefault(kind, set()).add(str(specialised(*launch, target)[1:]))
    return {f"{name}, {'tensors' if tensors else 'numbers'}": len(keys) for (name, tensors), keys in found.items()}


def unusual():
    """A row for each kernel of unusual calls."""
    for spaces in (("logits", "probs"), ("probs", "logits")):
        for name, launch in kernels(*spaces, calls=unusual_calls).items():
            yield row(name, launch, torch.bfloat16, " beside ".join(spaces), "sm_90")[1]


def write_table(path, kinds):
    table = [
        row(name, launch, dtype, space, arch)[1]
        for arch, dtype, space in kinds
        for name, launch in kernels(dtype, space, VOCABULARY, arch=arch).items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, table))
    path.write_text(f"[\n{lines}\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("table", "newest", "ir", "specialisations", "unusual", *ARCHS))
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--only", nargs="*", help="names of kernels")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the rows")
    parser.add_argument("--space", choices=SPACES, default="logits")
    chosen = parser.parse_args()
    rows_of = getattr(torch, chosen.dtype), chosen.space
    if chosen.what == "table":
        write_table(TABLE, [(arch, *rows_of) for arch in ARCHS] + [("sm_90", torch.float32, s) for s in SPACES])
    elif chosen.what == "newest":
        write_table(NEWEST, [("sm_90", *rows_of)])
    elif chosen.what == "ir":
        print(json.dumps(all_read()))
    elif chosen.what == "unusual":
        print(json.dumps(list(unusual())))
    elif chosen.what == "specialisations":
        print(json.dumps(specialisations(ARCHS["sm_90"])))
    else:
        print(json.dumps(list(report(chosen.what, chosen.vocabulary, chosen.only, *rows_of))))


if __name__ == "__main__":
    main()

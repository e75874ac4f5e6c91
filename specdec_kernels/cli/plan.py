"""`specdec-kernels plan`: from acceptance and cost, the best choices and their expected gain."""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from specdec_kernels import theory
from specdec_kernels.cli import options
from specdec_kernels.studies.plan import make_plan
from specdec_kernels.theory.checks import law_pair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels plan`."""
    given = parser.add_argument_group("given figures (otherwise a pair of models is measured)")
    given.add_argument("--acceptance", help="of a draft token: one number, or one per slot as 0.9,0.8,0.7")
    given.add_argument("--children",
                       help="acceptance by child index of a tree, as 0.5,0.2,0.1 (default: from the laws)")  # fmt: skip
    given.add_argument("--cost", type=options.finite, help="c: seconds of a draft token over seconds of a verification")
    given.add_argument("--laws", type=Path, help=".npz file with arrays p and q [N, V]: target and draft laws")
    measured = parser.add_argument_group("measured figures")
    measured.add_argument("--target", default="embedded:target", help="model directory (default: the embedded target)")
    measured.add_argument("--draft", default="embedded:draft", help="model directory (default: the embedded draft)")
    measured.add_argument("--prompt", action="append", type=options.text,
                          help="text to measure on; may be repeated")  # fmt: skip
    measured.add_argument("--tokens", type=int, default=128, help="tokens to write per prompt (default: 128)")
    measured.add_argument("--temperature", type=options.positive, default=1.0, help="above 0 (default: 1)")
    measured.add_argument("--seed", type=options.seed, default=0)
    parser.add_argument("--max-k", type=options.whole(0, 10**6), default=16,
                        help="longest draft considered (default: 16)")  # fmt: skip
    parser.add_argument("--nodes", type=options.whole(0, 10**6), default=12,
                        help="nodes of the tree, and of all chains of paths together (default: 12)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0."""
    plan = make_plan(**figures(args), max_k=args.max_k, nodes=args.nodes)
    print(json.dumps(plan) if args.json else table(plan))
    return 0


def figures(args: argparse.Namespace) -> dict[str, Any]:
    """Acceptance by slot, cost, acceptance by child and laws: given, or measured."""
    children = None if args.children is None else child_acceptances(args.children)
    if args.acceptance is None and args.laws is None:
        return measure(args) | ({} if children is None else {"children": children})
    if args.cost is None:
        raise ValueError("argument --cost: expected with --acceptance or --laws, which do not tell it")
    laws = None if args.laws is None else read_laws(args.laws)
    acceptance = None if args.acceptance is None else numbers(args.acceptance, "--acceptance")
    source = "given" if laws is None else str(args.laws)
    return dict(source=source, acceptance=acceptance, cost=args.cost, children=children, laws=laws)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a plan, measured on the pair of models."""
    from specdec_kernels.generate import ModelDrafter, check_vocabularies, generate, load_model
    from specdec_kernels.generate.drafters import looks_ahead
    from specdec_kernels.studies.measure import acceptance_by_slot, cost_ratio, workload

    k = max(1, min(args.max_k, 8))
    if args.tokens < k + 2:  # so that there are rounds after the one that reads the prompt
        raise ValueError(f"argument --tokens: expected at least {k + 2}; got {args.tokens}")
    target, draft = load_model(args.target), load_model(args.draft)
    check_vocabularies(target, draft)
    if looks_ahead(draft):  # its laws differ at every depth
        raise ValueError(f"argument --draft: expected a model that drafts token by token; got {args.draft}")
    prompts = args.prompt or ["ROMEO:\n", "JULIET:\n"]
    written = dict(max_new_tokens=args.tokens, temperature=args.temperature, seed=args.seed)
    plain, drafted = [], []
    for prompt in prompts:  # in turn, so that disturbances hit both
        plain += generate([prompt], target, method="plain", **written)
        drafted += generate([prompt], target, ModelDrafter(draft), method="rejection", k=k, **written)
    return dict(
        source=f"{args.target} with {args.draft}",
        acceptance=acceptance_by_slot(drafted, k),
        cost=cost_ratio(plain, drafted, k) if args.cost is None else args.cost,
        laws=workload(target, draft, prompts, tokens=args.tokens, temperature=args.temperature, seed=args.seed),
    )


def table(plan: dict[str, Any]) -> str:
    """The plan for people."""
    best, shape = plan["best"], plan["tree"]
    gain = "{tokens:.3f} tokens a round, {speedup:.3f} x plain decoding".format
    rows: list[tuple[str, ...]] = [
        ("figures", plan["source"]),
        ("acceptance", f"{spaced(plan['acceptance'])}   (by slot; the last for later ones)"),
        ("cost ratio c", f"{plan['cost_ratio']:.4f}"),
        (),
        ("draft length", f"k = {best['k']}: {gain(**best)}"),
        *(("", f"k = {at['k']:<3d} {at['tokens']:.3f} tokens   {at['speedup']:.3f} x") for at in plan["lengths"]),
    ]
    if "block" in plan:
        at = plan["block"]["best"]
        rows += [(), ("block", f"k = {at['k']}: {gain(**at)}")]
    if "paths" in plan:
        at = plan["paths"]["best"]
        rows += [(), ("paths", f"n = {at['n']}, k = {at['k']}: {gain(**at)}")]
    if "race" in plan:
        race, lower = plan["race"], max(plan["race"]["lower"].values())
        rows += [
            (),
            ("race", f"acceptance {race['acceptance']:.4f}, bounds {lower:.4f} to {race['upper']:.4f}"),
            ("", f"entropy of the accepted child: at most {race['entropy_bound_bits']:.3f} bits (Equation 8)"),
            (),
        ]
        for kind, one in plan["randomised"].items():
            rates = f"a* = {one['draft_prob']:.4f}: {one['rate']:.4f} x, {one['rate_always']:.4f} x at a = 1"
            rows.append(("one token", f"{rates}; drafting less pays above c = {one['threshold']:.4f} ({kind})"))
    size, rounds = len(shape["parents"]) - 1, f"{shape['tokens']:.4f} tokens a round, bound {shape['bound']:.4f}"
    rows += [
        (),
        ("tree", f"{size} nodes: {rounds}"),
        ("", f"acceptance by child {spaced(shape['children'])}"),
        ("", f"parents {' '.join(map(str, shape['parents']))}"),
    ]
    return "\n".join(f"{row[0]:15s}{row[1]}" if row else "" for row in rows)


def spaced(values: Iterable[float]) -> str:
    """Probabilities for reading."""
    return " ".join(f"{value:.3f}" for value in values)


def numbers(text: str, option: str) -> list[float]:
    """Probabilities separated by commas."""
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 1 for value in values):
        raise ValueError(f"argument {option}: expected numbers in [0, 1] separated by commas; got {text!r}")
    return values


def child_acceptances(text: str) -> list[float]:
    """The numbers of `--children`."""
    try:
        return theory.trees.child_acceptances(numbers(text, "--children")).tolist()
    except ValueError as error:
        raise ValueError(str(error).replace("R:", "argument --children:")) from error


def read_laws(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Arrays p and q of an .npz file, one law per row."""
    try:
        file = np.load(path)
        if isinstance(file, np.ndarray):
            raise ValueError("one array, as of an .npy file")
        with file:
            p, q = (np.atleast_2d(file[name]) for name in ("p", "q"))
        return law_pair(p, q, ndims=(2,))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"argument --laws: expected an .npz file with p and q; got {path} ({error})") from error

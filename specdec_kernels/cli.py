"""The command line: `specdec-kernels generate`, `info`, and the commands that other modules add."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import math
import operator
import os
import platform
import sys
import time
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

JOINED = {
    "plan": ("specdec_kernels.plan", "the best draft length, drafting probability and tree"),
    "figures": ("specdec_kernels.figures", "draw the figures of the documentation"),
    "bench": ("specdec_kernels.bench", "measure draft trees on a pair of models"),
}
"""Commands that live elsewhere: the module has add_arguments(parser) and run(args) -> exit status."""

MOST_NODES = 1023  # drafted tokens of a tree
TREES = "chain:K, alternatives:K, specinfer:B1,B2,…, parents:-1,P1,…, optimal:K or auto"

COLOURS = {"accepted": "green", "replaced": "bold red", "bonus": "bold cyan"}
MARKS = {"accepted": "{}", "replaced": "‹{}›", "bonus": "«{}»"}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind, expected, allowed):
    """An argparse type: `kind` of the word, if `allowed`."""

    def parse(word):
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {word!r}")
        return value

    return parse


def draft_length(word: str) -> int | str:
    return word if word == "auto" else int(word)


class TreeChoice(NamedTuple):
    """A `--tree`: what was written, its kind and its numbers."""

    word: str
    kind: str
    numbers: list[int]


def draft_tree(word: str) -> TreeChoice:
    """A checked `--tree`: no huge tree will be built."""
    kind, _, rest = word.partition(":")
    try:
        numbers = [int(part) for part in rest.split(",")] if rest else []
    except ValueError:
        numbers = []
    nodes = {
        "chain": lambda: numbers[0] if len(numbers) == 1 else -1,
        "specinfer": lambda: sum(itertools.accumulate(numbers, operator.mul)) if min(numbers, default=0) > 0 else -1,
        "parents": lambda: len(numbers) - 1,
        "auto": lambda: -1 if rest else 0,
    }
    nodes["alternatives"] = nodes["optimal"] = nodes["chain"]
    if kind not in nodes or not 0 <= nodes[kind]() <= MOST_NODES:
        raise argparse.ArgumentTypeError(f"expected {TREES}, of at most {MOST_NODES} tokens, got {word!r}")
    return TreeChoice(word, kind, numbers)


def add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", action="append", help="text to continue; repeat it for a batch")
    parser.add_argument(
        "--prompt-file", action="append", type=Path, help="file whose text to continue; may be repeated"
    )
    parser.add_argument("--target", default="embedded:target", help="model directory (default: the embedded target)")
    parser.add_argument("--draft", help="model directory, 'ngram' or 'none' (default: the embedded draft, or ngram)")
    parser.add_argument("--method", choices=["plain", "rejection", "race"], default="race")
    length = number(draft_length, "a whole number >= 0 or 'auto'", lambda value: value == "auto" or value >= 0)
    parser.add_argument("--k", type=length,
                        help="draft tokens a round (default: 4), or 'auto': learnt while it runs, with "
                        "--draft-policy chain the probability of drafting too")  # fmt: skip
    parser.add_argument("--draft-prob", default=1.0, help="probability that a round drafts, with --method rejection",
                        type=number(float, "a number in [0, 1]", lambda value: 0 <= value <= 1))  # fmt: skip
    parser.add_argument("--draft-policy", choices=["chain", "token", "uniform"],
                        help="what --draft-prob is spent on: a coin a round, a coin a token, a length")  # fmt: skip
    parser.add_argument("--tree", type=draft_tree, metavar="SHAPE",
                        help=f"draft a tree a round: {TREES}, which learns size and shape while it runs")  # fmt: skip
    parser.add_argument("--calibrate", action="store_true",
                        help="measure acceptance by child index on the prompts before --tree optimal:K is shaped "
                        "(default: 0.5, 0.2, 0.12, 0.08, 0.06, 0.04)")  # fmt: skip
    parser.add_argument("--replacement", action="store_true",
                        help="draw the children of a node independently, with --method rejection")  # fmt: skip
    parser.add_argument("--temperature", default=1.0, help="0 is greedy (default: 1)",
                        type=number(float, "a finite number >= 0", lambda value: 0 <= value < math.inf))  # fmt: skip
    parser.add_argument("--seed", type=number(int, "a whole number", lambda value: True), default=0,
                        help="of the first prompt; the next has one more")  # fmt: skip
    parser.add_argument("--max-new-tokens", default=200,
                        type=number(int, "a whole number >= 1", lambda value: value >= 1))  # fmt: skip
    parser.add_argument("--stop", action="append", default=[], help="end the text before this string; may be repeated")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--show", action="store_true", help="colour accepted, replaced and bonus tokens as they come; draw the trees"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")


def run_generate(args: argparse.Namespace) -> int:
    from specdec_kernels.generate import stream

    check_tree_arguments(args)
    prompts = prompts_of(args)
    target, drafter = models_of(args)
    options = dict(method=args.method, replacement=args.replacement, temperature=args.temperature,
                   max_new_tokens=args.max_new_tokens)  # fmt: skip
    args.acceptance = acceptance_of(args, target, drafter, prompts, options)
    policy = tree_policy_of(args) if args.tree else policy_of(args, drafter)
    begun = time.perf_counter()
    rounds = stream(prompts, target, drafter, policy=policy, seed=args.seed, stop=args.stop, **options)
    generations = watch(rounds, prompts, target, args)
    elapsed = time.perf_counter() - begun
    if args.json:
        for generation in generations:
            print(json.dumps(report(generation, args, elapsed)))
    else:
        print(summary(generations, elapsed), file=sys.stdout if args.show else sys.stderr)
    return 0


def check_tree_arguments(args: argparse.Namespace) -> None:
    """Name what does not go with a tree, or without; and give --k its default."""
    if args.tree is None:
        for option in ("calibrate", "replacement"):
            if getattr(args, option):
                raise ValueError(f"argument --{option}: expected --tree with it, got none")
        args.k = 4 if args.k is None else args.k
        return
    if args.k is not None or args.draft_policy is not None or args.draft_prob != 1:
        raise ValueError("argument --tree: expected no --k, --draft-prob or --draft-policy with it, got one")
    if args.calibrate and args.tree.kind != "optimal":
        raise ValueError(f"argument --calibrate: expected --tree optimal:K, got {args.tree.word}")


def acceptance_of(args, target, drafter, prompts, options) -> list[float] | None:
    """Acceptance by child index for `--tree optimal:K`, None with other trees."""
    from specdec_kernels.generate.trees import DEFAULT_ACCEPTANCE

    if args.tree is None or args.tree.kind != "optimal":
        return None
    if not args.calibrate:
        return list(DEFAULT_ACCEPTANCE)
    from specdec_kernels.measure import calibrate

    acceptance = calibrate(target, drafter, prompts, seed=args.seed, **options)
    print("acceptance by child", *(f"{rate:.3f}" for rate in acceptance), file=sys.stderr)
    return acceptance


def tree_policy_of(args):
    """The tree policy that the arguments name."""
    from specdec_kernels import DraftTree
    from specdec_kernels.generate.control import TreeController
    from specdec_kernels.generate.trees import FixedTree

    _, kind, numbers = args.tree
    if kind == "auto":
        return TreeController()
    if kind == "optimal":
        return FixedTree(DraftTree.optimal(args.acceptance, *numbers))
    try:
        make = {"specinfer": DraftTree.specinfer, "parents": DraftTree.from_parents}.get(kind)
        return FixedTree(make(numbers) if make else getattr(DraftTree, kind)(*numbers))
    except ValueError as error:
        raise ValueError(f"argument --tree: {error}") from error


def prompts_of(args: argparse.Namespace) -> list[str]:
    prompts = list(args.prompt or [])
    for path in args.prompt_file or []:
        try:
            prompts.append(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"argument --prompt-file: expected a text file, got {path} ({error})") from error
    if not prompts and args.target == "embedded:target":
        prompts = ["ROMEO:\n"]
    if not prompts:
        raise ValueError("argument --prompt: expected a prompt or --prompt-file with a target of your own")
    return prompts


def models_of(args: argparse.Namespace):
    """The target and the drafter that the arguments name."""
    from specdec_kernels.generate import ModelDrafter, NgramDrafter, check_vocabularies, load_model

    def load(option, name):
        try:
            return load_model(name, dtype=args.dtype, device=args.device)
        except ValueError as error:
            raise ValueError(f"argument --{option}: {error}") from error

    target = load("target", args.target)
    source = args.draft or ("embedded:draft" if args.target == "embedded:target" else "ngram")
    if args.method == "plain" or source == "none":
        return target, None
    if source == "ngram":
        return target, NgramDrafter()
    draft = load("draft", source)
    check_vocabularies(target, draft)
    return target, ModelDrafter(draft)


def policy_of(args: argparse.Namespace, drafter):
    """The draft policy that the arguments name."""
    from specdec_kernels.generate import FixedLength, RandomLength

    if drafter is None:
        return FixedLength(0)
    randomised = args.draft_policy is not None or args.draft_prob != 1
    if args.k != "auto":
        return (
            RandomLength(args.k, args.draft_prob, args.draft_policy or "chain") if randomised else FixedLength(args.k)
        )
    if args.draft_prob != 1 or args.draft_policy not in (None, "chain"):
        raise ValueError("argument --k: expected a number with --draft-prob or --draft-policy, got 'auto'")
    from specdec_kernels.generate.control import Controller

    return Controller(randomised=args.draft_policy == "chain")


def watch(rounds, prompts, target, args):
    """Print the rounds as the arguments ask, and collect them."""
    from specdec_kernels.generate import Generation

    generations = [Generation(target.encode(prompt)) for prompt in prompts]
    printer = None if args.json else show(prompts, args.show, target.tokenizer)
    for entry in rounds:
        generations[entry.request].rounds.append(entry)
        if printer:
            printer(entry)
    return generations


def show(prompts, colour, tokenizer):
    """A function that prints rounds: a running text for one prompt, a line per round for a batch, with colour trees."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    batch = len(prompts) > 1
    coloured = colour and console.is_terminal and console.color_system is not None
    if colour:
        legend = [Text(kind if coloured else MARKS[kind].format(kind), COLOURS[kind]) for kind in COLOURS]
        console.print(Text(" ").join(legend))

    trees = defaultdict(int)

    def printer(entry):
        if colour and entry.tree is not None:
            trees[entry.request] += 1
            title = Text(f"\nround {trees[entry.request]}" + (f" of [{entry.request}]" if batch else ""))
            console.print(title, drawing(entry, tokenizer, coloured), sep="\n")
        text = Text(f"[{entry.request}] " if batch else "")
        for kind, piece in entry.pieces:
            plain = piece if coloured or not colour or not piece else MARKS[kind].format(piece)
            text.append(plain, COLOURS[kind] if colour else "")
        console.print(text, end="\n" if batch or entry.finish or (colour and entry.tree is not None) else "")
        console.file.flush()

    for index, prompt in enumerate(prompts):
        console.print(Text(f"[{index}] {prompt}\n" if batch else prompt), end="")
    return printer


def drawing(entry, tokenizer, coloured):
    """A round's tree, accepted nodes marked, with the token that the verifier added after them."""
    from rich.text import Text
    from rich.tree import Tree

    def label(token, kind):
        piece = repr(tokenizer.decode([token]) if tokenizer else token)
        if kind is None:
            return Text(piece, "dim" if coloured else "")
        return Text(piece, COLOURS[kind]) if coloured else Text((MARKS | {"accepted": "{} ✓"})[kind].format(piece))

    shape, tokens, path = entry.tree.shape, entry.tree.tokens, entry.tree.path
    branches = {0: Tree(label(tokens[0], None))}
    for node, parent in enumerate(shape.parents[1:], start=1):
        if tokens[node] >= 0:
            branches[node] = branches[parent].add(label(tokens[node], "accepted" if node in path else None))
    if len(entry.tokens) > entry.accepted:
        branches[path[-1]].add(label(entry.tokens[-1], entry.pieces[-1][0]))
    return branches[0]


def report(generation, args, elapsed) -> dict:
    """What `--json` prints of one prompt."""
    return tree_report(generation, args) | {
        "method": args.method, "k": args.k, "seed": args.seed, "temperature": args.temperature,
        "tokens": generation.tokens, "text": generation.text, "finish": generation.finish,
        "target_calls": generation.target_calls, "drafted": generation.drafted, "accepted": generation.accepted,
        "acceptance": generation.acceptance, "tokens_per_call": generation.tokens_per_call, "status": generation.status,
        "timings": generation.seconds | {"total": elapsed, "tokens_per_second": len(generation.tokens) / elapsed},
    }  # fmt: skip


def tree_report(generation, args) -> dict:
    """What `--json` adds with a tree: acceptance by child index, and every round's tree."""
    if args.tree is None:
        return {}
    from specdec_kernels.measure import child_acceptance

    shapes = [entry.tree.shape for entry in generation.rounds]
    most = max(len(children) for shape in shapes for children in shape.children)
    seen = child_acceptance([generation], most)
    return {
        "tree": args.tree.word, "assumed_acceptance": args.acceptance,
        "children": {"offered": seen.tried.astype(int).tolist(), "accepted": seen.passed.astype(int).tolist()},
        "rounds": [
            {"parents": entry.tree.shape.parents, "draft_tokens": entry.tree.tokens, "path": entry.tree.path,
             "tokens": entry.tokens} for entry in generation.rounds
        ],
    }  # fmt: skip


def summary(generations, elapsed) -> str:
    """One line of statistics over all prompts."""
    tokens = sum(len(generation.tokens) for generation in generations)
    calls = sum(generation.target_calls for generation in generations)
    tested = sum(entry.tested for generation in generations for entry in generation.rounds)
    accepted = sum(generation.accepted for generation in generations)
    status = {entry.status for generation in generations for entry in generation.rounds} - {0}
    warning = f"; verifier status {', '.join(map(str, sorted(status)))}" if status else ""
    drafting = f", {accepted} of {tested} tested drafts accepted ({accepted / tested:.2f})" if tested else ""
    if any(entry.tree for generation in generations for entry in generation.rounds):
        drafting += f", by child {children(generations)}"
    return (
        f"{tokens} tokens, {calls} target calls ({tokens / calls:.2f} tokens a call){drafting}, "
        f"{elapsed:.2f} s ({tokens / elapsed:.0f} tokens/s){warning}"
    )


def children(generations, most=8) -> str:
    """Shares of the nodes reached at which the first child was accepted, the second, and so on."""
    from specdec_kernels.measure import child_acceptance

    seen = child_acceptance(generations, most)
    counts = zip(seen.passed, seen.tried, strict=True)
    return " ".join(f"{passed / tried:.2f}" for passed, tried in counts if tried) or "none"


def add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_info(args: argparse.Namespace) -> int:
    import torch

    import specdec_kernels as specdec

    versions = {"python": platform.python_version()}
    for package in ("specdec-kernels", "torch", "triton", "transformers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    devices = [f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"]
    devices += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    facts = {
        "versions": versions,
        "devices": devices,
        "backends": specdec.available_backends(),
        "build": specdec.build_info(),
    }
    if args.json:
        print(json.dumps(facts, default=str))
        return 0
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key}: {'not installed' if entry is None else entry}")
        else:
            print(f"{name}: {', '.join(map(str, value))}")
    return 0


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; of the commands that live elsewhere only the chosen one is imported."""
    parser = Parser(prog="specdec-kernels", description="Exact verification kernels for speculative decoding.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, add, run, text in (
        ("generate", add_generate, run_generate, "write text by speculative decoding"),
        ("info", add_info, run_info, "versions, devices, backends and build"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        add(command)
        command.set_defaults(run=run)
    for name, (module_name, text) in JOINED.items():
        if importlib.util.find_spec(module_name) is None:
            continue
        command = commands.add_parser(name, help=text, description=text)
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 is success, 2 a bad argument, said in one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    args = build_parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        return args.run(args)
    except ValueError as error:
        print(f"specdec-kernels {args.command}: error: {error}".replace("\n", " "), file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"specdec-kernels {args.command}: error: {error}; pip install specdec-kernels[generate]", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output left; nothing more can be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())

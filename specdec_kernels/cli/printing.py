"""The output of `specdec-kernels generate`: running text, trees, a line of statistics, JSON."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree
    from transformers import PreTrainedTokenizerBase

    from specdec_kernels.generate import Generation, Round

Printer: TypeAlias = "Callable[[Round], None]"
COLOURS = {"accepted": "green", "replaced": "bold red", "bonus": "bold cyan"}
MARKS = {"accepted": "{}", "replaced": "‹{}›", "bonus": "«{}»"}


def reading() -> Callable[[int, int], None] | None:
    """A function that prints, on one line of a terminal, how far a long prompt is read; None without a terminal."""
    if not sys.stderr.isatty():
        return None

    def say(read: int, length: int) -> None:
        print(f"\rread {read:,} of {length:,} tokens", end="", file=sys.stderr, flush=True)

    return say


def cleared(progress: Callable[[int, int], None] | None, begin: Callable[[], Printer]) -> Printer:
    """Begin to print in the line of `progress`."""
    if progress:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return begin()


def show(
    prompts: Sequence[str], colour: bool, tokenizer: PreTrainedTokenizerBase | None, legend: bool = True
) -> Printer:
    """A function that prints rounds: a running text for one prompt, a line per round for a batch, with colour trees."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    batch = len(prompts) > 1
    coloured = colour and console.is_terminal and console.color_system is not None and not console.no_color
    if colour and legend:
        kinds = [Text(kind if coloured else MARKS[kind].format(kind), COLOURS[kind]) for kind in COLOURS]
        console.print(Text(" ").join(kinds))

    trees: defaultdict[int, int] = defaultdict(int)

    def write(pieces: Sequence[tuple[str, str]], end: str) -> None:
        # Rich changes tabs and drops carriage returns, so text without colours is written directly.
        if coloured:
            console.print(Text.assemble(*pieces), end=end)
        else:
            print("".join(piece for piece, _ in pieces), end=end)
        sys.stdout.flush()

    def printer(entry: Round) -> None:
        if colour and entry.tree is not None:
            trees[entry.request] += 1
            title = Text(f"\nround {trees[entry.request]}" + (f" of [{entry.request}]" if batch else ""))
            console.print(title, drawing(entry, tokenizer, coloured), sep="\n")
        pieces = [(f"[{entry.request}] ", "")] if batch else []
        for kind, piece in entry.pieces:
            plain = piece if coloured or not colour or not piece else MARKS[kind].format(piece)
            pieces.append((plain, COLOURS[kind]))
        write(pieces, "\n" if batch or entry.finish or (colour and entry.tree is not None) else "")

    for index, prompt in enumerate(prompts):
        write([(f"[{index}] {prompt}\n" if batch else prompt, "")], "")
    return printer


def drawing(entry: Round, tokenizer: PreTrainedTokenizerBase | None, coloured: bool) -> Tree:
    """A round's tree, accepted nodes marked, with the token that the verifier added after them."""
    from rich.text import Text
    from rich.tree import Tree

    def label(token: int, kind: str | None) -> Text:
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


def report(generation: Generation, args: argparse.Namespace, elapsed: float) -> dict[str, Any]:
    """The object that `--json` prints for one prompt; with `--logprobs` it has an entry for each token."""
    scores = {} if args.logprobs is None else {"logprobs": [token._asdict() for token in generation.logprobs]}
    return tree_report(generation, args) | scores | {
        "method": args.method, "k": args.k, "seed": args.seed, "temperature": args.temperature,
        "top_k": args.top_k, "top_p": args.top_p, "min_p": args.min_p, "preset": args.preset,
        "repetition_penalty": args.repetition_penalty, "frequency_penalty": args.frequency_penalty,
        "presence_penalty": args.presence_penalty, "bias": [f"{token}:{value:g}" for token, value in args.bias],
        "allowed": None if args.allow is None else len(set(args.allow)),
        "tokens": generation.tokens, "text": generation.text, "finish": generation.finish,
        "target_calls": generation.target_calls, "drafted": generation.drafted, "accepted": generation.accepted,
        "acceptance": generation.acceptance, "tokens_per_call": generation.tokens_per_call, "status": generation.status,
        "threads": args.threads,
        "timings": generation.seconds | {"total": elapsed, "tokens_per_second": len(generation.tokens) / elapsed},
    }  # fmt: skip


def tree_report(generation: Generation, args: argparse.Namespace) -> dict[str, Any]:
    """The part that a tree adds to `--json`: acceptance by child index, and every round's tree."""
    if args.tree is None:
        return {}
    from specdec_kernels.studies.measure import child_acceptance

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


def summary(generations: Sequence[Generation], elapsed: float, threads: int | None) -> str:
    """One line of statistics over all prompts; with the threads of a CPU."""
    tokens = sum(len(generation.tokens) for generation in generations)
    calls = sum(generation.target_calls for generation in generations)
    tested = sum(entry.tested for generation in generations for entry in generation.rounds)
    accepted = sum(generation.accepted for generation in generations)
    status = {entry.status for generation in generations for entry in generation.rounds} - {0}
    warning = f"; verifier status {', '.join(map(str, sorted(status)))}" if status else ""
    on = f" on {threads} thread{'s' * (threads > 1)}" if threads else ""
    drafting = f", {accepted} of {tested} tested drafts accepted ({accepted / tested:.2f})" if tested else ""
    if any(entry.tree for generation in generations for entry in generation.rounds):
        drafting += f", by child {children(generations)}"
    return (
        f"{tokens} tokens, {calls} target calls ({tokens / max(calls, 1):.2f} tokens a call){drafting}, "
        f"{elapsed:.2f} s ({tokens / elapsed:.0f} tokens/s{on}){warning}"
    )


def children(generations: Sequence[Generation], most: int = 8) -> str:
    """Shares of the visited nodes at which the first child was accepted, the second, and so on."""
    from specdec_kernels.studies.measure import child_acceptance

    seen = child_acceptance(generations, most)
    counts = zip(seen.passed, seen.tried, strict=True)
    return " ".join(f"{passed / tried:.2f}" for passed, tried in counts if tried) or "none"

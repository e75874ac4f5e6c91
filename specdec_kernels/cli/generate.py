"""`specdec-kernels generate`: write text by speculative decoding."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import operator
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_kernels import Sampling
from specdec_kernels.cli import options
from specdec_kernels.cli.chat import Messages, conversations_of, tokens_of, turns
from specdec_kernels.cli.printing import cleared, reading, report, show, summary
from specdec_kernels.cli.svg import picture
from specdec_kernels.trees import USUAL_ACCEPTANCE

if TYPE_CHECKING:
    from specdec_kernels.generate import ChainPolicy, Drafter, Generation, LanguageModel, TextEdits, TreePolicy

Add = Callable[..., argparse.Action]  # the `add_argument` of a group of options
METHODS = ("plain", "rejection", "race", "block", "traversal", "paths")
MOST_DRAFTED = 1023  # tokens a round
DRAFTS = (
    "model directory, early-exit:N (the target's first N layers), ngram (what followed in this text), ngram-cache (in "
    "any text of this process) or none"
)
NGRAMS = ("ngram", "ngram-cache")
TREES = "chain:K, alternatives:K, specinfer:B1,B2,..., parents:-1,P1,..., optimal:K or auto"


def draft_length(word: str) -> int | str:
    return word if word == "auto" else int(word)


path_count = options.checked(
    draft_length, "a whole number >= 1 or 'auto'", lambda value: value == "auto" or value >= 1
)  # fmt: skip
draft_count = options.checked(
    draft_length, f"a whole number from 0 to {MOST_DRAFTED} or 'auto'",
    lambda value: value == "auto" or 0 <= value <= MOST_DRAFTED,
)  # fmt: skip


def draft_source(word: str) -> str:
    """A checked `--draft`."""
    kind, _, rest = word.partition(":")
    if kind == "early-exit" and not (rest.isdecimal() and int(rest) > 0):
        raise argparse.ArgumentTypeError(f"expected early-exit:N with a whole number N >= 1; got {word!r}")
    return word


class TreeChoice(NamedTuple):
    """A checked `--tree`: its word, its kind and its numbers."""

    word: str
    kind: str
    numbers: list[int]


def draft_tree(word: str) -> TreeChoice:
    """A checked `--tree`, whose size is bounded before it is built."""
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
    if kind not in nodes or not 0 <= nodes[kind]() <= MOST_DRAFTED:
        raise argparse.ArgumentTypeError(f"expected {TREES}, of at most {MOST_DRAFTED} tokens; got {word!r}")
    return TreeChoice(word, kind, numbers)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels generate`."""
    add_texts(parser.add_argument_group("text").add_argument)
    add_models(parser.add_argument_group("models").add_argument)
    add_drafts(parser.add_argument_group("drafts").add_argument)
    add_sampling(parser.add_argument_group("sampling").add_argument)


def add_texts(add: Add) -> None:
    """What is written, and how it is shown."""
    add("--prompt", action="append", type=options.text, help="text to continue; repeat it for a batch")
    add("--prompt-file", action="append", type=Path, help="file whose text to continue; may be repeated")
    add("--chat", action="store_true", help="prompts are messages to a chat model, a .json file may have several turns")
    add("--system", type=options.text, help="with --chat: the system's message")
    add("--max-new-tokens", type=options.whole(1), default=200)
    add("--stop", action="append", default=[], type=options.some_text,
        help="end the text before this string; may be repeated")  # fmt: skip
    add("--show", action="store_true", help="colour accepted, replaced and bonus tokens as they come; draw the trees")
    add("--svg", type=options.new_file, metavar="FILE", help="write a picture of the rounds and their trees")
    add("--json", action="store_true", help="print one JSON object per prompt; finish is null where a text was cut off")
    add("--logprobs", type=options.whole(0), metavar="N",
        help="with --json: log-probability and rank of every token, and the N most probable beside it")  # fmt: skip


def add_models(add: Add) -> None:
    """The target, and what drafts."""
    add("--target", default="embedded:target", help="model directory (default: the embedded target)")
    add("--draft", "--drafter", type=draft_source, metavar="DRAFT",
        help=f"{DRAFTS} (default: the embedded draft, or ngram)")  # fmt: skip
    add("--draft-vocabulary", type=options.whole(1), metavar="N",
        help="let a draft model write the first N token ids alone, which tokenizers made by merges give to what is "
        "frequent: its head is that much smaller (default: all)")  # fmt: skip
    add("--ngram-max", type=options.whole(1), metavar="N", help="with --draft ngram or ngram-cache: the longest end of "
        "the text that is looked up (default: 4)")  # fmt: skip
    add("--ngram-min", type=options.whole(1), metavar="N", help="the shortest (default: 1, in the cache 2)")
    add("--max-pending", type=options.whole(1), metavar="N",
        help="with recurrent layers: accepted tokens read again at most (default: 16)")  # fmt: skip
    add("--dtype", choices=["float32", "float64", "bfloat16", "float16"],
        help="default: float32 on a CPU, half precision on a GPU")  # fmt: skip
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU where there is one")
    add("--tensor-parallel", type=options.whole(1), default=1, metavar="N",
        help="split the target's LM head over N processes that torchrun started")  # fmt: skip


def add_drafts(add: Add) -> None:
    """How tokens are drafted and verified."""
    add("--method", choices=METHODS,
        help="how drafts are verified: block is for chains, traversal for trees, paths for several chains (default: "
        "race; with --paths paths)")  # fmt: skip
    add("--k", type=draft_count,
        help="draft tokens a round (default: 4), or 'auto': learnt while it runs, with --draft-policy chain the "
        "probability of drafting too")  # fmt: skip
    add("--draft-prob", default=1.0, type=options.probability,
        help="probability that a round drafts, with --method rejection")  # fmt: skip
    add("--draft-policy", choices=["chain", "token", "uniform"],
        help="what --draft-prob is spent on: each round, each token, or a length")  # fmt: skip
    add("--tree", type=draft_tree, metavar="SHAPE",
        help=f"draft a tree a round: {TREES}, which learns size and shape while it runs")  # fmt: skip
    add("--paths", type=path_count, metavar="N",
        help="draft N chains of --k tokens a round, of which one is taken; 'auto' learns how many, and how long, "
        "while it runs")  # fmt: skip
    add("--calibrate", action="store_true",
        help="measure acceptance by child index on the prompts before --tree optimal:K is shaped (default: 0.5, 0.2, "
        "0.12, 0.08, 0.06, 0.04)")  # fmt: skip
    add("--replacement", action="store_true",
        help="draw the children of a node independently, with --method rejection or traversal")  # fmt: skip


def add_sampling(add: Add) -> None:
    """The law that tokens are drawn from."""
    add("--temperature", default=1.0, type=options.finite, help="0 is greedy (default: 1)")
    add("--top-k", type=options.whole(0), default=0, metavar="K",
        help="keep the K most probable tokens, of target and draft (default: 0, all)")  # fmt: skip
    add("--top-p", type=options.probability, default=1.0, metavar="P",
        help="keep a token while less than P of the mass is before it (default: 1, all)")  # fmt: skip
    add("--min-p", type=options.probability, default=0.0, metavar="P",
        help="keep tokens of at least P of the largest probability (default: 0, all)")  # fmt: skip
    add("--preset", choices=options.PRESETS, help="filter by the rules of this engine")
    add("--repetition-penalty", type=options.positive, default=1.0, metavar="R",
        help="divide positive logits of tokens seen in prompt or text by R, multiply others (default: 1, off), of "
        "target and draft")  # fmt: skip
    add("--frequency-penalty", type=options.signed, default=0.0, metavar="F",
        help="take F from a logit as often as the text has the token (default: 0)")  # fmt: skip
    add("--presence-penalty", type=options.signed, default=0.0, metavar="G",
        help="take G from the logits of tokens that the text has (default: 0)")  # fmt: skip
    add("--bias", action="append", default=[], type=options.token_bias, metavar="ID:VALUE",
        help="add VALUE to a token's logit, -inf forbids it; may be repeated")  # fmt: skip
    add("--allow", type=options.token_file, metavar="FILE", help="allow only the token ids in this file")
    add("--seed", type=options.seed, default=0, help="of the first prompt; the next has one more")
    add("--watermark", type=options.key, metavar="KEY",
        help="with --method race or plain: let the text carry the watermark of this secret number, which "
        "`specdec-kernels watermark` finds")  # fmt: skip
    add("--watermark-window", type=options.whole(1, 8), default=4, metavar="N",
        help="by how many tokens before each (default: 4)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Write the text; 0. An error that ends it early is raised after the texts so far were reported."""
    from specdec_kernels.cli.threads import quickest

    check_arguments(args)
    conversations = conversations_of(args, options.text_of_file) if args.chat else []
    prompts = [] if args.chat else prompts_of(args)
    rank = rank_of(args)
    target, drafter = models_of(args)
    draft = getattr(drafter, "language_model", None)
    with contextlib.ExitStack() as ended:
        args.threads = ended.enter_context(quickest([target] if draft is None else [target, draft]))
        if rank > 0:  # one rank reports for all
            nowhere = ended.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            ended.enter_context(contextlib.redirect_stdout(nowhere))
        if args.tensor_parallel > 1:
            from specdec_kernels.generate.parallel import split_head

            with options.errors_of("--tensor-parallel: "):
                target = split_head(target)
        return write(writer_of(args, target, drafter, conversations, prompts), args, conversations, prompts, rank == 0)


def writer_of(
    args: argparse.Namespace, target: LanguageModel, drafter: Drafter | None, conversations: Sequence[Messages],
    prompts: Sequence[str],
) -> Writer:  # fmt: skip
    """The Writer for these arguments."""
    from specdec_kernels.generate import Watermark

    mark = None if args.watermark is None else Watermark(args.watermark, args.watermark_window)
    how = dict(method=args.method, replacement=args.replacement, sampling=sampling_of(args),
               edits=edits_of(args), max_new_tokens=args.max_new_tokens, watermark=mark)  # fmt: skip
    calibration = [tokens_of(target, next(turns(messages))) for messages in conversations] if args.chat else prompts
    args.acceptance = acceptance_of(args, target, drafter, calibration, how)
    how |= dict(policy=tree_policy_of(args) if args.tree or args.paths else policy_of(args, drafter), stop=args.stop,
               logprobs=args.logprobs, max_pending=args.max_pending)  # fmt: skip
    return Writer(target, drafter, args, how)


def write(
    writer: Writer, args: argparse.Namespace, conversations: Sequence[Messages], prompts: Sequence[str], reports: bool
) -> int:  # fmt: skip
    """Write all texts; 0."""
    try:
        if args.chat:
            for index, messages in enumerate(conversations):
                writer.answer(messages, args.seed + index)
        else:
            writer.write(prompts, prompts, args.seed)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            if reports:
                writer.report()
        raise
    if reports:
        writer.report()
    return 0


def rank_of(args: argparse.Namespace) -> int:
    """This process's rank among those that share the target's head."""
    if args.tensor_parallel == 1:
        return 0
    from specdec_kernels.generate.models import device_of
    from specdec_kernels.generate.parallel import join

    with options.errors_of("--tensor-parallel: "):
        return join(args.tensor_parallel, device_of(args.device))


class Writer:
    """Writes texts, shows them by the arguments, and reports them all in the end."""

    def __init__(
        self, target: LanguageModel, drafter: Drafter | None, args: argparse.Namespace, how: dict[str, Any]
    ) -> None:
        self.target, self.drafter, self.args, self.how = target, drafter, args, how
        self.generations: list[Generation] = []
        self.seconds, self.cut = 0.0, False

    def write(self, prompts: Sequence[str | list[int]], shown: Sequence[str], seed: int) -> list[Generation]:
        """Write on from a batch of prompts, which are shown as `shown`."""
        from specdec_kernels.generate import Generation, stream

        progress, printer, begun = reading(), None, time.perf_counter()
        rounds = stream(prompts, self.target, self.drafter, seed=seed, progress=progress, **self.how)
        generations = [Generation(self.target.encode(text) if isinstance(text, str) else text) for text in prompts]
        self.generations += generations
        begin = partial(show, shown, self.args.show, self.target.tokenizer, legend=self.generations == generations)
        try:
            self.cut = True
            for entry in rounds:
                generations[entry.request].rounds.append(entry)
                if not self.args.json:
                    printer = printer or cleared(progress, begin)
                    printer(entry)
            self.cut = False
        except BaseException:
            with contextlib.suppress(Exception):
                if printer is None and not self.args.json:
                    cleared(progress, begin)
            raise
        finally:
            self.seconds += time.perf_counter() - begun
        return generations

    def answer(self, messages: Messages, seed: int) -> None:
        """Answer every unanswered message of a conversation, in turn."""
        conversation = turns(messages)
        said = next(conversation)
        while said:
            prompt = tokens_of(self.target, said)
            (text,) = self.write([prompt], [f"> {said[-1]['content']}\n"], seed)
            try:
                said = conversation.send(text.text)
            except StopIteration:
                return

    def report(self) -> None:
        """Write `--svg`, `--json` or the last line for all texts."""
        if not self.generations:
            return
        if self.args.svg:
            self.args.svg.write_text(picture(self.generations, self.target.text_of), encoding="utf-8")
        if self.args.json:
            for generation in self.generations:
                print(json.dumps(report(generation, self.args, self.seconds)))
        else:
            print(end="\n" if self.cut else "")
            threads = self.args.threads if self.target.device.type == "cpu" else None
            print(summary(self.generations, self.seconds, threads), file=sys.stdout if self.args.show else sys.stderr)


def check_arguments(args: argparse.Namespace) -> None:
    """Raise for arguments that exclude each other; set the defaults of --method and --k."""
    if args.system is not None and not args.chat:
        raise ValueError("argument --system: expected --chat with it; got none")
    if args.logprobs is not None and not args.json:
        raise ValueError("argument --logprobs: expected --json with it; got none")
    args.method = args.method or ("race" if args.paths is None else "paths")
    if args.paths is not None:
        if args.method != "paths" or args.tree is not None:
            raise ValueError("argument --paths: expected --method paths and no --tree with it; got others")
        if args.draft_policy is not None or args.draft_prob != 1:
            raise ValueError("argument --paths: expected no --draft-prob or --draft-policy with it; got one")
        args.k = args.k if args.k is not None else "auto" if args.paths == "auto" else 4
        numbers = [x for x in (args.paths, args.k) if x != "auto"]
        if len(numbers) == 2 and args.paths * args.k > MOST_DRAFTED:
            drafted = f"at most {MOST_DRAFTED} tokens a round; got {args.paths * args.k}"
            raise ValueError(f"argument --paths: expected {drafted}")
    elif args.method == "paths":
        raise ValueError("argument --method: expected --paths with paths; got none")
    if args.tree is None:
        for option in ("calibrate", "replacement"):
            if getattr(args, option):
                raise ValueError(f"argument --{option}: expected --tree with it; got none")
        args.k = 4 if args.k is None else args.k
        return
    if args.k is not None or args.draft_policy is not None or args.draft_prob != 1:
        raise ValueError("argument --tree: expected no --k, --draft-prob or --draft-policy with it; got one")
    if args.calibrate and args.tree.kind != "optimal":
        raise ValueError(f"argument --calibrate: expected --tree optimal:K; got {args.tree.word}")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """Temperature and filters, by the rules of the engine that the arguments name."""
    make = Sampling if args.preset is None else getattr(Sampling, args.preset)
    return make(args.temperature, args.top_k, args.top_p, args.min_p)


def edits_of(args: argparse.Namespace) -> TextEdits | None:
    """Penalties, bias and the allowed tokens; None without any."""
    from specdec_kernels.generate import TextEdits

    bias: dict[int, float] = {}
    for token, value in args.bias:
        if token in bias:
            raise ValueError(f"argument --bias: expected each token once; got {token} twice")
        bias[token] = value
    penalties = args.repetition_penalty, args.frequency_penalty, args.presence_penalty
    edits = TextEdits(*penalties, bias or None, args.allow)
    return None if edits == TextEdits() else edits


def acceptance_of(
    args: argparse.Namespace, target: LanguageModel, drafter: Drafter | None, prompts: Sequence[str],
    how: dict[str, Any],
) -> list[float] | None:  # fmt: skip
    """Acceptance by child index for `--tree optimal:K`, None with other trees."""
    if args.tree is None or args.tree.kind != "optimal":
        return None
    if not args.calibrate:
        return list(USUAL_ACCEPTANCE)
    from specdec_kernels.studies.measure import calibrate

    acceptance = calibrate(target, drafter, prompts, seed=args.seed, **how)
    print("acceptance by child", *(f"{rate:.3f}" for rate in acceptance), file=sys.stderr)
    return acceptance


def tree_policy_of(args: argparse.Namespace) -> TreePolicy:
    """The tree policy that the arguments name."""
    from specdec_kernels import DraftTree
    from specdec_kernels.generate import FixedTree, PathController, TreeController

    if args.paths:
        if "auto" not in (args.paths, args.k):
            return FixedTree(DraftTree.chains(args.paths, args.k))
        sizes = {} if args.k == "auto" else {"max_k": args.k}
        return PathController(**sizes) if args.paths == "auto" else PathController(paths=[args.paths])
    _, kind, numbers = args.tree
    if kind == "auto":
        return TreeController()
    if kind == "optimal":
        return FixedTree(DraftTree.optimal(args.acceptance, *numbers))
    with options.errors_of("--tree: "):
        make = {"specinfer": DraftTree.specinfer, "parents": DraftTree.from_parents}.get(kind)
        return FixedTree(make(numbers) if make else getattr(DraftTree, kind)(*numbers))


def prompts_of(args: argparse.Namespace) -> list[str]:
    prompts = list(args.prompt or [])
    prompts += [options.text_of_file(path) for path in args.prompt_file or []]
    if not prompts and args.target == "embedded:target":
        prompts = ["ROMEO:\n"]
    if not prompts:
        raise ValueError("argument --prompt: expected a prompt or --prompt-file with a target from --target")
    return prompts


def models_of(args: argparse.Namespace) -> tuple[LanguageModel, Drafter | None]:
    """The target and the drafter that the arguments name."""
    from specdec_kernels.generate import CachedNgramDrafter, ModelDrafter, NgramCache, NgramDrafter, ParallelDrafter
    from specdec_kernels.generate.derived import early_exit
    from specdec_kernels.generate.drafters import looks_ahead
    from specdec_kernels.generate.models import check_vocabularies, device_of, load_model

    with options.errors_of("--"):
        device = device_of(args.device)
    with options.errors_of("--target: "):
        target = load_model(args.target, dtype=args.dtype, device=device)
    source = args.draft or ("embedded:draft" if args.target == "embedded:target" else "ngram")
    sizes = {"longest": args.ngram_max, "shortest": args.ngram_min}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    if sizes and source not in NGRAMS:
        raise ValueError(f"argument --ngram-max, --ngram-min: expected --draft ngram or ngram-cache; got {source}")
    if args.method == "plain" or source == "none":
        return target, None
    if args.draft_vocabulary is not None and source in NGRAMS:
        raise ValueError(f"argument --draft-vocabulary: expected a model with --draft; got {source}")
    if args.draft_vocabulary is not None and args.tensor_parallel > 1:
        raise ValueError("argument --draft-vocabulary: expected none with --tensor-parallel; got one")
    if source in NGRAMS:
        with options.errors_of("--ngram-max, --ngram-min: "):
            return target, NgramDrafter(**sizes) if source == "ngram" else CachedNgramDrafter(NgramCache(**sizes))
    kind, _, layers = source.partition(":")
    with options.errors_of("--draft: "):
        exits = kind == "early-exit"
        draft = early_exit(target, int(layers)) if exits else load_model(source, dtype=args.dtype, device=device)
    check_vocabularies(target, draft)
    size = args.draft_vocabulary
    most = min(draft.config.vocab_size, target.config.vocab_size)
    make = ParallelDrafter if looks_ahead(draft) else ModelDrafter
    return target, make(draft, None if size is None or size >= most else range(size))


def policy_of(args: argparse.Namespace, drafter: Drafter | None) -> ChainPolicy:
    """The draft policy that the arguments name."""
    from specdec_kernels.generate import Controller, FixedLength, RandomLength

    if drafter is None:
        return FixedLength(0)
    randomised = args.draft_policy is not None or args.draft_prob != 1
    if args.k != "auto" and randomised:
        return RandomLength(args.k, args.draft_prob, args.draft_policy or "chain")
    if args.k != "auto":
        return FixedLength(args.k)
    if args.draft_policy is not None and args.method == "block":
        raise ValueError("argument --draft-policy: expected --method rejection; got block")
    if args.draft_prob != 1 or args.draft_policy not in (None, "chain"):
        raise ValueError("argument --k: expected a number with --draft-prob or --draft-policy; got 'auto'")
    return Controller(randomised=args.draft_policy == "chain", block=args.method == "block")

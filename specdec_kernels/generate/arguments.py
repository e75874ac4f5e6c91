"""The arguments of `generate`: checked, and spread over the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

import specdec_kernels as specdec
from specdec_kernels import LogitEdits
from specdec_kernels.generate.checks import real_number, several, whole_number, whole_numbers
from specdec_kernels.generate.edits import Numbers, Record, TextEdits
from specdec_kernels.generate.noise import Noise, Sampling, Watermark
from specdec_kernels.generate.policies import FixedLength, FixedTree, RandomLength
from specdec_kernels.generate.protocols import ChainPolicy, Drafter, TreeDrafter, TreePolicy
from specdec_kernels.trees import DraftTree
from specdec_kernels.watermark import check_key, check_race

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel

METHODS = ("plain", "rejection", "race", "block", "traversal", "paths")
FROM_LAWS = ("rejection", "block", "traversal", "paths")  # methods that read the drafts' laws
LARGEST = sys.float_info.max
Number = TypeVar("Number", int, float)


def token_lists(prompts: Sequence[str | Sequence[int]], target: LanguageModel) -> list[list[int]]:
    """The tokens of every prompt, each in the target's vocabulary."""
    if not several(prompts):
        raise TypeError(f"prompts: expected a list of texts or of lists of token ids; got {prompts!r}")
    vocab_size = target.tokens_read  # read once: the property searches a model for its embedding each time
    return [token_list(f"prompts[{index}]", prompt, target, vocab_size) for index, prompt in enumerate(prompts)]


def token_list(name: str, prompt: str | Sequence[int], target: LanguageModel, vocab_size: int) -> list[int]:
    """The tokens of one prompt; ids from `vocab_size` on are refused."""
    try:
        tokens = target.encode(prompt) if isinstance(prompt, str) else whole_numbers(prompt)
    except TypeError:
        raise TypeError(f"{name}: expected a text or a list of token ids; got {prompt!r}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not tokens:
        raise ValueError(f"{name}: expected at least one token; got none")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"{name}: expected token ids from 0 to {vocab_size - 1}, which {target.name} reads; got {token}"
            )
    return tokens


def policy_of(
    drafter: Drafter | None, k: int, draft_prob: float, policy: ChainPolicy | TreePolicy | None,
    tree: DraftTree | Sequence[int] | None, paths: int | None = None,
) -> ChainPolicy | TreePolicy:  # fmt: skip
    """The policy that these arguments describe."""
    k, draft_prob = whole_number("k", k), real_number("draft_prob", draft_prob)
    if tree is not None:
        if policy is not None:
            raise ValueError("policy: expected None with a tree")
        if paths is not None:
            raise ValueError(f"paths: expected None with a tree; got {paths!r}")
        return FixedTree(tree if isinstance(tree, DraftTree) else DraftTree.from_parents(tree))
    if paths is not None:
        if policy is not None:
            raise ValueError("policy: expected None with paths")
        return FixedTree(DraftTree.chains(whole_number("paths", paths, 1), k))
    if policy is not None:
        return policy
    return FixedLength(0 if drafter is None else k) if draft_prob == 1 else RandomLength(k, draft_prob)


def check_method(
    method: str, drafter: Drafter | None, policy: ChainPolicy | TreePolicy, draft_prob: float, replacement: bool,
    paths: int | None = None,
) -> None:  # fmt: skip
    """Raise unless method, drafter and policy go together."""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}; got {method!r}")
    if not isinstance(drafter, Drafter | None):
        raise TypeError(f"drafter: expected a Drafter or None; got {type(drafter).__name__}")
    if not isinstance(policy, ChainPolicy | TreePolicy):
        raise TypeError(f"policy: expected a ChainPolicy or a TreePolicy; got {type(policy).__name__}")
    if method == "plain" and drafter is not None:
        raise ValueError("drafter: expected None with method plain, which drafts nothing")
    if paths is not None and method != "paths":
        raise ValueError(f"paths: expected None with method {method}; got {paths!r}")
    if isinstance(policy, TreePolicy):
        check_tree_method(method, drafter, draft_prob, replacement)
    elif method == "traversal":
        raise ValueError("tree: expected one with method traversal (block is the same for chains); got None")
    elif method == "paths":
        raise ValueError("paths: expected a number of chains with method paths; got None")
    elif replacement:
        raise ValueError("replacement: expected False without a tree")
    elif policy.randomised and not (method == "rejection" and drafter is not None and drafter.laws):
        raise ValueError("draft_prob: expected method rejection and a model as drafter where drafting is randomised")


def check_tree_method(method: str, drafter: Drafter | None, draft_prob: float, replacement: bool) -> None:
    """Raise if a method and a drafter do not fit trees."""
    if method in ("plain", "block"):
        raise ValueError(f"tree: expected method rejection, race or traversal; got {method}")
    if not isinstance(drafter, TreeDrafter):
        raise ValueError("tree: expected a model as drafter")
    if draft_prob != 1:
        raise ValueError(f"draft_prob: expected 1 with a tree; got {draft_prob}")
    if replacement and method in ("race", "paths"):
        raise ValueError(f"replacement: expected method rejection or traversal; got {method}")


def check_lengths(prompts: list[list[int]], max_new_tokens: int, models: Sequence[LanguageModel]) -> None:
    """Raise unless every model can read every prompt and write on to the end."""
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    length = len(prompts[longest])
    for model in models:
        end = model.max_length
        if end is not None and length >= end:
            raise ValueError(
                f"prompts[{longest}]: expected at most {end - 1} tokens ({model.name} ends at {end}); got {length}"
            )
        if end is not None and length + max_new_tokens > end:
            raise ValueError(
                f"max_new_tokens: expected at most {end - length} after a prompt of {length} tokens "
                f"({model.name} ends at {end}); got {max_new_tokens}"
            )


def check_models(models: Sequence[LanguageModel], policy: ChainPolicy | TreePolicy) -> None:
    """Raise unless every model can be read in pieces, and in trees where the policy plans them."""
    for model in models:
        model.check_readable()
        if isinstance(policy, TreePolicy):
            model.check_trees()


def stop_strings(stop: Sequence[str], target: LanguageModel) -> tuple[str, ...]:
    """The strings that end a text."""
    if not several(stop) or not all(isinstance(text, str) for text in stop):
        raise TypeError(f"stop: expected a list of strings; got {stop!r}")
    if "" in stop:
        raise ValueError(f"stop[{list(stop).index('')}]: expected a string that is not empty; got ''")
    if stop and target.tokenizer is None:
        raise ValueError(f"stop: expected none with {target.name}, which has no tokenizer; got {stop}")
    return tuple(stop)


def end_tokens(eos_token_ids: Iterable[int] | None, target: LanguageModel) -> set[int]:
    """The tokens that end a text."""
    try:
        return target.eos_token_ids if eos_token_ids is None else set(whole_numbers(eos_token_ids))
    except TypeError:
        raise TypeError(f"eos_token_ids: expected a list of token ids; got {eos_token_ids!r}") from None


def spread(name: str, value: int | Sequence[int], batch: int) -> torch.Tensor:
    """A number of 64 bits per request, int64 [batch]; a single number s is spread to s, s + 1, …"""
    try:
        numbers = whole_numbers(value) if several(value) else [whole_number("", value, None) + i for i in range(batch)]
    except TypeError:
        raise TypeError(f"{name}: expected a whole number or one per prompt; got {value!r}") from None
    if len(numbers) != batch:
        raise ValueError(f"{name}: expected a number or one per prompt ({batch}); got {len(numbers)}")
    if several(value) and not all(-(2**63) <= x < 2**64 for x in numbers):
        raise ValueError(f"{name}: expected 64 bits at most; got {numbers}")
    return torch.tensor([(x + 2**63) % 2**64 - 2**63 for x in numbers], dtype=torch.int64, device="cpu")


def sampling_of(temperature: float | Sequence[float] | None, sampling: Sampling | None, batch: int) -> Sampling:
    """The Sampling with a temperature per request, float32 [batch]. Filters are numbers or one per request.

    A filter that is off stays a number; backends without filters would refuse a tensor, which may be on.
    """
    if sampling is None:
        value = 1.0 if temperature is None else temperature
        return Sampling(each(reals("temperature", value, batch, "finite numbers >= 0"), batch))
    if temperature is not None:
        raise ValueError(f"temperature: expected None beside sampling=, which has one; got {temperature!r}")
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling: expected a Sampling; got {sampling!r}")
    if sampling.divided:
        raise ValueError("sampling.divided: expected False, for models give logits as they are; got True")
    top_k = one_or_each("sampling.top_k", sampling.top_k, batch, "whole number", kept_count)
    return sampling._replace(
        temperature=each(reals("sampling.temperature", sampling.temperature, batch, "finite numbers >= 0"), batch),
        top_k=torch.tensor(top_k, dtype=torch.int64, device="cpu") if isinstance(top_k, list) else top_k,
        top_p=reals("sampling.top_p", sampling.top_p, batch, "numbers from 0 to 1", most=1),
        min_p=reals("sampling.min_p", sampling.min_p, batch, "numbers from 0 to 1", most=1),
    )


def kept_count(name: str, value: object) -> int:
    """A top_k; below 1, and beyond any vocabulary, it means all."""
    return min(max(whole_number(name, value, None), 0), 2**31 - 1)


def reals(
    name: str, value: float | Sequence[float], batch: int, expected: str, least: float = 0.0, most: float = LARGEST
) -> float | torch.Tensor:
    """A number in [least, most], or float32 [batch] of them."""
    numbers = one_or_each(name, value, batch)
    if not all(least <= number <= most for number in (numbers if isinstance(numbers, list) else [numbers])):
        raise ValueError(f"{name}: expected {expected}; got {value}")
    return torch.tensor(numbers, dtype=torch.float32, device="cpu") if isinstance(numbers, list) else numbers


def each(value: float | torch.Tensor, batch: int) -> torch.Tensor:
    """float32 [batch], of one for all or of these."""
    return value if isinstance(value, torch.Tensor) else torch.full((batch,), value, dtype=torch.float32, device="cpu")


def one_or_each(
    name: str, value: object, batch: int, kind: str = "number", read: Callable[[str, object], Number] = real_number
) -> Number | list[Number]:
    """A number, or a list of one per request."""
    try:
        numbers = [read("", entry) for entry in value] if several(value) else read("", value)
    except TypeError:
        raise TypeError(f"{name}: expected a {kind} or one per prompt; got {value!r}") from None
    if isinstance(numbers, list) and len(numbers) != batch:
        raise ValueError(f"{name}: expected a {kind} or one per prompt ({batch}); got {len(numbers)}")
    return numbers


def record_of(edits: TextEdits | None, prompts: list[list[int]], target: LanguageModel) -> Record | None:
    """The edits of these texts; None where there are none."""
    if edits is None:
        return None
    if not isinstance(edits, TextEdits):
        raise TypeError(f"edits: expected a TextEdits; got {edits!r}")
    batch, most = len(prompts), torch.finfo(torch.float32).max
    penalties = {name: getattr(edits, name) for name in Numbers._fields}
    numbers = Numbers(*(
        each(reals(f"edits.{name}", value, batch, "finite numbers", -most, most), batch)
        for name, value in penalties.items()
    ))  # fmt: skip
    if not (numbers.repetition > 0).all():
        raise ValueError(f"edits.repetition: expected numbers above 0; got {edits.repetition}")
    bias, allowed = bias_of(edits.bias, target), allowed_of(edits.allowed, target)
    off = (numbers.repetition == 1).all() and not numbers.frequency.any() and not numbers.presence.any()
    if off and not bias and allowed is None:
        return None
    numbers = Numbers(*(number.to(target.device) for number in numbers))
    return Record(numbers, bias, allowed, prompts, target.config.vocab_size)


def bias_of(bias: Mapping[int, float] | None, target: LanguageModel) -> dict[int, float]:
    """From token ids of the target to numbers below inf."""
    if bias is None:
        return {}
    try:
        biases = {whole_number("", token): real_number("", value) for token, value in bias.items()}
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"edits.bias: expected a dict from token ids to numbers; got {bias!r}") from None
    check_ids("edits.bias", biases, target)
    for token, value in biases.items():
        if not value < float("inf"):
            raise ValueError(f"edits.bias[{token}]: expected a finite number or -inf; got {value}")
    return biases


def allowed_of(allowed: Sequence[int] | None, target: LanguageModel) -> list[int] | None:
    """Token ids of the target, one at least."""
    if allowed is None:
        return None
    try:
        tokens = whole_numbers(allowed)
    except TypeError:
        raise TypeError(f"edits.allowed: expected a list of token ids; got {allowed!r}") from None
    if not tokens:
        raise ValueError("edits.allowed: expected one token at least; got none")
    check_ids("edits.allowed", tokens, target)
    return tokens


def check_ids(name: str, tokens: Iterable[int], target: LanguageModel) -> None:
    """Raise unless the target writes all of these tokens."""
    most = target.config.vocab_size - 1
    for token in tokens:
        if not 0 <= token <= most:
            raise ValueError(f"{name}: expected token ids from 0 to {most}, which {target.name} writes; got {token}")


def check_left(edits: TextEdits, record: Record, name: str, tokens: torch.Tensor | slice) -> None:
    """Raise if edits forbid all tokens that this model writes."""
    if not record.left()[tokens].any():
        wrong = " and ".join(f"edits.{part}" for part in ("bias", "allowed") if getattr(edits, part) is not None)
        raise ValueError(f"{wrong}: expected at least one token to be left that {name} writes; got none")


def check_ops(sampling: Sampling, seeds: torch.Tensor, logprobs: int | None, edited: bool) -> None:
    """Raise the ops' errors about these arguments, and their backend's, before the first token."""
    rows = torch.zeros(len(seeds), 1, dtype=torch.float32, device=seeds.device)
    edits = LogitEdits(presence=1.0) if edited else None
    tokens = specdec.race_sample(rows, seed=seeds, position=0, sampling=sampling, edits=edits)
    if logprobs is not None:
        specdec.logprobs(rows, tokens, sampling=sampling, edits=edits)


def noise_of(
    seed: int | Sequence[int], watermark: Watermark | None, method: str, prompts: list[list[int]], device: torch.device
) -> Noise:
    """The noise of each text after its prompt, with its watermark, checked."""
    ends = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=device)
    noise = Noise(spread("seed", seed, len(prompts)).to(device), ends)
    if watermark is None:
        return noise
    if not isinstance(watermark, Watermark):
        raise TypeError(f"watermark: expected a Watermark; got {watermark!r}")
    check_race("watermark", "race" if method == "plain" else method)
    keys = watermark.key
    if not several(keys):
        check_key("watermark.key", one := whole_number("watermark.key", keys, None))
        keys = [one] * len(prompts)
    key = spread("watermark.key", keys, len(prompts)).to(device)
    return noise._replace(key=key, start=ends, window=watermark.window)


def count_of_likeliest(logprobs: int | None, target: LanguageModel) -> int | None:
    """The number of likeliest tokens beside each written one, or None."""
    if logprobs is None:
        return None
    count, most = whole_number("logprobs", logprobs), target.config.vocab_size
    if count > most:
        raise ValueError(f"logprobs: expected at most {most}, the vocabulary of {target.name}; got {count}")
    return count

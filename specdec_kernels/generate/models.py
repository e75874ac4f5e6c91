"""Hugging Face causal language models, and what they must be to generate with."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from specdec_kernels.generate.attention import RECURRENT, windows_of
from specdec_kernels.generate.checks import whole_number
from specdec_kernels.generate.reader import Reader
from specdec_kernels.sharded import VocabShard

EMBEDDED = Path(__file__).resolve().parent.parent / "models"


class LanguageModel:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    model : PreTrainedModel
        A transformers causal language model with attention, full or through sliding windows, and recurrent layers.
    tokenizer : PreTrainedTokenizerBase, optional
        Its tokenizer, or None where only token ids are used.
    name : str
        What errors call it.

    Attributes
    ----------
    windows : dict of str to int or None
        By kind of its layers, how many tokens they see; None: all, or a state.
    recurrent : bool
        Whether some layers have a state, which cannot forget a token. What was accepted may have to be read again.
    cache_argument : str
        What its forward calls the cache: ``past_key_values``, or ``cache`` from transformers 5.24 on.
    shard : VocabShard or None
        Which slice of the vocabulary its logits are, where ranks share its head (`parallel.split_head`).
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str = "model"
    ) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.config = model.config.get_text_config()
        self.device, self.windows = model.device, windows_of(model, name)
        self.recurrent = not RECURRENT.isdisjoint(self.windows)
        parameters = inspect.signature(model.forward).parameters
        self.keeps_logits = "logits_to_keep" in parameters
        self.cache_argument = next((x for x in ("past_key_values", "cache") if x in parameters), "")
        if "position_ids" not in parameters or not self.cache_argument:
            raise ValueError(f"{name}: expected a model with position_ids and a cache; got {type(model).__name__}")
        self.readable = False
        self.shard: VocabShard | None = None  # which slice of the vocabulary its logits are; None: all

    @property
    def max_length(self) -> int | None:
        """The longest text, in tokens; None if any will do.

        Where rotary frequencies change for all positions once a text is long (longrope), it ends before they do: what
        is cached would have to be read again.
        """
        rope = getattr(self.config, "rope_parameters", None) or getattr(self.config, "rope_scaling", None) or {}
        lengths = [getattr(self.config, "max_position_embeddings", None)]
        for rotary in (rope, *(of_kind for of_kind in rope.values() if isinstance(of_kind, dict))):
            if rotary.get("rope_type") == "longrope":
                lengths.append(rotary.get("original_max_position_embeddings"))
        return min((length for length in lengths if length), default=None)

    @property
    def tokens_read(self) -> int:
        """How many token ids it can read: rows of its embedding."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def eos_token_ids(self) -> set[int]:
        eos = self.model.generation_config.eos_token_id
        return set(eos) if isinstance(eos, list) else set() if eos is None else {eos}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text.

        Raises
        ------
        ValueError
            No tokenizer, or what UTF-8 cannot hold.
        """
        if self.tokenizer is None:
            raise ValueError(f"expected token ids for {self.name}, which has no tokenizer; got a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"expected text in UTF-8; got {text[error.start : error.end]!r} in it") from error
        return self.tokenizer(text)["input_ids"]

    def text_of(self, token: int) -> str:
        """The text of one token; its number without a tokenizer."""
        return str(token) if self.tokenizer is None else self.tokenizer.decode([token])

    def reader(self, batch: int, capacity: int) -> Reader:
        return Reader(self, batch, capacity)

    def check_readable(self) -> None:
        """Raise ValueError unless reading in pieces, with masks and a cache of ours, gives the logits of one forward.

        Five tokens are read, once, and some of them taken back on the way. That tells models apart whose attention is
        not causal, whose positions do not begin at 0, or that remember in other ways than by keys, values and states.
        """
        if self.readable:
            return
        text = torch.tensor(
            [[(1 + i) * self.tokens_read // 7 for i in range(5)]], device=self.device, dtype=torch.int64
        )
        try:
            reader = self.reader(1, 5)
            # Put back to nothing, and to the states after two tokens.
            for end, known in ((4, 0), (1, 1), (2, 2), (4, 3)) if self.recurrent else ((3, 3),):
                reader.read(text, [end], rows=1)
                reader.roll_back([known])
            ours = reader.read(text, [5], rows=2)[0].double()
            with torch.no_grad():
                theirs = self.model(input_ids=text, use_cache=False).logits[0, 3:].double()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # transformers' models raise what they please
            raised = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(
                f"{self.name}: expected a model that reads with a mask, position_ids and a cache; "
                f"got {type(self.model).__name__}, which raised {raised}"
            ) from error
        ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (ours, theirs))  # of one token: 0
        apart = float((ours - theirs).norm() / theirs.norm())
        if apart > (0.01 if self.model.dtype.itemsize >= 4 else 0.25):
            raise ValueError(
                f"{self.name}: expected logits that do not depend on how a text is read in pieces; "
                f"got {type(self.model).__name__}, whose logits differ by {apart:.0%}"
            )
        self.readable = True


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return str(error).strip().split("\n")[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing progress bars and from saying what our errors say."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def load_model(
    directory: str | Path, *, dtype: str | torch.dtype | None = None, device: str = "cpu"
) -> LanguageModel:  # fmt: skip
    """Load a causal language model and its tokenizer from a directory or the local Hugging Face cache, not the network.

    Parameters
    ----------
    directory : str or Path
        A Hugging Face model directory; "embedded:target" and "embedded:draft" are the pair in this package, and
        "embedded:parallel" is a draft for a `ParallelDrafter`.
    dtype : str or torch.dtype, optional
        What the model computes in; with float64, forwards of any shape give the same float32 logits. Default: float32
        on a CPU, half precision (bfloat16, or float16 where a GPU has no bfloat16) elsewhere.
    device : {"cpu", "cuda", "auto"}
        "auto" is a GPU where there is one.

    Raises
    ------
    ValueError
        Nothing there, not a causal language model, weights that are not all there, or no such device.

    Examples
    --------
    >>> model = load_model("embedded:draft")
    >>> model.encode("To be")
    [256, 84, 111, 32, 98, 101]
    """
    device = device_of(device)
    dtype = default_dtype(device) if dtype is None else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    name = str(directory)
    path = EMBEDDED / name.removeprefix("embedded:") if name.startswith("embedded:") else name
    try:
        with quiet():
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, local_files_only=True, ignore_mismatched_sizes=True, output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        wrong = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
        if wrong:
            raise ValueError(f"{len(wrong)} weights are missing or of another shape, such as {min(wrong)}")
    except Exception as error:  # what transformers, safetensors and tokenizers raise has no common base
        reason = first_line(error) if Path(path).is_dir() else "no such directory"
        raise ValueError(f"{name}: expected a Hugging Face causal language model directory ({reason})") from error
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others are for shorter numbers
    return LanguageModel(model.to(device), tokenizer, name)


def device_of(word: str) -> str:
    """The device of this name, "auto" being the fastest there is; ValueError unless it is there."""
    if word == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(word).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: expected one of this machine, which has no CUDA device; got {word}")
    return word


def default_dtype(device: str) -> torch.dtype:
    """What models compute in there: half precision, but on a CPU."""
    if torch.device(device).type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def early_exit(target: LanguageModel, layers: int) -> LanguageModel:
    """A draft made of the target itself: its first layers, then its last norm and its head. No weight is copied.

    Parameters
    ----------
    target : LanguageModel
        The model to draft for.
    layers : int
        How many of its layers, from 1 to one less than all.

    Raises
    ------
    TypeError, ValueError
        If `layers` is no such number, or the model has no list of layers of the length that its config says.

    References
    ----------
    Zhang et al. (2023), Draft & Verify; Elhoushi et al. (2024), LayerSkip.

    Examples
    --------
    >>> target = load_model("embedded:target")
    >>> early_exit(target, 2).name
    'embedded:target (2 of 6 layers)'
    """
    layers, depth = whole_number("layers", layers, 1), target.config.num_hidden_layers
    if layers >= depth:
        raise ValueError(f"layers: expected 1 to {depth - 1}, less than {target.name} has; got {layers}")
    lists = (
        name for name, module in target.model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth
    )  # fmt: skip
    place = next(lists, None)
    if place is None:
        raise ValueError(f"{target.name}: expected a list of {depth} layers to leave early; got none")
    model = holder = apart(target.model)
    *path, last = place.split(".")
    for part in path:
        holder._modules[part] = apart(holder._modules[part])
        holder = holder._modules[part]
    holder._modules[last] = holder._modules[last][:layers]
    return LanguageModel(model, target.tokenizer, f"{target.name} ({layers} of {depth} layers)")


def apart(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the same parts, any of which can be replaced without changing the first."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def of_tokens(language_model: LanguageModel, tokens: slice | torch.Tensor) -> LanguageModel:
    """The model with the rows of these tokens in its LM head alone: its logits are theirs."""
    head = language_model.model.get_output_embeddings()
    part = apart(head)
    part._parameters = dict(head._parameters)
    part.weight = torch.nn.Parameter(head.weight[tokens], requires_grad=False)
    if getattr(head, "bias", None) is not None:
        part.bias = torch.nn.Parameter(head.bias[tokens], requires_grad=False)
    model = apart(language_model.model)
    model.set_output_embeddings(part)
    return LanguageModel(model, language_model.tokenizer, language_model.name)


def check_vocabularies(target: LanguageModel, draft: LanguageModel) -> None:
    """Raise ValueError unless every token of the draft's tokenizer has the same id in the target's.

    Sizes may differ: a drafter draws from the logits of the target's tokens alone. Without tokenizers all is taken.
    """
    if target.tokenizer is None or draft.tokenizer is None:
        return
    ids = target.tokenizer.get_vocab()
    strangers = [token for token, index in draft.tokenizer.get_vocab().items() if ids.get(token) != index]
    if strangers:
        raise ValueError(
            f"draft {draft.name}: expected the vocabulary of target {target.name}; "
            f"got {len(strangers)} tokens that are not in it under the same id (such as {strangers[0]!r})"
        )

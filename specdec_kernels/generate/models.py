"""Hugging Face causal language models, and what they must be to generate with."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from specdec_kernels.generate.reader import CACHES, CHUNKED, FULL, SLIDING, STATE, Layers, ModelSpec, Reader, TextReader
from specdec_kernels.sharded import VocabShard

EMBEDDED = Path(__file__).resolve().parent.parent / "models"
CHECKED, LONGEST_CHECKED = 12, 128  # tokens that are read to see whether a model can be; the longest window among them
CHECKING = threading.Lock()  # held by a check: threads that share a model wait for what the first of them finds


class Kind(NamedTuple):
    """Layers of a kind.

    `mask`: the name of the mask that they take; "": none. `limit`: the field of the config that says how few tokens
    they see; "": all before. `state`: a state is put back, while slots are overwritten.
    """

    mask: str = FULL
    limit: str = ""
    state: bool = False


KINDS = {
    FULL: Kind(),
    SLIDING: Kind(SLIDING, "sliding_window"),
    CHUNKED: Kind(CHUNKED, "attention_chunk_size"),
    "indexed_attention": Kind("indexed_attention"),  # a slot holds a key of the indexer, too
    STATE: Kind("", state=True),
    "conv": Kind("", state=True),
    "hybrid": Kind(FULL, state=True),
    "hybrid_sliding": Kind(SLIDING, "sliding_window", state=True),
    "moe": Kind(""),
    "mlp": Kind(""),
}


def layers_of(model: PreTrainedModel) -> Layers | None:
    """The layers of a model; None if one is of no kind that a mask can express."""
    config = model.config.get_text_config()
    if config.model_type == "gpt_neo":
        seen = {kind: config.window_size if kind == "local" else None for kind in config.attention_layers}
        return Layers(seen, False)
    names = getattr(config, "layer_types", None)
    if not names:
        # Some models have a window in their config and do not use it.
        masked = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
        names = [SLIDING if getattr(config, "sliding_window", None) and masked else FULL]
    if not KINDS.keys() >= set(names):
        return None
    kinds = {KINDS[name] for name in names}
    windows = {kind.mask: getattr(config, kind.limit) if kind.limit else None for kind in kinds if kind.mask}
    recurrent = any(kind.state for kind in kinds)
    if recurrent:  # a model that has no such layer may ask for the mask all the same
        windows.setdefault(FULL, None)
    return Layers(dict(sorted(windows.items())), recurrent)


def cache_window(model: PreTrainedModel, layers: Layers) -> int | None:
    """The shortest window that transformers' cache has, and none of the masks; None if there is none."""
    with suppress(AttributeError):  # of configs that no cache is made of
        windows = (getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers)
        return min((window for window in windows if window and window not in layers.windows.values()), default=None)
    return None


class LanguageModel:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    model : PreTrainedModel
        A transformers causal language model.
    tokenizer : PreTrainedTokenizerBase, optional
        Its tokenizer, or None where only token ids are used.
    name : str
        What errors call it.

    Attributes
    ----------
    layers : Layers or None
        How masks and positions of ours are given to its layers. None: its texts are read one by one (`TextReader`).
    first_position : int
        The position of a text's first token: 0, or behind that of padding.
    recurrent : bool
        Whether what is read cannot be forgotten in part. What was accepted may have to be read again.
    cache_argument : str
        What its forward calls the cache: ``past_key_values``, or ``cache`` from transformers 5.24 on; "": it has none.
    shard : VocabShard or None
        Which slice of the vocabulary its logits are, where ranks share its head (`parallel.split_head`).
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str = "model"
    ) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.config = model.config.get_text_config()
        self.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self.keeps_logits = "logits_to_keep" in parameters
        self.cache_argument = next((x for x in CACHES if x in parameters), "")
        takes_masks = {"position_ids", "attention_mask"} <= parameters.keys() and self.cache_argument in CACHES[:2]
        self.may_cache = "use_cache" in parameters or takes_masks  # Granite hands it on among its keywords
        self.layers = layers_of(model) if takes_masks else None
        self.first_position, self.readable, self.reads_trees = 0, False, False
        self.shard: VocabShard | None = None  # which slice of the vocabulary its logits are; None: all

    @property
    def recurrent(self) -> bool:
        return bool(self.cache_argument) if self.layers is None else self.layers.recurrent

    @property
    def max_length(self) -> int | None:
        """The longest text, in tokens; None if any will do.

        Where rotary frequencies change for all positions once a text is long (longrope), it ends before they do: what
        is cached would have to be read again. Where transformers' cache has a window that no mask has, it ends with the
        window: beyond it, what a forward gives depends on what was cached before.
        """
        rope = getattr(self.config, "rope_parameters", None) or getattr(self.config, "rope_scaling", None) or {}
        longest = getattr(self.config, "max_position_embeddings", None)
        lengths = [longest and longest - self.first_position]
        for rotary in (rope, *(of_kind for of_kind in rope.values() if isinstance(of_kind, dict))):
            if rotary.get("rope_type") == "longrope":
                lengths.append(rotary.get("original_max_position_embeddings"))
        if self.layers is not None:
            lengths.append(cache_window(self.model, self.layers))
        return min((length for length in lengths if length and length > 0), default=None)

    @property
    def tokens_read(self) -> int:
        """How many token ids it can read: rows of its embedding. ValueError if it has several embeddings, or none."""
        weight = getattr(self.model.get_input_embeddings(), "weight", None)
        if weight is None:
            raise ValueError(
                f"{self.name}: expected a model that reads one token at a position; "
                f"got {type(self.model).__name__}, which has no single embedding"
            )
        return weight.shape[0]

    @property
    def eos_token_ids(self) -> set[int]:
        eos = self.model.generation_config.eos_token_id
        return set(eos) if isinstance(eos, list) else set() if eos is None else {eos}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; ValueError without a tokenizer, and for what UTF-8 cannot hold."""
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
        longest = self.max_length
        spec = ModelSpec(
            self.model, self.layers, self.first_position, longest and longest - 1, self.recurrent, self.cache_argument,
            self.keeps_logits, self.may_cache,
        )  # fmt: skip
        return (TextReader if self.layers is None else Reader)(spec, batch, capacity)

    def whole(self, text: torch.Tensor) -> torch.Tensor:
        """The logits [B, T, V] of one forward without a cache."""
        with torch.no_grad():
            return self.model(input_ids=text, **({"use_cache": False} if self.may_cache else {})).logits

    def check_readable(self) -> None:
        """Raise ValueError unless reading in pieces gives the logits of one forward; choose how it is read.

        Two texts are read, once, in steps and with some of their tokens taken back on the way: more tokens than a short
        window has. Masks of ours come first, with positions from 0 or from behind that of padding; else each text is
        read by itself, with the masks, positions and cache that the model makes.
        """
        with CHECKING:
            if not self.readable:
                way = self._way_to_read()
                self.layers, self.first_position, self.readable = way.layers, way.first_position, True

    def _way_to_read(self) -> LanguageModel:
        """This model with the layers and the first position by which it can be read; ValueError where there are none.

        Each way is tried on a copy, so that a check that fails leaves the model as it was.
        """
        first, most = (getattr(self.config, x, None) for x in ("pad_token_id", "max_position_embeddings"))
        ways = [(self.layers, 0)] if self.layers else []
        if ways and isinstance(first, int) and most and 0 <= first < most - 2 * CHECKED:
            ways.append((self.layers, first + 1))
        text, wrong, way = self._text_to_check(), "", copy.copy(self)
        for way.layers, way.first_position in [*ways, (None, 0)]:
            try:
                apart = way._apart_in_pieces(text)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # transformers' models raise what they please
                wrong = f"which raised {type(error).__name__}: {first_line(error)}"
                continue
            if not apart > self.tolerance:  # NaN is the law of one token, or no law: what is written says so
                return way
            wrong = f"whose logits differ by {apart:.1%}"
        raise ValueError(
            f"{self.name}: expected logits that do not depend on how a text is read in pieces; "
            f"got {type(self.model).__name__}, {way._lack(text) or wrong}"
        )

    def check_trees(self) -> None:
        """Raise ValueError unless the nodes of a tree can be read at once; asked of the model, once."""
        if self.recurrent or self.layers is None:
            lack = "has recurrent layers" if self.layers else "makes its masks itself"
            raise ValueError(f"tree: expected chains with {self.name}, which {lack}; got a tree")
        with CHECKING:
            self.reads_trees = self.reads_trees or self._heeds_tree_masks()
        if not self.reads_trees:
            raise ValueError(f"tree: expected chains with {self.name}, which does not heed a tree's mask; got a tree")

    def _heeds_tree_masks(self) -> bool:
        """Whether the nodes of a tree, read at once, have the logits of their branches, each read as a text."""
        text = self._text_to_check()
        first, begin = text[:1], text.shape[1] - 4
        branches = torch.cat([first[:, :begin].expand(2, -1), text[:, begin : begin + 2]], dim=1)
        parents = torch.tensor([-1, 0, 0, 1, 2], dtype=torch.int64, device=self.device)
        reader, nodes = self.reader(1, text.shape[1] + 1), torch.arange(5, dtype=torch.int64, device=self.device)
        tokens = torch.cat([first[0, begin - 1 : begin], branches[:, begin:].T.flatten()])[None]
        rows = reader.read_tree(first, [begin], parents, tokens, nodes)[0]
        ours = torch.stack([rows[[0, 1, 3]], rows[[0, 2, 4]]])
        return not apart_by(ours, self.whole(branches)[:, begin - 1 :]) > self.tolerance

    @property
    def tolerance(self) -> float:
        """How far logits of reading in pieces may be from those of one forward; experts may change by rounding."""
        return {8: 1e-4, 4: 0.01}.get(self.model.dtype.itemsize, 0.25)

    def _text_to_check(self) -> torch.Tensor:
        """Two texts, int64 [2, T]; each token differs from the one beside it."""
        layers = layers_of(self.model)
        windows = layers.windows.values() if layers else ()
        count = CHECKED + max((window for window in windows if window and window <= LONGEST_CHECKED), default=0)
        count = min(count, self.max_length or count)
        text = (1 + torch.arange(count, dtype=torch.int64, device=self.device)) * self.tokens_read // (count + 2)
        return torch.stack([text, text.flip(0)])

    def _apart_in_pieces(self, text: torch.Tensor) -> float:
        """How far the logits of texts that are read in pieces, with some taken back, are from those of one forward."""
        last, whole, reader = text.shape[1], self.whole(text), self.reader(2, text.shape[1])
        steps = [(last - 3, last - 3), (last - 1, last - 2), (last, last)]  # to where both are read, and what is left
        if self.recurrent:  # put back to nothing, and to the states after one token
            steps = [(last - 1, 1), (2, 2), *steps]
        ours, theirs = [], []
        for end, left in steps:
            ends = [end, end - 1]
            rows = min(stop - cached for stop, cached in zip(ends, reader.cached, strict=True))
            ours += reader.read(text, ends, rows)
            theirs += [whole[row, stop - rows : stop] for row, stop in enumerate(ends)]
            reader.roll_back([left, left - 1])
        return apart_by(torch.cat(ours), torch.cat(theirs))

    def _lack(self, text: torch.Tensor) -> str:
        """What a model that cannot be read in pieces lacks; "" if it does not say."""
        try:
            whole, reader = self.whole(text), self.reader(2, text.shape[1])
            if apart_by(self.whole(text[:, :-2]), whole[:, :-2]) > self.tolerance:
                return "whose logits depend on later tokens"
        except Exception:
            return ""
        try:
            rows = [reader.read(text, [end, end], rows=1) for end in range(1, 1 + text.shape[1])]
        except Exception as error:
            return f"whose cache raised {type(error).__name__}: {first_line(error)}"
        if apart_by(torch.cat(rows, dim=1), whole) > self.tolerance:
            return "whose cache does not hold what one forward sees"
        return "which begins anew from nothing wherever several tokens are read; one by one, their logits are right"


def apart_by(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """How far logits are from others, relative to these; NaN for those of one token."""
    ours, theirs = (logits.double() - logits.double().mean(-1, keepdim=True) for logits in (ours, theirs))
    return float((ours - theirs).norm() / theirs.norm())


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

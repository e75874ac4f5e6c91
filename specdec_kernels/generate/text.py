"""Turns tokens into text as they come: incomplete characters and possible stop strings wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextStream:
    """The text of a growing list of tokens that follow a prompt; empty without a tokenizer.

    The strings `stop` end it, and are not part of it.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, prompt: list[int], stop: tuple[str, ...] = ()
    ) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        # A few tokens of context, because some tokenizers treat the first token of a text differently.
        self.context, self.shown = prompt[-16:], 0
        self.tokens: list[int] = []
        self.skip = len(self._decode(self.context))

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True) if self.tokenizer else ""

    def append(self, tokens: list[int]) -> None:
        self.tokens += tokens

    def stopped(self) -> bool:
        """Whether the text contains a stop string."""
        return bool(self.stop) and any(stop in self._text() for stop in self.stop)

    def _text(self) -> str:
        return self._decode(self.context + self.tokens)[self.skip :]

    def read(self, final: bool = False) -> str:
        """The text that is certain and not returned yet; `final`: all that is left."""
        text = self._text()
        ends = [text.index(stop) for stop in self.stop if stop in text]
        end = min(ends) if ends else len(text)
        if not final:
            end -= self._doubtful(text[:end])
        piece, self.shown = text[self.shown : end], max(self.shown, end)
        return piece

    def _doubtful(self, text: str) -> int:
        """How many characters at the end may still change or become a stop string."""
        incomplete = len(text) - len(text.rstrip("\ufffd"))
        starts = [size for stop in self.stop for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return max([incomplete, *starts])

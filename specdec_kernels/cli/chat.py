"""Conversations for `generate --chat`: from arguments and files to the tokens before a turn's answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel

ROLES = ("system", "user", "assistant")
Messages = list[dict[str, str]]


def conversations_of(args: argparse.Namespace, text_of_file: Callable[[Path], str]) -> list[Messages]:
    """The conversations of `--prompt` and `--prompt-file`; a file named .json has several turns."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in args.prompt or []]
    for path in args.prompt_file or []:
        text = text_of_file(path)
        conversations.append(messages_of(path, text) if path.suffix == ".json" else [{"role": "user", "content": text}])
    if not conversations:
        raise ValueError("argument --chat: expected --prompt or --prompt-file with it; got none")
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [system + messages for messages in conversations]


def messages_of(path: Path, text: str) -> Messages:
    """The messages of a JSON file: strings are the user's, others have a role."""
    try:
        messages = json.loads(text)
        entries = [{"role": "user", "content": entry} if isinstance(entry, str) else entry for entry in messages]
        well = isinstance(messages, list) and all(
            set(entry) == {"role", "content"} and entry["role"] in ROLES and isinstance(entry["content"], str)
            for entry in entries
        )
    except (ValueError, TypeError):
        well = False
    if not well or not any(entry["role"] == "user" for entry in entries):
        expected = 'a JSON list of {"role": "system", "user" or "assistant", "content": text}, one of them the user\'s'
        raise ValueError(f"argument --prompt-file: expected {expected}; got {path}")
    return entries


def turns(messages: Messages) -> Iterator[Messages]:
    """The messages before each answer: up to a user's message without an answer. Answers are appended by `send`."""
    said: Messages = []
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        said.append(message)
        if message["role"] == "user" and (following is None or following["role"] != "assistant"):
            said.append({"role": "assistant", "content": (yield said)})


def tokens_of(target: LanguageModel, messages: Messages) -> list[int]:
    """The tokens of a conversation in the model's template, ready for an answer."""
    if not getattr(target.tokenizer, "chat_template", None):
        raise ValueError(
            f"argument --chat: expected a model whose tokenizer has a chat template; got {target.name}, which has none"
        )
    try:
        return list(target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    except Exception as error:  # exceptions of templates have no common base
        raise ValueError(f"argument --chat: {target.name}'s template takes no such conversation ({error})") from error

"""A conversation as token ids, in the form a chat model was taught: by its own template, or as ChatML.

A template comes with a model (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`, as Hugging Face
directories carry it) and is run in a sandbox that lets it write text and nothing else. It never sees what people and
documents wrote, only places for it. So whatever a message spells is text: a mark becomes a control token where the
template wrote it, and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from silo.errors import SiloError
from silo.text.tokenizer import Ids, Mark, Tokenizer

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"

CHATML_MARKS = ("<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MOST_BYTES = 1 << 18
_LISTED = {"name", "template"}
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_PLACE = re.compile("\ue000(\\d+)\ue001")
"""Stands for a message in what a template writes: private characters, which no template has a use for."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: the role is system, user or assistant."""

    role: str
    text: str


class ChatFormat:
    """How one model wants conversations written."""

    def __init__(self, tokenizer: Tokenizer, template: str, names: Mapping[str, str], where: Path) -> None:
        self._tokenizer = tokenizer
        self.source = template
        self._names = names
        self._where = where

    @classmethod
    def open(cls, root: Path, tokenizer: Tokenizer) -> ChatFormat | None:
        """The format of a model directory; None for a model that was not taught to chat."""
        settings = _read_settings(root / CONFIG)
        template = _read_template(root / TEMPLATE) or _listed_template(settings.get("chat_template"))
        if not template and all(mark in tokenizer.marks for mark in CHATML_MARKS):
            template = _CHATML
        return cls(tokenizer, template, _named_tokens(settings), root) if template else None

    def encode(self, messages: Sequence[Message]) -> Ids:
        """The conversation up to where the model's answer begins."""
        written = self._write(messages, answer_follows=True)
        parts = _without_taken_space(_join(self._parts(written, messages)))
        return np.concatenate([np.empty(0, dtype=np.uint32), *(_encode_part(part, self._tokenizer) for part in parts)])

    @cached_property
    def takes_system(self) -> bool:
        """May a conversation begin with a system message? Some templates refuse one."""
        try:
            self._write([Message("system", ""), Message("user", "")], answer_follows=True)
        except SiloError:
            return False
        return True

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer: the mark the template puts after one, else the text it puts there."""
        written = self._write([Message("user", ""), Message("assistant", "")], answer_follows=False)
        tail = _PLACE.split(written)[-1]
        mark = next((part.text for part in _cut_at_marks(tail, self._tokenizer.marks) if part.mark), tail.strip())
        named = self._names.get("eos_token", "")
        return tuple(dict.fromkeys(text for text in (mark, named) if text))

    def _write(self, messages: Sequence[Message], *, answer_follows: bool) -> str:
        """What the template makes of the conversation, with places instead of the texts."""
        from jinja2 import TemplateError

        asked = [{"role": item.role, "content": f"\ue000{at}\ue001"} for at, item in enumerate(messages)]
        try:
            written: str = self._template.render(messages=asked, add_generation_prompt=answer_follows, **self._names)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise _refuse(self._where, str(error) or type(error).__name__) from None
        if [int(at) for at in _PLACE.findall(written)] != list(range(len(messages))):
            raise _refuse(self._where, "it does not write every message once")
        return written

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def fail(message: str) -> NoReturn:
            raise TemplateError(message)

        place = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        place.globals["raise_exception"] = fail
        try:
            return place.from_string(self.source)
        except (TemplateError, RecursionError) as error:
            raise _refuse(self._where, str(error)) from None

    def _parts(self, written: str, messages: Sequence[Message]) -> Iterator[_Part]:
        """The template's own text, cut at its marks, and the messages, which are not cut."""
        for at, text in enumerate(_PLACE.split(written)):
            if at % 2:
                yield _Part(messages[int(text)].text)
            else:
                yield from _cut_at_marks(text, self._tokenizer.marks)


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a conversation: a mark, or text."""

    text: str
    mark: Mark | None = None


def _cut_at_marks(text: str, marks: Mapping[str, Mark]) -> Iterator[_Part]:
    longest_first = sorted(marks, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if marks else [text]
    for at, piece in enumerate(pieces):
        yield _Part(piece, marks[piece] if at % 2 else None)


def _join(parts: Iterable[_Part]) -> list[_Part]:
    """Texts that stand side by side become one: tokens may cross from the template into a message."""
    joined: list[_Part] = []
    for part in parts:
        if part.mark is None and joined and joined[-1].mark is None:
            joined[-1] = _Part(joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


def _without_taken_space(parts: Sequence[_Part]) -> Iterator[_Part]:
    """The parts without the white space that marks beside them swallow."""
    marks = [None, *(part.mark for part in parts), None]
    for part, before, after in zip(parts, marks, marks[2:], strict=False):
        text = part.text.lstrip() if before and before.takes_space_after else part.text
        yield _Part(text.rstrip() if after and after.takes_space_before else text, part.mark)


def _encode_part(part: _Part, tokenizer: Tokenizer) -> Ids:
    return np.array([part.mark.id], dtype=np.uint32) if part.mark else encode_text(part.text, tokenizer)


def encode_text(text: str, tokenizer: Tokenizer) -> Ids:
    """Ids none of which is a mark, whatever the text spells.

    A tokenizer takes special tokens in a text as text, but not those that its file adds without calling them special,
    and some chat models have such marks: a text that yields one is encoded character by character.
    """
    marks = np.array([mark.id for mark in tokenizer.marks.values()], dtype=np.uint32)
    (ids,) = tokenizer.encode([text])
    if not np.isin(ids, marks).any():
        return ids
    spelled = np.concatenate(tokenizer.encode(list(text)))
    return spelled[~np.isin(spelled, marks)]


def _read_settings(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_template(file: Path) -> str:
    if not file.is_file():
        return ""
    if file.stat().st_size > _MOST_BYTES:
        raise _refuse(file.parent, f"it is longer than {_MOST_BYTES} bytes")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(file.parent, str(error)) from None


def _listed_template(given: Any) -> str:
    """The template of a tokenizer's settings: a text, or the default one of several with names."""
    if isinstance(given, list):
        named = {item["name"]: item["template"] for item in given if isinstance(item, dict) and item.keys() >= _LISTED}
        given = named.get("default")
    return given if isinstance(given, str) and len(given) <= _MOST_BYTES else ""


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that a template may ask for by name; settings have them as text or as objects."""
    given = {name: settings.get(name) for name in _NAMED}
    plain = {name: value.get("content") if isinstance(value, dict) else value for name, value in given.items()}
    return {name: value for name, value in plain.items() if isinstance(value, str)}


def _refuse(root: Path, why: str) -> SiloError:
    return SiloError("template-invalid", f"the chat template of {root} cannot be used: {why}"[:300])

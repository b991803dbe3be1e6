"""`silo quickstart`: one command from a folder of documents and a model to attributed text, or to an answer.

A question is put to a chat model in ChatML: a worked example, then the passages found for the question, then the
question. The text that is written, scored and credited is the answer alone.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import nearest_path, read_json, remove_tree
from silo.inference.context import InContext
from silo.inference.gates import Gate, log_nodes
from silo.inference.retrieval import Retriever
from silo.inference.session import Session, open_session
from silo.inference.settings import Settings
from silo.lm.engine.decoder import DecodingModel
from silo.lm.manifest import CODEC_FOLDER, require_model
from silo.lm.tokenizer import FILE
from silo.lm.windows import Window, Windows
from silo.pairing import create_store, open_store
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Quarantined
from silo.sources import Tally, plan, read_documents
from silo.store.adding.add import Added
from silo.store.store import Store

if TYPE_CHECKING:
    pass

Tokens = NDArray[np.int64]

PASSAGES, PASSAGE_TOKENS = 2, 96
"""What a small chat model can read: with longer or more passages it loses the question."""

TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
ANSWER_STOPS = (END_OF_TURN, "\n\n")

_EXAMPLE_TEXT = "The library opens at nine. On Sundays it is closed, because the staff of four needs a day of rest."
_EXAMPLE_QUESTION = "Why is the library closed on Sundays?"
_EXAMPLE_ANSWER = "On Sundays it is closed, because the staff of four needs a day of rest."
_QUOTING = Gate((log_nodes((3, 4, 6, 10)),), np.array([0.0, 0.1, 0.2, 0.3]))
"""A model that speaks well needs no help with short matches, which lead astray; from four tokens on it is a quote."""


def fill_from_folder(
    folder: Path,
    model: Path,
    place: Path,
    *,
    owner: str = "",
    license: str = "",
    passage_tokens: int = 0,
    tally: Tally | None = None,
    advance: Advance = lambda *_: None,
) -> tuple[Added, list[Quarantined]]:
    """Make a store for a model, or take the one that is there, and put a folder's files in.

    Returns what became of the documents, and what could not be read. A model without a codec gets a store with exact
    matches and passages, which need none. `passage_tokens` is for a new store; `tally` is told what was skipped.
    """
    if not folder.is_dir():
        raise SiloError("input-missing", f"there is no folder {folder}", nearest_path(folder))
    source = SourceRecipe("folder", (glob.escape(str(folder.absolute())),), owner=owner, license=license)
    plan(source, folder)
    require_model(model)
    searches = ("knn", "ngram", "bm25") if (model / CODEC_FOLDER).is_dir() else ("ngram", "bm25")
    fresh = not (place / "data").exists()
    if fresh:
        store = create_store(place, model, searches=searches, passage_tokens=passage_tokens)
    else:
        store = open_store(place, model, encoding=True)
    unreadable: list[Quarantined] = []
    try:
        documents = read_documents(source, folder, unreadable, tally=tally, advance=advance)
        added = store.add(documents, advance=advance)
    finally:
        empty = fresh and next(store.documents(), None) is None
        store.close()
        if empty:
            remove_tree(place)
    if not added.added and not added.unchanged:
        why = [f"{item.code}: {item.where}" for item in unreadable[:1]] + [item.detail for item in added.refusals[:1]]
        raise SiloError("input-empty", f"{folder} has no text that may be stored", "; ".join(why))
    return added, unreadable


def first_words(store: Store) -> str:
    """The beginning of the first document, for a first prompt."""
    return " ".join(next(store.documents()).text.split()[:12])


def open_for_question(model: Path, store: Path, question: str, *, policy: str = "") -> Session:
    """A session that writes the answer, from an empty prompt until one of `ANSWER_STOPS`."""
    return open_session(
        model,
        store,
        method="ngram+ric",
        settings=Settings(ngram=_QUOTING),
        policy=policy,
        context=lambda language_model: QuestionContext(language_model, question),
    )


class QuestionContext:
    """Before an answer stands a chat with the question and the passages found for it; the answer has the other half."""

    def __init__(self, model: DecodingModel, question: str) -> None:
        self._tokenizer = model.tokenizer
        self._marks = _chat_marks(model.root)
        self._question = question
        room = min(model.context // 2, model.context - 3)
        length = model.context - room - 1
        self._windows = Windows(length, max(1, length // 2))
        self._each = (room - len(self._chat(""))) // PASSAGES
        if self._each < 1:
            raise SiloError("usage", f"the question leaves no room for passages in {model.context} tokens of context")

    def window_at(self, position: int) -> Window:
        """Windows of the answer, without the beginning-of-text token: a chat model knows it as the end."""
        window = self._windows.at(position)
        return replace(window, start=max(1, window.start))

    def find(self, text: Tokens, window: Window, retriever: Retriever) -> list[InContext]:  # noqa: ARG002
        """The same for every window; the best passage stands next to the question."""
        best = retriever.passages_apart(self._question, PASSAGES)
        texts = [self._tokenizer.decode(item.tokens[: self._each]).strip() for _, item in reversed(best)]
        return [InContext(self._chat("".join(f"{text}\n\n" for text in texts)), passages=tuple(best))]

    def _chat(self, passages: str) -> Tokens:
        """Finished turns and the opening of the answer. Marks are ids here; in the texts they stay text."""
        example = ("user", f"{_EXAMPLE_TEXT}\n\n{_EXAMPLE_QUESTION}"), ("assistant", _EXAMPLE_ANSWER)
        ids: list[int] = []
        for role, text in (*example, ("user", passages + self._question)):
            ids += [self._marks[TURN], *self._ids(f"{role}\n{text}"), self._marks[END_OF_TURN], *self._ids("\n")]
        return np.array([*ids, self._marks[TURN], *self._ids("assistant\n")], dtype=np.int64)

    def _ids(self, text: str) -> list[int]:
        (ids,) = self._tokenizer.encode([text])
        return [int(token) for token in ids]


def _chat_marks(model: Path) -> Mapping[str, int]:
    """The ids of the marks around a turn."""
    file = model / FILE
    known = {item["content"]: item["id"] for item in read_json(file)["added_tokens"]} if file.exists() else {}
    if not {TURN, END_OF_TURN} <= known.keys():
        hint = "take a model that was taught to chat in ChatML, or give --prompt"
        raise SiloError("usage", f"{model} has no {TURN} and {END_OF_TURN}: it cannot be asked", hint)
    return known

"""The folder in which a reader of the docs sits: small files under the names that the pages use, a corpus, a model."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

import silo.lm.training.train
from silo.corpus.corpus import Corpus
from silo.lm.network import PRESETS, find_preset
from silo.recipe import TrainRecipe
from tests.conftest import record, words, write_jsonl
from tests.inference.world import SHAPE, documents, make_model, make_store

ROOT = Path(__file__).parent.parent
WRITER = "A. Writer"
STORY = "Once upon a time there was a fox who lived at the edge of a wood, and nobody had ever told him a story."
NOTES = {
    "garden.md": "The variety of tomato that did best last year was Ruthje: it ripened in July and did not split.",
    "leave.md": "Parental leave is sixteen weeks at full pay. How long a holiday may be is said by the law.",
    "trains.html": "<h1>To the sea</h1><p>The first train leaves at 6:12, and the last train at 22:40.</p>",
}


def make_world(root: Path) -> None:
    """Everything that a page may begin with."""
    model = make_model(root / "making").rename(root / "my-model")
    (root / "making" / "corpus").rename(root / "my-corpus")
    (root / "making" / "tokenizer" / "tokenizer.json").rename(root / "tokenizer.json")
    shutil.rmtree(root / "making")
    stored = [replace(document, owner=WRITER) if at < 2 else document for at, document in enumerate(documents())]
    make_store(root / "my-store", model, stored).close()
    shutil.copytree(model, root / "chat-model")
    theirs = root / "path" / "to" / "huggingface-directory"
    shutil.copytree(model, theirs, ignore=shutil.ignore_patterns("manifest.json", "documents.npy", "codec"))
    _write_texts(root)
    _write_task(root / "my-tasks" / "reviews")


def _write_texts(root: Path) -> None:
    permitted = [record(f"t{number}", words(number, 40), license="CC0-1.0") for number in range(8)]
    code = [record(f"m{number}", words(50 + number, 40), domain="code") for number in range(4)]
    books = [record(f"b{number}", f"{STORY} {words(60 + number, 30)}", license="") for number in range(4)]
    mail = [record(f"l{number}", words(70 + number, 40), license="", owner="B. Sender") for number in range(3)]
    write_jsonl(root / "train.jsonl", permitted)
    write_jsonl(root / "test.jsonl", permitted[:1])
    (root / "book.txt").write_text(words(99, 300), encoding="utf-8")
    write_jsonl(root / "validation.jsonl", [record(f"v{number}", f"{STORY} {number}") for number in range(2)])
    write_jsonl(root / "private.jsonl", [{**book, "owner": WRITER} for book in books])
    for name, records in {"more": code, "books": books, "mail": mail, "data/web": permitted, "more/a/b": code}.items():
        plain = write_jsonl(root / f"{name}.jsonl", records)
        plain.with_suffix(".jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    for name in ("notes", "essays"):
        (root / name).mkdir()
        (root / name / "winter.txt").write_text(STORY.replace("fox", name), encoding="utf-8")
    for name, text in NOTES.items():
        (root / "notes" / name).write_text(text, encoding="utf-8")
    _refused()["write_input"](root / "in.jsonl")


def _write_task(folder: Path) -> None:
    """The task of docs/evaluate.md."""
    page = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    (content,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    examples = [{"text": f"The {word} story.", "label": label} for word in ("old", "new", "long") for label in (0, 1)]
    for split in ("validation", "test"):
        write_jsonl(folder / f"{split}.jsonl", examples)
    (folder / "task.json").write_text(content, encoding="utf-8")


def _refused() -> dict[str, Any]:
    """The script that plays the refused training runs of docs/train.md."""
    return runpy.run_path(str(ROOT / "benchmarks" / "refused.py"))


def slip_in() -> None:
    """Move a restricted record of `corpus` into its public-domain shard."""
    _refused()["slip_in"](Corpus.open(Path("corpus")))


def fill_in(command: str) -> str:
    """The command with what a reader copies from the owner's file in place of `--document ...` and `--salt ...`.

    What a page keeps on S3 is kept in memory.
    """
    command = command.replace("s3://", "memory://")
    if "--salt " not in command:
        return command
    document, salt = next(iter(json.loads(Path("for-the-owner.json").read_text(encoding="utf-8")).items()))
    return re.sub(r"--salt \S+", f"--salt {salt}", re.sub(r"--document \S+", f"--document {document}", command))


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Train every model in a few steps and small, and start no processes for the sake of speed."""
    patch.setattr(os, "sched_getaffinity", lambda _: {0})
    patch.setitem(PRESETS, "tiny", SHAPE)
    whole = silo.lm.training.train.train

    def short(recipe: TrainRecipe, out: Path, **options: Any) -> dict[str, Any]:
        find_preset(recipe.preset)
        small = replace(recipe, preset="tiny", vocabulary=300, context=64, max_tokens=512, batch_tokens=128)
        return whole(small, out, **options)

    patch.setattr(silo.lm.training.train, "train", short)

"""Small task folders for the tests of this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import write_jsonl

TEXTS = [
    "Hot water is poured over the leaves of tea",
    "The ship sails over the wide sea",
    "Tea is made with hot water",
    "the sea is wide and the sea is deep and the ship sails over the wide sea and over the deep sea",
    "The lazy dog sleeps over the tea",
    "A ship on the sea",
]
EXAMPLES = [{"text": text, "label": int("sea" in text)} for text in TEXTS]

LETTERS = {
    "template": "{text}.\n",
    "label_words": ["t", "s"],
    "domain_premise": ".\n",
    "fuzzy_verbalizer": {"t": ["t", "h", "T"], "s": ["s", "w"]},
}
WORDS = {"template": "{text} and the", "label_words": ["tea", "sea"], "label_names": ["drink", "water"]}


def write_task(folder: Path, content: dict[str, Any], **splits: list[dict[str, Any]]) -> Path:
    """A task folder; without splits it has the examples as validation and test."""
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(content), encoding="utf-8")
    for split, examples in (splits or {"validation": EXAMPLES, "test": EXAMPLES[:5]}).items():
        write_jsonl(folder / f"{split}.jsonl", examples)
    return folder

"""What a source holds and does not read, counted by ending and reason: nothing is passed over in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

TAKEN, USED = "taken", "used"
"""Not skipped: read as a document, or read for what it says about others."""

_REASONS = {
    "kind-unknown": "unknown kind",
    "not-text": "binary",
    "extra-missing": "needs: pip install 'silo-lm[docs]'",
    "records": "records: give them to --jsonl",
    "old-format": "old format: save it as .docx, .pptx or .xlsx",
    "link": "a link inside the folder",
    "not-entered": "never entered",
}
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Skipped:
    """Files of one ending that were left out for one reason. A folder's ending is its name and a slash."""

    ending: str
    reason: str
    files: int

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the reason in words."""
        return {"ending": self.ending, "reason": self.reason, "why": _REASONS[self.reason], "files": self.files}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Skipped:
        """The inverse of `as_json`."""
        return cls(content["ending"], content["reason"], content["files"])


def count_skipped(found: Iterable[tuple[str, str]]) -> tuple[Skipped, ...]:
    """Paths and reasons, counted; the most frequent first."""
    counts = Counter((_ending(path), reason) for path, reason in found)
    return merge_skipped(Skipped(*key, files) for key, files in counts.items())


def _ending(path: str) -> str:
    name = PurePosixPath(path).name
    return f"{name}/" if path.endswith("/") else PurePosixPath(name).suffix.lower()


def merge_skipped(items: Iterable[Skipped]) -> tuple[Skipped, ...]:
    """The same counts with equal ones added up, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for item in items:
        counts[item.ending, item.reason] += item.files
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(Skipped(ending, reason, files) for (ending, reason), files in ordered)


def skipped_facts(items: Iterable[Skipped]) -> dict[str, Any]:
    """How many files were skipped, and of which endings why, as plain values."""
    every = merge_skipped(items)
    return {"skipped": sum(item.files for item in every), "skipped_files": [item.as_json() for item in every]}


def describe_skipped(items: Iterable[Skipped]) -> str:
    """One line such as `skipped 3 files: 2 .xyz (unknown kind), 1 .bin (binary)`; empty if nothing was."""
    every = merge_skipped(items)
    if not every:
        return ""
    total = sum(item.files for item in every)
    named = [f"{item.files:,} {item.ending or 'without an ending'} ({_REASONS[item.reason]})" for item in every]
    others = total - sum(item.files for item in every[:_SHOWN])
    listed = named[:_SHOWN] + ([f"{others:,} of other kinds"] if others else [])
    return f"skipped {total:,} file{'s' if total > 1 else ''}: {', '.join(listed)}"

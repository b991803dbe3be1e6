"""The text of the dedup benchmark: as found, with planted near-duplicates, and an exact n-gram set to judge by.

The exact set shares no code with `silo.corpus`: words by regular expression, n-grams as strings in a Python set.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

import zstandard

LEVELS = (0.02, 0.05, 0.10, 0.20, 0.40, 0.70)
UNRELATED_PER_CASE = 5
_MIN_WORDS, _MAX_WORDS = 100, 2000
_FRESH_SHARE = 0.05

# an ideograph, kana or Hangul syllable is a word of its own; so is a run of letters and digits, where everything beyond
# ASCII that is not general punctuation counts as a letter
_SINGLE = "\u2e80-\u2fff\u3040-\ua4bf\uac00-\ud7ff"
_LETTERS = "0-9A-Za-z\xc0-\u1fff\u2080-\u2e7f\ua4c0-\uabff\ue000-\U0010ffff"
_WORD = re.compile(f"[{_SINGLE}]|[{_LETTERS}]+")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TOKEN = re.compile(r"\S+\s*")

Edit = Callable[[random.Random, list[str], list[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Record:
    """A document; `case` says how it came to be, and is empty for text as it was found."""

    id: str
    text: str
    case: str = ""


def text_bytes(records: Sequence[Record]) -> int:
    """The size of all texts in UTF-8."""
    return sum(len(one.text.encode()) for one in records)


def load_text(paths: Sequence[Path], size: int) -> tuple[list[Record], str]:
    """About `size` bytes, the same amount from each file as far as it goes, and a word on where they are from."""
    if not paths:
        print("no JSONL files given or found: reading the installed Python distributions instead", file=sys.stderr)
        return _numbered(_until(_installed_texts(), size)), "source files of installed Python distributions"
    texts: list[str] = []
    for left, path in zip(range(len(paths), 0, -1), sorted(paths, key=lambda one: one.stat().st_size), strict=True):
        share = (size - sum(len(one.encode()) for one in texts)) // left
        texts += _until(_jsonl_texts(path), share)
    return _numbered(texts), f"{len(paths)} JSONL files, one per domain, an equal part of each"


def _numbered(texts: Sequence[str]) -> list[Record]:
    return [Record(str(at), text) for at, text in enumerate(texts)]


def _jsonl_texts(path: Path) -> Iterator[str]:
    with path.open("rb") as raw:
        data = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
        for line in io.TextIOWrapper(data, encoding="utf-8"):
            yield json.loads(line)["text"]


def _installed_texts() -> Iterator[str]:
    """Python files without their indentation, which no deduper looks at."""
    for distribution in distributions():
        for file in distribution.files or ():
            if file.suffix == ".py" and (path := Path(str(file.locate()))).is_file():
                yield re.sub("[ \t]+", " ", path.read_text(encoding="utf-8", errors="ignore"))


def _until(texts: Iterator[str], size: int) -> list[str]:
    taken = []
    for text in texts:
        if text.strip():
            taken.append(text)
            size -= len(text.encode())
        if size <= 0:
            break
    return taken


@dataclass(frozen=True, slots=True)
class ExactSet:
    """The n-grams of all documents kept so far, every one of them stored."""

    n: int
    threshold: float
    seen: set[str] = field(default_factory=set)

    def seen_share(self, text: str) -> float:
        """The share of n-grams known before; the n-grams of a document below the threshold are kept."""
        grams = _grams(text, self.n)
        if not grams:
            return 0.0
        share = sum(gram in self.seen for gram in grams) / len(grams)
        if share < self.threshold:
            self.seen.update(grams)
        return share

    def duplicates(self, records: Sequence[Record]) -> set[str]:
        """The ids of the documents that reach the threshold, in the order given."""
        return {one.id for one in records if self.seen_share(one.text) >= self.threshold}


def _grams(text: str, n: int) -> list[str]:
    words = _WORD.findall(text.translate(_FOLD))
    width = min(n, len(words))
    return [" ".join(words[at : at + width]) for at in range(len(words) - width + 1)] if words else []


def _scattered(rate: float) -> Edit:
    """Each word is hit with this chance: replaced, deleted, or a strange word put before it."""

    def edit(rng: random.Random, words: list[str], strange: list[str]) -> list[str]:
        out: list[str] = []
        for word in words:
            hit = rng.choice(("replace", "delete", "insert")) if rng.random() < rate else "none"
            if hit in {"replace", "insert"}:
                out.append(rng.choice(strange))
            if hit in {"none", "insert"}:
                out.append(word)
        return out

    return edit


def _stretch(rate: float) -> Edit:
    """One run of words is replaced by as many strange ones."""

    def edit(rng: random.Random, words: list[str], strange: list[str]) -> list[str]:
        size = round(rate * len(words))
        start = rng.randrange(len(words) - size + 1)
        return words[:start] + rng.choices(strange, k=size) + words[start + size :]

    return edit


def _extended(rate: float) -> Edit:
    """The whole document, then strange words."""
    return lambda rng, words, strange: words + rng.choices(strange, k=round(rate * len(words)))


def _excerpt(_rng: random.Random, words: list[str], _strange: list[str]) -> list[str]:
    return words[len(words) // 4 : 3 * len(words) // 4]


def _reformatted(_rng: random.Random, words: list[str], _strange: list[str]) -> list[str]:
    return [f"{word.strip().upper()} " for word in words]


def _edits() -> dict[str, Edit]:
    cases: dict[str, Edit] = {"copied as it is": lambda _rng, words, _strange: words}
    cases["upper case, spaces for line breaks"] = _reformatted
    cases |= {f"{rate:.0%} of words edited, scattered": _scattered(rate) for rate in LEVELS}
    cases |= {f"{rate:.0%} of words replaced, one stretch": _stretch(rate) for rate in LEVELS}
    cases["excerpt: the middle half"] = _excerpt
    cases |= {f"extended by {rate:.0%}": _extended(rate) for rate in (0.10, 1.00)}
    return cases


EDITS = _edits()


def plant(found: Sequence[Record], *, copies: int, exact: ExactSet, seed: int = 7) -> list[Record]:
    """Originals, then in random order: edited copies of them (each of its own original) and unrelated documents.

    There are fewer copies of each kind where the text is too little.
    """
    rng = random.Random(seed)
    parts = 1 + len(EDITS) + UNRELATED_PER_CASE
    fresh = list(itertools.islice(_fresh(rng.sample(found, len(found)), exact), copies * parts))
    copies = len(fresh) // parts
    if copies == 0:
        raise SystemExit(f"too few distinct documents of {_MIN_WORDS} to {_MAX_WORDS} words: ask for more text")
    strange = [word for one in fresh[:copies] for word in _TOKEN.findall(one.text + " ")]
    originals = fresh[copies : copies * (1 + len(EDITS))]
    pairs = list(zip(originals, (case for case in EDITS for _ in range(copies)), strict=True))
    unrelated = fresh[copies * (1 + len(EDITS)) : copies * parts]
    late = [Record(one.id, one.text, "unrelated") for one in unrelated]
    for original, case in pairs:
        words = EDITS[case](rng, _TOKEN.findall(original.text + " "), strange)
        late.append(Record(f"{original.id} {case}", "".join(words), case))
    rng.shuffle(late)
    return [Record(one.id, one.text, "original") for one, _ in pairs] + late


def _fresh(records: Sequence[Record], exact: ExactSet) -> Iterator[Record]:
    """Documents of ordinary length that share next to nothing with any that came before."""
    for one in records:
        ordinary = _MIN_WORDS <= one.text.count(" ") <= _MAX_WORDS
        if ordinary and exact.seen_share(one.text) < _FRESH_SHARE:
            yield one


@dataclass(frozen=True, slots=True)
class Agreement:
    """How one set of decisions compares with another that counts as the truth."""

    both: int
    only_ours: int
    only_truth: int

    @property
    def precision(self) -> float:
        """The share of our finds that the truth has too."""
        return self.both / max(1, self.both + self.only_ours)

    @property
    def recall(self) -> float:
        """The share of the truth that we found."""
        return self.both / max(1, self.both + self.only_truth)


def agreement(ours: set[str], truth: set[str]) -> Agreement:
    """Count where two sets of ids agree."""
    return Agreement(len(ours & truth), len(ours - truth), len(truth - ours))

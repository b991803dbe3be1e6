"""What a refused training run looks like: a restricted document is slipped into a public-domain shard.

    python benchmarks/refused.py

Builds a tiny corpus in a temporary folder, moves one restricted record into a shard that may train, and trains.
Exits with 1 if the training is not refused. docs/train.md shows the output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path

import zstandard

from silo.cli import main as silo
from silo.corpus.corpus import Corpus
from silo.corpus.shards import RECORDS, Shard, read_lines
from silo.errors import ExitStatus
from silo.records import Tier

WORDS = ("river", "stone", "lamp", "winter", "garden", "letter", "north", "silver", "boat", "evening", "field", "song")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_input(Path("in.jsonl"))
        run("corpus", "build", "--jsonl", "in.jsonl", "--out", "corpus", "--quiet")
        asked = run("lm", "train", "--corpus", "corpus", "--tiers", "pd,restricted", "--out", "model")
        print("\nOne restricted record is moved into the public-domain shard.\n")
        slip_in(Corpus.open(Path("corpus")))
        slipped = run("lm", "train", "--corpus", "corpus", "--tiers", "pd", "--out", "model")
        return 0 if asked == slipped == ExitStatus.REFUSED and not Path("model").exists() else 1


def write_input(path: Path) -> None:
    """Thirty public-domain documents and three that are restricted, in words of their own each."""
    with path.open("w", encoding="utf-8") as out:
        for number in range(33):
            text = " ".join(f"{word}{number}" for word in WORDS * 4)
            licence = "CC0-1.0" if number < 30 else "all rights reserved"
            record = {"id": str(number), "text": text, "source": "story", "domain": "prose", "license": licence}
            out.write(json.dumps(record) + "\n")


def run(*arguments: str) -> int:
    """One command and what the user reads."""
    print("$ silo " + " ".join(arguments))
    with redirect_stderr(sys.stdout):
        status = silo(list(arguments))
    if status:
        print(f"exit status {status}")
    return status


def slip_in(corpus: Corpus) -> None:
    """Overwrite the third record of the public-domain shard with a restricted one, behind the corpus's back."""
    (free,), (restricted,) = corpus.shards(tiers=[Tier.pd]), corpus.shards(tiers=[Tier.restricted])
    lines = [*read_lines(records(free))]
    lines[2] = next(iter(read_lines(records(restricted))))
    records(free).write_bytes(zstandard.compress(b"".join(line.rstrip(b"\n") + b"\n" for line in lines)))


def records(shard: Shard) -> Path:
    return shard.root / (shard.stem + RECORDS)


if __name__ == "__main__":
    sys.exit(main())

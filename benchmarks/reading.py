"""Whole texts read by the decode engine against torch: keys of documents, as a store is filled, and scores.

    python benchmarks/reading.py [--model DIR]... [--rounds 5]

Both read the same documents on all cores and take turns in every round; figures are medians over rounds. Besides times,
how far keys and perplexities are apart. Without a model those of `silo experiment` are read. Results:
docs/results/reading.json and reading.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from generate import DATA, ROOT, Contest, Rounds
from silo.files import write_json
from silo.lm.encode import DocumentEncoder
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.engine import core_count
from silo.lm.manifest import codec_key
from silo.lm.model import LanguageModel
from silo.lm.reading import Keys, ReadingNetwork
from silo.lm.scoring import Score, score
from silo.lm.windows import Windows
from silo.sources.evaluation import read_evaluation
from silo.text.stream import first_tokens, merged_stream
from silo.text.tokenizer import Ids
from store import documents

DOMAINS = ("enron_emails", "wikipedia")
"""Short documents and long ones."""
MODELS = [ROOT / "build" / "experiments" / "models" / name for name in ("pdsw", "smollm2")]
TOKENS_TIMES_PARAMETERS = 5e11
"""Work of a turn: so many tokens times parameters, which takes seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "reading")
    arguments = parser.parse_args()
    models = arguments.model or [place for place in MODELS if (place / "manifest.json").exists()]
    if not models:
        parser.error("there is no model of `silo experiment`: name one")
    found = {
        "machine": {"processor": _processor(), "cores": core_count()},
        "models": {place.name: measure(place, arguments.rounds) for place in models},
    }
    write_json(arguments.out.with_suffix(".json"), found)
    arguments.out.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return 0


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    wide = any("avx512f" in line for line in lines)
    return f"{next(named, platform.machine())}{', AVX-512' if wide else ''}"


def measure(place: Path, rounds: int) -> dict[str, Any]:
    """Both networks of a model on every domain."""
    opened = DecodingModel.open(place)
    networks: dict[str, ReadingNetwork] = {"engine": opened.network, "torch": LanguageModel.open(place)}
    tokens = int(TOKENS_TIMES_PARAMETERS / opened.parameters)
    found: dict[str, Any] = {"parameters": opened.parameters, "key": codec_key(place)}
    for domain in DOMAINS:
        found[domain] = {"keys": _keys(place, networks, domain, tokens, rounds)}
        found[domain]["scores"] = _scores(networks, domain, tokens // 2, rounds)
        print(place.name, domain, found[domain], flush=True)
    return found


def _keys(place: Path, networks: dict[str, ReadingNetwork], domain: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of encoding documents, and the largest difference of a key from torch's."""
    tokenizer = networks["torch"].tokenizer
    begin = np.array([tokenizer.begin], dtype=np.uint32)
    texts = [document.text for document in documents([domain], tokens)]
    ids: list[Ids] = [np.concatenate([begin, one]) for one in tokenizer.encode(texts)]
    made: dict[str, list[Keys]] = {}

    def encode(name: str) -> None:
        made[name] = list(DocumentEncoder(networks[name], codec_key(place)).keys(ids))

    contest: Contest = {name: partial(encode, name) for name in networks}
    result = Rounds.of(contest, rounds, sum(map(len, ids)))
    largest = max(float(np.abs(keys).max()) for keys in made["torch"])
    apart = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(made["engine"], made["torch"], strict=True))
    return {**_speeds(result), "documents": len(ids), "keys_differ_by": apart / largest}


def _scores(networks: dict[str, ReadingNetwork], domain: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of scoring a text, and the relative difference of the perplexities."""
    texts = (one.text for one in read_evaluation(DATA / f"{domain}.test.jsonl.zst"))
    text = first_tokens(merged_stream(texts, networks["torch"].tokenizer), tokens)
    windows = Windows().within(networks["torch"].context)
    found: dict[str, Score] = {}

    def read(name: str) -> None:
        found[name] = score(networks[name], text, windows)

    contest: Contest = {name: partial(read, name) for name in networks}
    result = Rounds.of(contest, rounds, len(text.ids))
    gap = abs(found["engine"].perplexity / found["torch"].perplexity - 1)
    return {**_speeds(result), "perplexity_differs_by": gap}


def _speeds(rounds: Rounds) -> dict[str, Any]:
    return {"tokens_per_second": rounds.rates(), "times_as_fast": rounds.slower("torch", "engine")}


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    machine = found["machine"]
    lines = [
        "# Whole texts: the decode engine against torch",
        "",
        f"{machine['cores']} cores of {machine['processor']}; medians over paired rounds, both on all cores. Scores "
        "are of windows of 1,024 tokens, half of which is context.",
        "",
        "| model | text | | engine, tokens/s | torch, tokens/s | times as fast | differs by, relative |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for name, model in found["models"].items():
        for domain in DOMAINS:
            for part, gap in (("keys", "keys_differ_by"), ("scores", "perplexity_differs_by")):
                item = model[domain][part]
                rates = " | ".join(f"{item['tokens_per_second'][who]:,.0f}" for who in ("engine", "torch"))
                lines.append(f"| {name} | {domain} | {part} | {rates} | {item['times_as_fast']} | {item[gap]:.0e} |")
    return "\n".join([*lines, "", "Made by `benchmarks/reading.py`.", ""])


if __name__ == "__main__":
    sys.exit(main())

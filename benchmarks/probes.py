"""How much of a store a token search has to read: perplexity of the kNN-LM against the number of lists and rows.

    python benchmarks/probes.py [--model silo-home/models/pdsw] [--domains clinical_notes ...] [--tokens 4096]

On validation text, with the stores and settings that benchmarks/methods.py made. A search reads at least `probes` lists
and goes on until it has seen `rows` times k rows; the perplexity of each pair is compared with reading every list.
Both defaults come from this table: the cheapest pair that costs less than one percent in every domain. A run that was
stopped goes on with what is missing.
Writes docs/results/probes.json and probes.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from methods import DOMAINS, ROOT, file_of
from silo.datastore import view
from silo.evaluation.tune import validation_text
from silo.files import read_json, write_json
from silo.inference.predictor import open_predictor
from silo.inference.score import score_text
from silo.inference.settings import load_settings

PAIRS = ((1, 2), (2, 4), (4, 4), (4, 6), (4, 8), (8, 2), (8, 8), (8, 12), (8, 16), (8, 20), (16, 2), (16, 16), (32, 20))
LIMIT = 1.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "silo-home" / "models" / "pdsw")
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    parser.add_argument("--store-tokens", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=4096, help="of validation text")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "methods")
    parser.add_argument("--home", type=Path, default=ROOT / "silo-home")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "probes")
    arguments = parser.parse_args()
    file = arguments.out.with_suffix(".json")
    result: dict[str, Any] = {"model": arguments.model.name, "tokens": arguments.tokens, "limit": LIMIT, "domains": {}}
    if file.exists() and {**(before := read_json(file)), "domains": {}} == result:
        result = before
    for domain in arguments.domains:
        for label, perplexity in compared(arguments, domain, result["domains"].setdefault(domain, {})):
            result["domains"][domain][label] = perplexity
            write_json(file, result)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def compared(arguments: argparse.Namespace, domain: str, known: dict[str, float]) -> Iterator[tuple[str, float]]:
    """The perplexity of every pair that is not known yet, and of the search that reads all."""
    place = arguments.work / f"{arguments.model.name}-{domain}-{arguments.store_tokens}"
    tuned = load_settings(arguments.home, f"{domain}-{arguments.model.name}", frozenset({"knn"}))
    predictor = open_predictor(arguments.model, [place], method="knn", settings=tuned)
    text = validation_text([file_of(domain, "validation")], predictor.tokenizer, arguments.tokens)
    for probes, rows in (*PAIRS, (10**6, 0)):
        label = name(probes, rows)
        if label not in known:
            view.ROWS_PER_NEIGHBOUR = rows
            predictor.settings = replace(tuned, probes=probes)
            scored = score_text(predictor, text)
            yield label, float(np.exp(-scored.logs[scored.counted].mean()))
            print(domain, label, known[label], flush=True)


def name(probes: int, rows: int) -> str:
    return f"{probes} lists, {rows} k rows" if rows else "every list"


def page(result: dict[str, Any]) -> str:
    """The table as a page."""
    domains = list(result["domains"])
    lines = [
        "# How much of a store a search has to read",
        "",
        f"Model `{result['model']}`, {result['tokens']:,} tokens of validation text per domain, stores of a million",
        "tokens, k 1,024, settings tuned for each domain. Cells: kNN-LM perplexity divided by that of every list.",
        "",
        f"| at least | {' | '.join(domains)} | within 1 % |",
        f"|---|{'---:|' * (len(domains) + 1)}",
    ]
    for label in (name(*pair) for pair in PAIRS):
        ratios = [result["domains"][domain][label] / result["domains"][domain]["every list"] for domain in domains]
        cells = " | ".join(f"{ratio:.4f}" for ratio in ratios)
        lines.append(f"| {label} | {cells} | {'yes' if max(ratios) <= result['limit'] else 'no'} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())

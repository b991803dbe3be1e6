"""How much of a store a token search has to read: perplexity of the kNN-LM against the number of lists and rows.

    python benchmarks/probes.py [--model pdsw] [--domains clinical_notes ...] [--tokens 4096]

On validation text, with the models, stores and settings of `silo experiment` in `--work`. A search reads at least
`probes` lists and goes on until it has seen `rows` times k rows; the perplexity of each pair is compared with reading
every list, and the rows it reads are counted. Both defaults come from this table: the pair that reads least of those
that cost less than one percent in every domain. A run that was stopped goes on with what is missing.
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
from numpy.typing import NDArray

from silo.evaluation.texts import TextLimits
from silo.evaluation.tune import validation_text
from silo.experiments.harness.lab import Lab
from silo.files import read_json, write_json
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.lm.encode import DocumentEncoder
from silo.store import view
from silo.text.stream import TokenStream

ROOT = Path(__file__).parent.parent
DOMAINS = ("clinical_notes", "enron_emails", "imdb_reviews")
PAIRS = (
    (1, 8),
    (1, 16),
    (2, 8),
    (2, 16),
    (4, 8),
    (4, 12),
    (4, 16),
    (8, 2),
    (8, 8),
    (8, 12),
    (8, 16),
    (16, 2),
    (16, 16),
)
LIMIT = 1.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pdsw")
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    parser.add_argument("--tokens", type=int, default=4096, help="of validation text")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "experiments")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "probes")
    arguments = parser.parse_args()
    file = arguments.out.with_suffix(".json")
    result: dict[str, Any] = {"model": arguments.model, "tokens": arguments.tokens, "limit": LIMIT, "domains": {}}
    if file.exists() and {**(before := read_json(file)), "domains": {}} == result:
        result = before
    for domain in arguments.domains:
        for label, found in compared(arguments, domain, result["domains"].setdefault(domain, {})):
            result["domains"][domain][label] = found
            write_json(file, result)
            print(domain, label, found, flush=True)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def compared(
    arguments: argparse.Namespace, domain: str, known: dict[str, Any]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Perplexity and rows read of every pair that is not known yet, and of the search that reads all."""
    lab = Lab(arguments.work, arguments.data, talk=print)
    store, limits = lab.store(arguments.model, domain), TextLimits(20_000, 1_000)
    tuned = lab.settings(arguments.model, domain, store, neighbours=1024, limits=limits)["knn"]
    predictor = open_predictor(lab.model(arguments.model), [store.fill()], method="knn", settings=tuned)
    text = validation_text([lab.text_file(domain, "validation")], predictor.tokenizer, arguments.tokens)
    sizes = sizes_by_distance(predictor, text)
    for probes, rows in (*PAIRS, (10**6, 0)):
        label = name(probes, rows)
        if label not in known:
            view.ROWS_PER_NEIGHBOUR = rows
            predictor.settings = replace(tuned, probes=probes)
            scored = score_text(predictor, text)
            perplexity = float(np.exp(-scored.logs[scored.counted].mean()))
            yield label, {"perplexity": perplexity, "rows": round(rows_read(sizes, probes, rows * tuned.k))}


def sizes_by_distance(predictor: Predictor, text: TokenStream) -> NDArray[np.int64]:
    """For each token of a text the sizes of all lists, the list nearest to its key first, added up."""
    assert predictor.encoder is not None
    store = predictor.stores[0]
    (keys,) = DocumentEncoder(predictor.encoder.opened.network, predictor.encoder.key).keys([text.ids])
    codec = store.tested_tables().codec
    queries, centroids = codec.transform(keys), codec.arrays.centroids
    distances = (centroids**2).sum(axis=1) - 2 * queries @ centroids.T
    with store.reading() as opened:
        sizes = sum(np.diff(bucket.sections["lists"].astype(np.int64)) for bucket in opened.buckets)
    found: NDArray[np.int64] = np.cumsum(np.asarray(sizes)[np.argsort(distances, axis=1)], axis=1)
    return found


def rows_read(sizes: NDArray[np.int64], probes: int, wanted: int) -> float:
    """The mean number of rows a search reads."""
    lists = np.maximum(min(probes, sizes.shape[1]), 1 + (sizes < wanted).sum(axis=1)).clip(max=sizes.shape[1])
    return float(sizes[np.arange(len(sizes)), lists - 1].mean())


def name(probes: int, rows: int) -> str:
    return f"{probes} lists, {rows} k rows" if rows else "every list"


def page(result: dict[str, Any]) -> str:
    """The table as a page."""
    domains = list(result["domains"])
    lines = [
        "# How much of a store a search has to read",
        "",
        f"Model `{result['model']}`, {result['tokens']:,} tokens of validation text per domain, stores of up to",
        "3 MB of text, k up to 1,024, settings tuned for each domain. Cells: kNN-LM perplexity divided by that of",
        "every list, and thousands of rows read per token.",
        "",
        f"| at least | {' | '.join(domains)} | within 1 % |",
        f"|---|{'---:|' * (len(domains) + 1)}",
    ]
    for label in (name(*pair) for pair in PAIRS):
        cells, ratios = [], []
        for domain in domains:
            found, every = (result["domains"][domain][item] for item in (label, "every list"))
            ratios.append(found["perplexity"] / every["perplexity"])
            cells.append(f"{ratios[-1]:.4f} ({found['rows'] / 1000:.1f})")
        lines.append(f"| {label} | {' | '.join(cells)} | {'yes' if max(ratios) <= result['limit'] else 'no'} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())

"""Perplexity of every method on restricted domains: settings from validation text, test text scored once.

    python benchmarks/methods.py [--model silo-home/models/pdsw] [--domains clinical_notes ...] [--tokens 1000000]

For each domain a store of its train text is filled (kept in `--work`, found again by a second run), every method is
tuned on the validation file and scored on the test file, beside the same-size model that was trained on everything.
Needs ../shared and models in silo-home/models. Writes docs/results/methods.json, methods.md, methods.png and
attribution.md (five places of test text with what the store holds there).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from methods_report import attribution_page, page, plot
from silo.evaluation.tune import tune, validation_text
from silo.files import write_json
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.settings import Ric, Settings, save_settings
from silo.lm.windows import Windows
from silo.pairing import create_store, open_store
from silo.sources.evaluation import read_evaluation
from silo.text.stream import TokenStream, first_tokens, merged_stream
from store import documents

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
DOMAINS = ("clinical_notes", "enron_emails", "imdb_reviews")
EXACT_TOKENS, RALM_TOKENS = 1_000, 4_000
METHODS = ("lm", "ric", "knn", "ngram", "knn+ngram", "ric+knn+ngram")


def main() -> int:
    arguments = parsed()
    result: dict[str, Any] = {"model": arguments.model.name, "store_tokens": arguments.tokens, "domains": {}}
    examples: list[dict[str, Any]] = []
    for domain in arguments.domains:
        place = filled(arguments, domain)
        result["domains"][domain] = found = measured(arguments, domain, place)
        print(domain, {name: item["perplexity"] for name, item in found["test"].items()}, flush=True)
        examples += attributions(arguments, domain, place)
    write_json(arguments.out.with_suffix(".json"), {**result, "examples": examples})
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    arguments.out.with_name("attribution.md").write_text(attribution_page(examples), encoding="utf-8")
    plot(result, arguments.out.with_suffix(".png"))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ROOT / "silo-home" / "models"
    parser.add_argument("--model", type=Path, default=models / "pdsw")
    parser.add_argument("--reference", type=Path, default=models / "all")
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    parser.add_argument("--tokens", type=int, default=1_000_000, help="about so many in each store")
    parser.add_argument("--validation-tokens", type=int, default=40_000)
    parser.add_argument("--test-tokens", type=int, default=30_000)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "methods")
    parser.add_argument("--home", type=Path, default=ROOT / "silo-home")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "methods")
    return parser.parse_args()


def filled(arguments: argparse.Namespace, domain: str) -> Path:
    """A store of the domain's train text."""
    place: Path = arguments.work / f"{arguments.model.name}-{domain}-{arguments.tokens}"
    place.parent.mkdir(parents=True, exist_ok=True)
    store = open_store(place, encoding=True) if (place / "data").exists() else create_store(place, arguments.model)
    begun = time.perf_counter()
    store.add(documents([domain], arguments.tokens))
    print(f"{place.name}: {store.stats()['tokens']:,} tokens, {time.perf_counter() - begun:.0f} s", flush=True)
    store.close()
    return place


def measured(arguments: argparse.Namespace, domain: str, place: Path) -> dict[str, Any]:
    """Tune on validation, then score the test text once with every method."""
    predictor = open_predictor(arguments.model, [place], method="knn+ngram")
    begun = time.perf_counter()
    text = validation_text([file_of(domain, "validation")], predictor.tokenizer, arguments.validation_tokens)
    tuned = tune(predictor, text)
    seconds = time.perf_counter() - begun
    print(f"  tuned in {seconds:.0f} s: {tuned.figures}", flush=True)
    save_settings(arguments.home, f"{domain}-{arguments.model.name}", tuned.settings, {"figures": tuned.figures})
    test = test_text(predictor, domain, arguments.test_tokens)
    found: dict[str, Any] = {}
    for method in METHODS:
        settings = tuned.settings.get(method.removeprefix("ric+"), Settings())
        found[method] = scored(arguments.model, place, method, settings, test)
    knn, few = tuned.settings["knn"], first_tokens(test, EXACT_TOKENS)
    found[f"knn, first {EXACT_TOKENS} tokens"] = scored(arguments.model, place, "knn", knn, few)
    every = replace(knn, probes=10**6)
    found[f"knn, first {EXACT_TOKENS} tokens, every list"] = scored(arguments.model, place, "knn", every, few)
    often = Settings(ric=Ric(query_tokens=32, stride=32))
    found[f"lm, first {RALM_TOKENS} tokens"] = scored(
        arguments.model, place, "lm", Settings(), first_tokens(test, RALM_TOKENS)
    )
    found[f"ric, first {RALM_TOKENS} tokens, 32-token query every 32"] = scored(
        arguments.model, place, "ric", often, first_tokens(test, RALM_TOKENS)
    )
    found["lm, context of ric"] = controlled(arguments.model, test)
    found["reference"] = scored(arguments.reference, place, "lm", Settings(), test)
    store = predictor.stores[0].stats()["tokens"]
    return {"store_tokens": store, "tuning": {**tuned.figures, "seconds": round(seconds, 1)}, "test": found}


def file_of(domain: str, split: str) -> Path:
    return DATA / f"{domain}.{split}.jsonl.zst"


def test_text(predictor: Predictor, domain: str, tokens: int) -> TokenStream:
    texts = (record.text for record in read_evaluation(file_of(domain, "test")))
    return first_tokens(merged_stream(texts, predictor.tokenizer), tokens)


def scored(model: Path, place: Path, method: str, settings: Settings, text: TokenStream) -> dict[str, float]:
    predictor = open_predictor(model, [] if method == "lm" else [place], method=method, settings=settings)
    return timed_score(predictor, text)


def controlled(model: Path, text: TokenStream) -> dict[str, float]:
    """The LM with the window that RIC leaves for the text: what shorter context alone costs."""
    predictor = open_predictor(model, method="lm")
    half = predictor.model.context // 2 - 1
    predictor.windows = Windows(half, half // 2)
    return timed_score(predictor, text)


def timed_score(predictor: Predictor, text: TokenStream) -> dict[str, float]:
    begun = time.perf_counter()
    found = score_text(predictor, text)
    seconds = time.perf_counter() - begun
    total = found.total
    rate = round(total.tokens / seconds)
    print(f"  {'+'.join(sorted(predictor.method)) or 'lm'}: {total.perplexity:.1f}, {seconds:.0f} s", flush=True)
    return {**total.as_json(), "tokens_per_second": rate, "lm_share": round(found.lm_share, 4)}


def attributions(arguments: argparse.Namespace, domain: str, place: Path, count: int = 2) -> list[dict[str, Any]]:
    """Places of test text where the store knew better than the LM: prefix, true continuation, nearest place."""
    predictor = open_predictor(arguments.model, [place], method="knn", settings=Settings(k=64))
    text = test_text(predictor, domain, 8_000)
    reader, chosen = predictor.reader(), []
    rng = np.random.default_rng(3)
    with predictor.reading() as sources:
        for at in np.sort(rng.permutation(np.arange(200, len(text.ids) - 20))[:400]).tolist():
            begin = int(np.flatnonzero(text.ids[:at] == predictor.tokenizer.begin)[-1])
            prediction = reader.predict(text.ids[begin:at], sources)
            token = int(text.ids[at])
            gain = float(prediction.probabilities[token]) - float(prediction.lm[token])
            chosen.append((gain, at, begin))
        chosen.sort(reverse=True)
        return [_example(predictor, sources, reader, text, at, begin, domain) for _, at, begin in chosen[:count]]


def _example(
    predictor: Predictor, sources: Any, reader: Any, text: TokenStream, at: int, begin: int, domain: str
) -> dict[str, Any]:
    from silo.inference.neighbours import top_neighbours

    prediction = reader.predict(text.ids[begin:at], sources)
    (near,) = top_neighbours(prediction, sources, predictor.tokenizer, 1)
    facts = sources.views[0].facts[int(prediction.nearest.rows[0, 0])]
    token = int(text.ids[at])
    return {
        "domain": domain,
        "prefix": predictor.tokenizer.decode(text.ids[max(begin, at - 40) : at]),
        "continuation": predictor.tokenizer.decode(text.ids[at : at + 12]),
        "lm": float(prediction.lm[token]),
        "mixed": float(prediction.probabilities[token]),
        "document": facts.external_id,
        "license": facts.license,
        "left": near.left,
        "found": near.continuation,
    }


if __name__ == "__main__":
    sys.exit(main())

"""The four models of the experiments: train what is not trained yet, score every validation domain, audit, report.

    python benchmarks/models.py [--only-table] [--tokens-per-domain 20000]

Run it again after a stop: training goes on from its checkpoint, finished models and their scores are kept. Needs
../shared and the corpus of recipes/shared-data.toml. Writes docs/results/models.json, models.md and models.png.
Exits with 1 if a training run fails or an audit finds a document that a model may not have seen.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models_report import IN, NEAR, OUT, REFERENCE, loss_curves, page
from silo.corpus.corpus import Corpus
from silo.files import fingerprint, read_json
from silo.lm.audit import verify_model
from silo.lm.model import LanguageModel
from silo.lm.network import parameter_count
from silo.lm.scoring import score
from silo.lm.windows import Windows
from silo.recipe import TrainRecipe, load_recipe
from silo.sources.evaluation import read_evaluation
from silo.text.stream import TokenStream, merged_stream
from silo.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
NAMES = ("pd", "pdsw", "pdswby", "all")
WINDOWS = Windows(1024, 512)
TRAINED_TOGETHER = 2
"""Runs of one thread each: two side by side get more done than one of two threads."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where recipes, models, validation files and results lie."""

    recipes: Path
    models: Path
    data: Path
    results: Path

    def recipe_file(self, name: str) -> Path:
        return self.recipes / f"lm-{name}.toml"

    def recipe(self, name: str) -> TrainRecipe:
        return load_recipe(self.recipe_file(name), TrainRecipe)

    def corpus(self) -> Path:
        return self.recipes / self.recipe(REFERENCE).corpus

    def model(self, name: str) -> Path:
        return self.models / name

    def finished(self) -> list[str]:
        return [name for name in NAMES if (self.model(name) / "manifest.json").exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-table", action="store_true", help="train nothing: report on the models that are there")
    parser.add_argument("--tokens-per-domain", type=int, default=20_000)
    parser.add_argument("--recipes", type=Path, default=ROOT / "recipes")
    parser.add_argument("--models", type=Path, default=ROOT / "silo-home" / "models")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    arguments = parser.parse_args()
    places = Places(arguments.recipes.absolute(), arguments.models, arguments.data, arguments.results)
    if not places.data.is_dir():
        print(f"{places.data} is not here: nothing to measure")
        return 0
    failed = [] if arguments.only_table else train_all(places)
    if not places.finished():
        print("no model is finished", file=sys.stderr)
        return 1
    result = measure(places, arguments.tokens_per_domain)
    write(places, result)
    (places.results / "models.md").write_text(page(result), encoding="utf-8")
    curves = {name: read_json(places.model(name) / "curve.json") for name in result["models"]}
    (places.results / "models.png").write_bytes(loss_curves(curves))
    print(page(result))
    bad = [name for name, model in result["models"].items() if model["violations"]]
    return 1 if failed or bad else 0


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def train_all(places: Places) -> list[str]:
    """Train what is missing, two at a time; the names of runs that failed."""
    missing = [name for name in NAMES if name not in places.finished()]
    with ThreadPoolExecutor(TRAINED_TOGETHER) as pool:
        done = dict(zip(missing, pool.map(lambda name: train_one(places, name), missing), strict=True))
    return [name for name, status in done.items() if status]


def train_one(places: Places, name: str) -> int:
    """`silo lm train` in a process of its own; its last checkpoint is the progress."""
    out = places.model(name)
    command = [sys.executable, "-m", "silo", "lm", "train", str(places.recipe_file(name)), "--out", str(out), "--quiet"]
    run = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    say(f"{name}: {' '.join(command[3:])}")
    state = out.with_name(out.name + ".building") / "checkpoint" / "state.json"
    total, shown = places.recipe(name).max_tokens, -1.0
    while run.poll() is None:
        time.sleep(5)
        tokens, loss = last_point(state)
        if tokens > shown:
            say(f"{name}: {tokens:,.0f} of {total:,} tokens, loss {loss:.3f}")
            shown = tokens
    say(f"{name}: {'finished' if run.returncode == 0 else f'ended with status {run.returncode}'}")
    return run.returncode


def last_point(state: Path) -> tuple[float, float]:
    """Tokens and loss at the last checkpoint."""
    try:
        losses = read_json(state)["losses"]
    except (OSError, ValueError):  # none yet, or it is being replaced
        return -1.0, math.nan
    return (losses[-1][0], losses[-1][1]) if losses else (-1.0, math.nan)


def measure(places: Places, tokens_per_domain: int) -> dict[str, Any]:
    """Score and audit every finished model; what an earlier run measured on the same model and text is kept."""
    corpus = Corpus.open(places.corpus())
    shares = domain_shares(corpus)
    settings = {"tokens_per_domain": tokens_per_domain, "length": WINDOWS.length, "stride": WINDOWS.stride}
    known = earlier(places)
    texts: dict[str, TokenStream] = {}
    result: dict[str, Any] = {"settings": settings, "corpus": corpus.fingerprint, "models": {}}
    for name in places.finished():
        model = LanguageModel.open(places.model(name))
        texts = texts or first_texts(places.data, tokens_per_domain, model.tokenizer)
        key = fingerprint([model.fingerprint, corpus.fingerprint, settings, sorted(texts)])
        if known.get(name, {}).get("key") == key:
            say(f"{name}: scored before")
            result["models"][name] = known[name]
        else:
            result["models"][name] = {"key": key, **audited(places, name, model), "scores": scores(name, model, texts)}
            write(places, {**result, "models": {**known, **result["models"]}})
    require_one_tokenizer(result["models"])
    result["domains"] = {domain: describe(domain, shares, corpus, result["models"]) for domain in sorted(texts)}
    return result


def earlier(places: Places) -> dict[str, Any]:
    path = places.results / "models.json"
    return dict(read_json(path)["models"]) if path.exists() else {}


def write(places: Places, result: dict[str, Any]) -> None:
    path = places.results / "models.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def first_texts(data: Path, tokens: int, tokenizer: Tokenizer) -> dict[str, TokenStream]:
    """About the first so many tokens of every validation domain, each as one stream."""
    streams = {}
    for path in sorted(data.glob("*.validation.jsonl.zst")):
        texts, room = [], tokens
        for record in read_evaluation(path):
            size = len(merged_stream([record.text], tokenizer).ids)
            texts.append(record.text if size <= room else record.text[: len(record.text) * room // size])
            room -= size
            if room <= 0:
                break
        streams[path.name.split(".")[0]] = merged_stream(texts, tokenizer)
    return streams


def scores(name: str, model: LanguageModel, texts: dict[str, TokenStream]) -> dict[str, Any]:
    found = {}
    for domain, text in texts.items():
        begun = time.perf_counter()
        found[domain] = score(model, text, WINDOWS).as_json()
        spent = time.perf_counter() - begun
        say(f"{name} on {domain}: perplexity {found[domain]['perplexity']:.1f} ({spent:.0f} s)")
    return found


def audited(places: Places, name: str, model: LanguageModel) -> dict[str, Any]:
    """What the model's manifest and `silo lm verify` say about it."""
    say(f"{name}: verify against the corpus")
    found = verify_model(places.model(name), corpus=str(places.corpus()))
    summary = model.manifest["training"]["summary"]
    return {
        "model": found["model"],
        "tokenizer": model.tokenizer.fingerprint,
        "tiers": found["tiers"],
        "permitted": found["permitted"],
        "parameters": parameter_count(model.network),
        "tokens": summary["tokens"],
        "chosen_step": summary["chosen_step"],
        "steps": summary["steps"],
        "documents": found["documents"],
        "document_tiers": found["document_tiers"],
        "violations": found["violations"],
    }


def require_one_tokenizer(models: dict[str, Any]) -> None:
    """Perplexities per token compare only if tokens are the same."""
    kinds = {model["tokenizer"] for model in models.values()}
    if len(kinds) > 1:
        listed = ", ".join(f"{name} {model['tokenizer'][:8]}" for name, model in models.items())
        raise SystemExit(f"the models have different tokenizers ({listed}): their perplexities do not compare")


def domain_shares(corpus: Corpus) -> dict[str, dict[tuple[str, bool], int]]:
    """Per domain: bytes of text by (tier, has the train right)."""
    found: dict[str, dict[tuple[str, bool], int]] = {}
    for shard in corpus.shards():
        index = shard.index()
        for right in (False, True):
            size = int(index["bytes"][index["train"] == right].sum())
            sizes = found.setdefault(shard.domain, {})
            sizes[str(shard.tier), right] = sizes.get((str(shard.tier), right), 0) + size
    return found


def describe(domain: str, shares: dict[str, Any], corpus: Corpus, models: dict[str, Any]) -> dict[str, Any]:
    """The tiers of a domain's training text, and how near each model's training text is to it."""
    sizes = shares.get(domain, {})
    whole = max(1, sum(sizes.values()))
    tiers: dict[str, float] = {}
    for (tier, _), size in sizes.items():
        tiers[tier] = tiers.get(tier, 0.0) + size / whole
    held_back = sum(size for (tier, right), size in sizes.items() if tier != "restricted" and not right) / whole
    return {
        "tiers": {tier: round(share, 4) for tier, share in tiers.items()},
        "held_back": round(held_back, 4),
        "marks": {name: mark(domain, shares, corpus, model) for name, model in models.items()},
    }


def mark(domain: str, shares: dict[str, Any], corpus: Corpus, model: dict[str, Any]) -> str:
    """In-domain if the model may use most of the domain's training text, near if most of a domain of its group."""
    if usable_share(shares.get(domain, {}), model) >= 0.5:
        return IN
    groups = corpus.manifest["recipe"].get("groups", {}).values()
    kin = {other for group in groups if domain in group for other in group}
    return NEAR if any(usable_share(shares.get(other, {}), model) >= 0.5 for other in kin) else OUT


def usable_share(sizes: dict[tuple[str, bool], int], model: dict[str, Any]) -> float:
    usable = sum(
        size for (tier, right), size in sizes.items() if tier in model["tiers"] and (right or not model["permitted"])
    )
    return usable / max(1, sum(sizes.values()))


if __name__ == "__main__":
    sys.exit(main())

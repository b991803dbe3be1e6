"""Fill a store with real restricted text and measure it: filling, size, recall, search and erasure.

    python benchmarks/store.py --model silo-home/models/pdsw [--tokens 1000000] [--domains news imdb_reviews ...]

Filling is compared with the bare forward pass of the encoder over the same documents, in the same run. Recall is that
of the usual probes against every list (`silo experiment approximation` has float keys). The store is kept in `--work`,
and a run that was stopped goes on. Results: docs/results/store.json and store.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.files import MANIFEST, read_json, remove_tree, write_json
from silo.lm.encode import DocumentEncoder
from silo.lm.manifest import codec_key
from silo.lm.model import LanguageModel
from silo.pairing import create_store, open_store
from silo.recipe import SourceRecipe
from silo.records import Document
from silo.sources import read_documents
from silo.sources.evaluation import read_evaluation
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.view import PROBES

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
RESTRICTED = ("amazon_reviews", "clinical_notes", "code_copyleft", "enron_emails", "imdb_reviews", "news")
K = 1024
BATCH = 512
SAMPLE_TOKENS = 100_000
Keys = NDArray[np.float32]


def main() -> int:
    arguments = parsed()
    model = LanguageModel.open(arguments.model)
    encoder = DocumentEncoder(model, codec_key(arguments.model))
    result: dict[str, Any] = {
        "machine": machine(),
        "model": arguments.model.name,
        "key": encoder.key,
        "domains": arguments.domains,
    }
    result["filling"] = filling(arguments, model)
    say(f"filling: {result['filling']}")
    store = whole_store(arguments, result)
    result["store"] = store.stats()
    queries = query_keys(encoder, arguments.domains)
    result["search"] = search_speed(store, queries)
    say(f"search: {result['search']}")
    result["erasure"] = erasures(store, arguments.erasures)
    say(f"erasure: {result['erasure']}")
    write_json(arguments.out.with_suffix(".json"), result)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, default=ROOT / "silo-home" / "models" / "pdsw")
    parser.add_argument("--domains", nargs="+", default=list(RESTRICTED))
    parser.add_argument("--tokens", type=int, default=1_000_000, help="about so many tokens in all; 0 for everything")
    parser.add_argument("--erasures", type=int, default=5)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "store")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "store")
    return parser.parse_args()


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "cpu": platform.processor(), "threads": torch.get_num_threads()}


def documents(domains: list[str], tokens: int) -> Iterator[Document]:
    """The restricted train text of some domains, in equal shares, until about so many tokens."""
    room = {domain: tokens / len(domains) * 3.4 if tokens else float("inf") for domain in domains}
    for domain in domains:
        recipe = SourceRecipe("jsonl", (str(DATA / f"{domain}.train.jsonl.zst"),))
        for document in read_documents(recipe, DATA, []):
            if room[domain] <= 0:
                break
            room[domain] -= len(document.text)
            yield document


def filling(arguments: argparse.Namespace, model: LanguageModel) -> dict[str, Any]:
    """Tokens/s of `add` and of torch's bare pass over full windows, on the same documents; three rounds."""
    some = list(documents(arguments.domains, SAMPLE_TOKENS))
    ids = model.tokenizer.encode([document.text for document in some])
    stream = torch.from_numpy(np.concatenate(ids).astype(np.int64))
    length = model.context
    rows = stream[: len(stream) // length * length].reshape(-1, length)
    rates: dict[str, list[float]] = {"add": [], "forward": []}
    for number in range(3):
        place = arguments.work / f"sample-{number}"
        remove_tree(place)
        store = create_store(place, arguments.model)
        rates["add"].append(len(stream) / timed(lambda store=store: store.add(some)))  # type: ignore[misc]
        store.close()
        rates["forward"].append(rows.numel() / timed(lambda: forward(model, rows)))
        remove_tree(place)
    add, bare = (float(np.median(rates[name])) for name in ("add", "forward"))
    return {
        "add_tokens_per_second": round(add),
        "forward_tokens_per_second": round(bare),
        "ratio": round(add / bare, 3),
    }


@torch.inference_mode()
def forward(model: LanguageModel, rows: torch.Tensor) -> None:
    for first in range(0, len(rows), 4):
        model.hidden(rows[first : first + 4])


def timed(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def whole_store(arguments: argparse.Namespace, result: dict[str, Any]) -> Store:
    """The store with all documents; a second run finds it there and keeps the figures of the first."""
    place = arguments.work / f"{arguments.model.name}-{arguments.tokens}"
    place.parent.mkdir(parents=True, exist_ok=True)
    store = open_store(place, encoding=True) if (place / "data").exists() else create_store(place, arguments.model)
    begun, worked = time.perf_counter(), time.process_time()
    memory: dict[str, dict[str, int]] = {}
    added = store.add(documents(arguments.domains, arguments.tokens), advance=partial(show, memory))
    if not added.added and arguments.out.with_suffix(".json").exists():
        result["build"] = read_json(arguments.out.with_suffix(".json"))["build"]
        return store
    result["build"] = {
        "seconds": round(time.perf_counter() - begun, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
        "added": added.added,
        "refused": dict(added.reasons),
        "memory_mb": memory,
        "written_share": round(added.written_bytes / max(1, store.stats()["bytes"]), 3),
    }
    return store


def show(memory: dict[str, dict[str, int]], stage: str, done: int, total: int) -> None:
    """Print progress, and note the memory of the process after each tenth of a stage: its own, and mapped files."""
    if total:
        print(f"\r{stage} {100 * done / total:5.1f} %", end="", file=sys.stderr, flush=True)
        memory.setdefault(f"{stage} {100 * done // total // 10 * 10} %", resident())


def resident() -> dict[str, int]:
    """Megabytes of this process: its own, and pages of files, which the system takes back when it needs them."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[field].split()[0]) >> 10 for name, field in (("own", "RssAnon"), ("files", "RssFile"))}


def query_keys(encoder: DocumentEncoder, domains: list[str]) -> Keys:
    """Keys of validation text, which is in no store."""
    texts = [
        record.text[:6000]
        for domain in domains
        for record, _ in zip(read_evaluation(DATA / f"{domain}.validation.jsonl.zst"), range(8), strict=False)
    ]
    begin = np.array([encoder.tokenizer.begin], dtype=np.uint32)
    found = np.concatenate(
        list(encoder.keys([np.concatenate([begin, ids]) for ids in encoder.tokenizer.encode(texts)]))
    )
    return found[np.random.default_rng(0).permutation(len(found))[:BATCH]]


def search_speed(store: Store, queries: Keys) -> dict[str, Any]:
    """Microseconds per query with attribution, one at a time and in a batch; medians of seven rounds."""
    store.search(queries, K)
    one = [timed(lambda: [store.search(key[None], K) for key in queries[:64]]) / 64 for _ in range(7)]
    many = [timed(lambda: store.search(queries, K)) / len(queries) for _ in range(7)]
    usual, all_lists = store.search(queries, K), store.search(queries, K, probes=10**6)
    pairs = zip(usual.rows * 2**32 + usual.positions, all_lists.rows * 2**32 + all_lists.positions, strict=True)
    recall = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in pairs]))
    times = {"one_us": micro(one), "batch_us": micro(many), "batch": len(queries)}
    return {"k": K, "probes": PROBES, "recall_against_every_list": round(recall, 4), **times}


def micro(seconds: list[float]) -> float:
    return round(1e6 * float(np.median(seconds)), 1)


def erasures(store: Store, count: int) -> dict[str, Any]:
    """Erase single documents: accepted and done, in milliseconds."""
    held = sorted(store.documents(), key=lambda document: document.id)
    chosen = random.Random(0).sample(held, min(count, len(held)))
    del held
    before = (store.root / "data" / MANIFEST).read_bytes()
    done = [store.erase(Selector(document=document.id), suppress=False) for document in chosen]
    store.add(chosen)
    same = (store.root / "data" / MANIFEST).read_bytes() == before
    accepted, finished = ([getattr(item, name) for item in done] for name in ("accepted_ms", "done_ms"))
    return {
        "tokens_in_store": store.stats()["tokens"],
        "accepted_ms": {"median": float(np.median(accepted)), "worst": max(accepted)},
        "done_ms": {"median": float(np.median(finished)), "worst": max(finished)},
        "bytes_as_before_after_adding_again": same,
    }


def page(result: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# A store of restricted text",
        "",
        f"Model `{result['model']}`, domains {', '.join(result['domains'])}.",
        "",
    ]
    lines += [
        "Memory while filling includes pages of the store's own files: the process maps what it has finished, and the",
        "system takes such pages back when it needs them.",
        "",
    ]
    for name in ("build", "store", "filling", "search", "erasure"):
        if name in result:
            lines += [f"## {name}", "", "| what | value |", "|---|---|"]
            lines += [f"| {key} | {json.dumps(value)} |" for key, value in result[name].items()]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

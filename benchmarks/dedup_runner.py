"""One deduper, one JSONL file, one process: reads `id` and `text`, writes which ids it calls duplicates.

`benchmarks/dedup.py` runs it with the Python that has the deduper: `dedup_runner.py SYSTEM FOLDER OUT BYTES`. FOLDER
holds `documents/text.jsonl`, BYTES is the text to make room for. Imports stay inside the functions, for no Python has
all of the systems.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import files
from pathlib import Path
from typing import Any

NGRAM = 13
THRESHOLD = 0.8
FALSE_POSITIVE_RATE = 1e-3
PROBES = 7
"""Hashes per n-gram of silo's filter at that rate; the peers are also run with as few."""
BYTES_PER_NGRAM = 5
"""How silo sizes its filter from bytes of text; the peers get room for as many n-grams."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ids called duplicates, and the CPU seconds of deciding alone where a system lets us see them."""

    duplicates: list[str]
    filter_seconds: float | None


def records(folder: Path) -> Iterator[dict[str, str]]:
    """The documents of the benchmark, in order."""
    with (folder / "documents" / "text.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def run_silo(folder: Path, text_bytes: int) -> Outcome:
    """The near-duplicate stage of `silo corpus build`, one filter over everything."""
    from silo.corpus.dedup import NearDuplicates
    from silo.recipe import DedupRecipe

    recipe = DedupRecipe(ngram=NGRAM, threshold=THRESHOLD, false_positive_rate=FALSE_POSITIVE_RATE)
    NearDuplicates.for_text(recipe, 1).seen_share("compiled kernels are loaded at the first call")
    seen = NearDuplicates.for_text(recipe, text_bytes)
    documents = list(records(folder))
    start = time.process_time()
    duplicates = [one["id"] for one in documents if seen.is_duplicate(seen.seen_share(one["text"]))]
    return Outcome(duplicates, time.process_time() - start)


def run_dolma(folder: Path, text_bytes: int) -> Outcome:
    """dolma's Rust deduper at the same false-positive rate."""
    return _dolma(folder, text_bytes, bits_per_item=math.log2(1 / FALSE_POSITIVE_RATE) / math.log(2))


def run_dolma_few_hashes(folder: Path, text_bytes: int) -> Outcome:
    """dolma's Rust deduper with as many hashes as silo has probes: faster, and less exact than the rate asks for."""
    return _dolma(folder, text_bytes, bits_per_item=(PROBES - 0.05) / math.log(2))


def _dolma(folder: Path, text_bytes: int, *, bits_per_item: float) -> Outcome:
    _rust_extension("dolma").deduper_entrypoint(
        json.dumps(_dolma_settings(folder, text_bytes // BYTES_PER_NGRAM, bits_per_item))
    )
    ids = [one["id"] for one in records(folder)]
    with (folder / "attributes" / "seen" / "text.jsonl").open(encoding="utf-8") as lines:
        found = {one["id"]: one["attributes"].get("seen") for one in map(json.loads, lines)}
    if set(found) != set(ids) or any(spans is None for spans in found.values()):
        raise SystemExit("dolma left documents without an attribute: its settings did not reach it")
    return Outcome([one for one in ids if found[one]], None)


def _dolma_settings(folder: Path, items: int, bits_per_item: float) -> dict[str, Any]:
    """A whole document is one paragraph, because the separator never occurs."""
    overlap = {"ngram_length": NGRAM, "stride": 0, "overlap_threshold": THRESHOLD, "skip_short_paragraphs": False}
    paragraphs = {"attribute_name": "seen", "paragraph_separator": "\0silo\0", "by_ngram": overlap}
    return {
        "documents": [f"{folder}/documents/*.jsonl"],
        "work_dir": {"input": f"{folder}/in", "output": f"{folder}/out"},
        "dedupe": {
            "name": "seen",
            "paragraphs": paragraphs,
            "skip_empty": False,
            "min_length": 0,
            "min_words": 0,
            "num_partitions": 1,
            "partition_index": 0,
            "file_partition": False,
            "document_dir": "documents",
        },
        "bloom_filter": {
            "file": f"{folder}/filter/bloom.bin",
            "read_only": False,
            "size_in_bytes": int(items * bits_per_item / 8),
            "estimated_doc_count": items,
            "desired_false_positive_rate": FALSE_POSITIVE_RATE,
        },
        "processes": 1,
        "is_s3_volume": False,
        "compression": {"input": None, "output": None},
    }


def _rust_extension(distribution: str) -> Any:
    """The compiled module alone: the Python package around it imports taggers that download models."""
    path = next(
        str(one.locate())
        for one in files(distribution) or ()
        if one.name.startswith(f"{distribution}.") and one.suffix in {".so", ".pyd"}
    )
    loader = importlib.machinery.ExtensionFileLoader(distribution, path)
    spec = importlib.util.spec_from_loader(distribution, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def run_datatrove(folder: Path, text_bytes: int) -> Outcome:
    """datatrove's SingleBloomFilter; the bits are a power of two, because the filter masks with its size."""
    bits = min(1 << math.ceil(math.log2(15 * text_bytes / BYTES_PER_NGRAM)), 1 << 28)
    words = import_module("datatrove.utils.text").TextNormConfig(norm_numbers=False, norm_unicode_diacritics=False)
    settings = import_module("datatrove.pipeline.dedup.bloom_filter").BloomFilterConfig(
        m_bytes=bits - 1, k=PROBES, n_grams=NGRAM, duplicate_threshold=THRESHOLD, norm_config=words
    )
    step = import_module("datatrove.pipeline.dedup").SingleBloomFilter(str(folder / "bloom"), settings)
    documents = _datatrove_documents(folder)
    start = time.process_time()
    kept = {one.id for one in step.run(documents)}
    seconds = time.process_time() - start
    return Outcome([one.id for one in documents if one.id not in kept], seconds)


def run_datatrove_minhash(folder: Path, text_bytes: int) -> Outcome:
    """All four stages of datatrove's MinHash with its own settings: 5-grams, 14 buckets of 8 hashes."""
    del text_bytes
    dedup = import_module("datatrove.pipeline.dedup")
    settings = dedup.MinhashConfig()
    signatures, buckets, removed = (str(folder / name) for name in ("signatures", "buckets", "removed"))
    documents = _datatrove_documents(folder)
    start = time.process_time()
    dedup.MinhashDedupSignature(signatures, settings).run(iter(documents))
    for bucket in range(settings.num_buckets):
        dedup.MinhashDedupBuckets(signatures, buckets, config=settings).run(None, bucket, settings.num_buckets)
    dedup.MinhashDedupCluster(buckets, removed, config=settings).run(None, 0, 1)
    kept = {one.id for one in dedup.MinhashDedupFilter(removed).run(iter(documents))}
    seconds = time.process_time() - start
    return Outcome([one.id for one in documents if one.id not in kept], seconds)


def _datatrove_documents(folder: Path) -> list[Any]:
    document = import_module("datatrove.data").Document
    return [document(text=one["text"], id=one["id"]) for one in records(folder)]


SYSTEMS = {
    "silo": run_silo,
    "dolma": run_dolma,
    "dolma, 7 hashes": run_dolma_few_hashes,
    "datatrove": run_datatrove,
    "datatrove MinHash": run_datatrove_minhash,
}

if __name__ == "__main__":
    system, where, out, size = sys.argv[1:]
    Path(out).write_text(json.dumps(asdict(SYSTEMS[system](Path(where), int(size)))), encoding="utf-8")

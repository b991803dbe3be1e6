"""Small real objects for store tests: an encoder whose keys follow from the bytes before, documents, a codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.records import Candidate, Document, Evidence, Tier
from silo.search.knn.codec import Codec, CodecSettings
from silo.sources import judge
from silo.store.encode import Quantise
from silo.store.store import Store
from silo.text.tokenizer import ByteTokenizer, Ids, Tokenizer

WIDTH = 16


class SmallEncoder:
    """A key is a decayed sum of fixed random vectors of the bytes before it: it depends on its document alone."""

    fingerprint = "small"
    context = 64
    mark = ""

    def __init__(self) -> None:
        self.tokenizer: Tokenizer = ByteTokenizer()
        self._vectors = np.random.default_rng(7).normal(size=(257, WIDTH)).astype(np.float32)

    def keys(self, documents: Sequence[Ids]) -> Iterator[NDArray[np.float32]]:
        for ids in documents:
            state = np.zeros(WIDTH, dtype=np.float32)
            rows = np.empty((len(ids) - 1, WIDTH), dtype=np.float32)
            for at, token in enumerate(ids[:-1]):
                state = np.float32(0.5) * state + self._vectors[token]
                rows[at] = state
            yield rows

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        return (quantise(keys, np.matmul) for keys in self.keys(documents))


@cache
def small_codec() -> Codec:
    """A codec for `SmallEncoder`, learned from text of no store."""
    text = " ".join(f"word{number} and then some more of {number * 7}" for number in range(400))
    ids = np.concatenate([[256], np.frombuffer(text.encode(), dtype=np.uint8)]).astype(np.uint32)
    (keys,) = SmallEncoder().keys([ids])
    return Codec.learn(keys, CodecSettings(lists=16, code_bytes=8, iterations=4))


def document(
    name: str, text: str, *, owner: str = "", license: str = "", source: str = "test", **more: Any
) -> Document:
    """A judged document; no licence means restricted."""
    evidence = (Evidence(license, "record", "field", 1.0, Tier.pd, license),) if license else ()
    return judge(Candidate(name, text, source, more.pop("domain", "notes"), evidence, owner=owner, **more))


def small_store(root: Path, **settings: Any) -> Store:
    """An empty store with all searches and small buckets."""
    codec = settings.pop("codec", None) or small_codec()
    return Store.create(root, SmallEncoder(), codec=codec, **{"bucket_bytes": 2000, "passage_tokens": 16, **settings})


def tree(root: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

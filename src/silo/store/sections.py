"""What each search reads of a bucket: key rows, suffixes and passages, from documents to arrays and back.

Sections of a bucket: `lists`, `codes`, `places` (knn); `suffixes` (ngram); `passages.*` (bm25).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.search.bm25.passages import PassageArrays, build, cut
from silo.search.dtypes import UInt32s
from silo.search.knn.index import KeyRows
from silo.search.ngram.index import Tokens, suffix_array
from silo.store.bucket import Bucket, EncodedDocument
from silo.store.manifest import StoreConfig
from silo.text.tokenizer import Tokenizer
from silo.text.words import terms

Arrays = dict[str, NDArray[Any]]

KEY_SECTIONS = ("lists", "codes", "places", "tokens")
"""Keys, provenance and values."""


def search_sections(
    documents: Sequence[EncodedDocument], config: StoreConfig, tokenizer: Tokenizer, lists: int
) -> Arrays:
    """The sections of every search that the configuration names; `lists` is the codec's number of lists."""
    sections: Arrays = {}
    if "knn" in config.searches:
        sections |= _key_sections(documents, lists)
    if "ngram" in config.searches:
        sections["suffixes"] = suffix_array(np.concatenate([document.tokens for document in documents])).astype("<u4")
    if "bm25" in config.searches:
        sections |= _passage_sections(documents, config, tokenizer)
    return sections


def _key_sections(documents: Sequence[EncodedDocument], lists: int) -> Arrays:
    """Rows by list, then by place. The first token of a document has no key."""
    sizes = np.array([len(document.tokens) for document in documents], dtype=np.int64)
    has_key = np.ones(int(sizes.sum()), dtype=np.bool_)
    has_key[np.cumsum(sizes) - sizes] = False
    places = np.flatnonzero(has_key)
    numbers = np.concatenate([document.lists for document in documents])
    order = np.argsort(numbers, kind="stable")
    offsets = np.searchsorted(numbers[order], np.arange(lists + 1))
    codes = np.concatenate([document.codes for document in documents])
    return {"lists": offsets.astype("<u4"), "codes": codes[order], "places": places[order].astype("<u4")}


def _passage_sections(documents: Sequence[EncodedDocument], config: StoreConfig, tokenizer: Tokenizer) -> Arrays:
    """Passages lie between the first token of a document, which stands for no text, and its end."""
    sizes = [len(document.tokens) - 1 for document in documents]
    spans = cut(sizes, length=config.passage_tokens, stride=config.passage_stride)
    words = [
        terms(tokenizer.decode(documents[row].tokens[1 + first : 1 + end].astype(np.uint32)))
        for row, first, end in zip(spans.documents, spans.firsts, spans.ends, strict=True)
    ]
    made = build(words, spans)
    return {f"passages.{item.name}": getattr(made, item.name) for item in fields(made)}


def key_rows(bucket: Bucket) -> KeyRows:
    """What the token search reads."""
    return bucket.derive(KeyRows, *(bucket.sections[name] for name in ("lists", "codes", "places")))


def suffix_text(bucket: Bucket) -> tuple[Tokens, UInt32s]:
    """What the suffix search reads."""
    return bucket.tokens, bucket.sections["suffixes"]


def passage_arrays(bucket: Bucket) -> PassageArrays:
    """What the passage search reads."""
    return PassageArrays(**{item.name: bucket.sections[f"passages.{item.name}"] for item in fields(PassageArrays)})


def section_bytes(buckets: Iterable[Bucket]) -> Counter[str]:
    """Bytes of all buckets by section; those of passages together."""
    sizes: Counter[str] = Counter()
    for bucket in buckets:
        for name, array in bucket.sections.items():
            sizes[name.partition(".")[0]] += array.nbytes
    return sizes

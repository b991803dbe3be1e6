"""Packed training sequences: permitted documents of each domain end to end, visited in an order fixed by a seed.

Every document begins with the beginning-of-text token. Which sequence comes at which place is a function of the seed
and the plan alone, so a run that resumes sees exactly what an uninterrupted one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.corpus.opened import Corpus
from silo.corpus.shards import Shard
from silo.corpus.text import text_hash
from silo.corpus.tokens import Ids, Tokenizer, token_dtype
from silo.corpus.units import Advance
from silo.errors import SiloError
from silo.lm.firewall import SEEN, Permit, checked_documents, permitted

_BATCH_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of one domain, and where each of its documents begins.

    On disk: `<name>.tokens`, `<name>.starts.npy` (u64) and, written last, `<name>.documents.npy` (rows of `SEEN`).
    """

    domain: str
    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.uint64]
    documents: NDArray[np.void]

    def sequences(self, length: int) -> int:
        """How many sequences of inputs and targets it holds."""
        return max(0, (len(self.tokens) - 1) // length)

    def sequence(self, number: int, length: int) -> Ids:
        """`length` + 1 tokens: the inputs, and one more so that targets are the inputs moved by one."""
        start = number * length
        return np.asarray(self.tokens[start : start + length + 1], dtype=np.uint32)

    def documents_in(self, numbers: Iterable[int], length: int) -> set[int]:
        """The documents of which any token is an input or target of these sequences."""
        found: set[int] = set()
        for number in numbers:
            first, last = number * length, number * length + length
            low = int(np.searchsorted(self.starts, first, side="right")) - 1
            high = int(np.searchsorted(self.starts, last, side="right"))
            found.update(range(max(low, 0), high))
        return found


def prepare(
    corpus: Corpus, permit: Permit, tokenizer: Tokenizer, directory: Path, *, advance: Advance
) -> dict[str, Stream]:
    """Tokenise what a run may use, one stream per domain; what is already there is used again.

    Every document passes the firewall here, whether its tokens are made anew or taken from the corpus.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_domain: dict[str, list[Shard]] = {}
    for shard in permitted(corpus, permit):
        by_domain.setdefault(shard.domain, []).append(shard)
    sizes = {item["stem"]: item["bytes"] for item in corpus.manifest["shards"]}
    total = sum(sizes[shard.stem] for shards in by_domain.values() for shard in shards)
    done = 0
    streams = {}
    for number, (domain, shards) in enumerate(sorted(by_domain.items())):
        stem = directory / f"{number:04d}"
        if not stem.with_suffix(".documents.npy").exists():
            for step in _write(stem, shards, permit, tokenizer, corpus):
                advance("tokenise", done + step, total)
        done += sum(sizes[shard.stem] for shard in shards)
        advance("tokenise", done, total)
        stream = _open(stem, domain, tokenizer)
        if len(stream.documents):
            streams[domain] = stream
    if not streams:
        raise SiloError("input-empty", "no document of the corpus may be used for this model")
    return streams


def _write(stem: Path, shards: list[Shard], permit: Permit, tokenizer: Tokenizer, corpus: Corpus) -> Iterable[int]:
    opted_out = corpus.opted_out()
    same = corpus.manifest["tokenizer"]["fingerprint"] == tokenizer.fingerprint
    dtype = token_dtype(tokenizer.vocabulary)
    starts: list[int] = []
    seen: list[tuple[str, bytes]] = []
    offset = size = 0
    with stem.with_suffix(".tokens").open("wb") as stream:
        for shard in shards:
            tokens = shard.tokens()
            batch: list[str] = []
            for entry, document in zip(shard.index(), checked_documents(shard, permit, opted_out), strict=True):
                if document is None:
                    continue
                seen.append((document.id, text_hash(document.text)))
                size += int(entry["bytes"])
                if same:
                    first = int(entry["offset"])
                    ids = tokens[first : first + int(entry["tokens"])]
                    starts.append(offset)
                    offset += len(ids)
                    stream.write(ids.astype(dtype).tobytes())
                else:
                    batch.append(document.text)
                    if sum(map(len, batch)) >= _BATCH_CHARS:
                        offset = _encode(batch, tokenizer, dtype, stream, starts, offset)
                        batch = []
                        yield size
            offset = _encode(batch, tokenizer, dtype, stream, starts, offset)
            yield size
    np.save(stem.with_suffix(".starts.npy"), np.array(starts, dtype=np.uint64), allow_pickle=False)
    rows = np.zeros(len(seen), dtype=SEEN)
    for at, (name, mark) in enumerate(seen):
        rows[at] = (bytes.fromhex(name), mark, 0)
    np.save(stem.with_suffix(".documents.npy"), rows, allow_pickle=False)


def _encode(batch: list[str], tokenizer: Tokenizer, dtype: Any, stream: Any, starts: list[int], offset: int) -> int:
    begin = np.array([tokenizer.begin], dtype=dtype).tobytes()
    for ids in tokenizer.encode(batch) if batch else []:
        starts.append(offset)
        offset += len(ids) + 1
        stream.write(begin + ids.astype(dtype).tobytes())
    return offset


def _open(stem: Path, domain: str, tokenizer: Tokenizer) -> Stream:
    path = stem.with_suffix(".tokens")
    dtype = token_dtype(tokenizer.vocabulary)
    tokens = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype=dtype)
    starts, documents = (np.load(stem.with_suffix(f".{name}.npy")) for name in ("starts", "documents"))
    return Stream(domain, tokens, starts, documents)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every sequence of a run in order: the domain and the number of the sequence within it."""

    domains: tuple[str, ...]
    domain_of: NDArray[np.uint16]
    number_of: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.domain_of)

    def batch(self, streams: Mapping[str, Stream], places: range, length: int) -> Ids:
        """Sequences as rows of `length` + 1 tokens."""
        rows = [
            streams[self.domains[self.domain_of[place]]].sequence(int(self.number_of[place]), length)
            for place in places
        ]
        return np.stack(rows)

    def visited(self, streams: Mapping[str, Stream], upto: int, length: int) -> list[tuple[str, bytes]]:
        """(id, text hash) of every document that the first `upto` sequences touch."""
        found: list[tuple[str, bytes]] = []
        for at, domain in enumerate(self.domains):
            mine = self.number_of[:upto][self.domain_of[:upto] == at]
            stream = streams[domain]
            for row in stream.documents_in(np.unique(mine).tolist(), length):
                entry = stream.documents[row]
                found.append((entry["id"].tobytes().hex(), entry["text"].tobytes()))
        return found


def make_plan(
    streams: Mapping[str, Stream], *, sequences: int, length: int, weights: Mapping[str, float], seed: int
) -> Plan:
    """Share the sequences out by weight times size, shuffle, and go through each domain epoch by epoch."""
    domains = tuple(sorted(domain for domain, stream in streams.items() if stream.sequences(length)))
    if not domains:
        raise SiloError("input-empty", f"no domain has a whole sequence of {length + 1} tokens")
    sizes = np.array([streams[domain].sequences(length) for domain in domains], dtype=np.float64)
    wanted = sizes * np.array([weights.get(domain, 1.0) for domain in domains])
    counts = _shared_out(wanted / wanted.sum(), sequences)
    rng = np.random.default_rng([seed, length])
    domain_of = np.repeat(np.arange(len(domains), dtype=np.uint16), counts)
    rng.shuffle(domain_of)
    number_of = np.empty(len(domain_of), dtype=np.uint32)
    for at, count in enumerate(counts.tolist()):
        number_of[domain_of == at] = _epochs(int(sizes[at]), count, np.random.default_rng([seed, length, at]))
    return Plan(domains, domain_of, number_of)


def _shared_out(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`, each within one of its share."""
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def _epochs(size: int, count: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    """`count` numbers below `size`: one shuffled pass after the other."""
    passes = [rng.permutation(size) for _ in range(-(-count // size))] if count else []
    return np.concatenate([np.empty(0, dtype=np.int64), *passes])[:count].astype(np.uint32)

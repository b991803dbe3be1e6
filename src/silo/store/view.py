"""One generation of a store, opened for reading: only live, allowed rows ever come back from its searches.

A view never changes. It holds a shared lock named after its generation, so that an erasure can wait until nobody
reads what was erased, and everything it derives from the buckets is derived once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silo.checksums import Remembered
from silo.files import SharedLock
from silo.records import Document
from silo.search.bm25.index import AllowedPassages, Bm25Index
from silo.search.knn.index import KnnIndex, SearchTables
from silo.search.ngram.index import AllowedSuffixes, Holders, Ids, Levels, Match, NextTokens, NgramIndex
from silo.search.places import TokenTable
from silo.store.bucket import TIERS, Bucket
from silo.store.facts import Facts, FactTable
from silo.store.manifest import Generation
from silo.store.partition import leaf_of
from silo.store.paths import StorePaths
from silo.store.policy import EVERYTHING, Policy
from silo.store.policy.conditions import Mask
from silo.store.sections import key_rows, passage_arrays, suffix_text
from silo.store.selector import Selector
from silo.text.words import terms

Ints = NDArray[np.int64]

PROBES = 8
"""Lists that a token search reads at least."""
EXACT_ROWS = 50_000
"""With no more allowed rows than this every row is compared."""
ROWS_PER_NEIGHBOUR = 12
"""Lists are read until so many allowed rows per neighbour were seen: lists differ in size by orders of magnitude."""
_POLICIES = 64
_HASHERS = 4
_FREQUENT, _REMEMBERED = 1024, 1024
"""Counts over more occurrences than the first are remembered, at most the second number of them."""


NEAREST = 8
"""Neighbours that `Neighbours.kinds` looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """The nearest rows of each key [keys, k], nearest first; equal ones by document and position.

    `rows` are numbers of documents, -1 where fewer than k were found (`distances` inf there); `positions` count the
    tokens of the document before the value; `values` are next tokens. `stores` says which of several stores a row is
    of, and `ids` has the ids of the documents of each.
    """

    stores: Ints
    rows: Ints
    positions: Ints
    values: Ints
    distances: NDArray[np.float32]
    ids: tuple[NDArray[np.void], ...]

    @property
    def closest(self) -> NDArray[np.float64]:
        """The distance of the nearest of each key."""
        return self.distances[:, 0].astype(np.float64)

    @property
    def kinds(self) -> Ints:
        """How many different tokens the nearest `NEAREST` of each key were followed by; 0 without any."""
        values = np.sort(np.where(self.rows[:, :NEAREST] >= 0, self.values[:, :NEAREST], -1), axis=1)
        different = np.ones(values.shape, dtype=np.bool_)
        different[:, 1:] = values[:, 1:] != values[:, :-1]
        counts: Ints = (different & (values >= 0)).sum(axis=1)
        return counts

    def of_key(self, key: int) -> Neighbours:
        """The neighbours of one key alone."""
        at = slice(key, key + 1)
        found = self.stores[at], self.rows[at], self.positions[at], self.values[at]
        return Neighbours(*found, self.distances[at], self.ids)

    def documents(self, key: int) -> list[str]:
        """The documents behind the neighbours of one key, nearest first."""
        rows = zip(self.stores[key].tolist(), self.rows[key].tolist(), strict=True)
        return [self.ids[store][row].tobytes().hex() for store, row in rows if row >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class Continuations:
    """What follows the longest known suffix of a prefix, and where.

    `length`: tokens of that suffix, 0 if even the last token is never followed by another (all else is then empty).
    `tokens` (ascending) and `counts`: each next token and how often it follows; `total` is their sum. `ends`: how often
    a document ends right after the suffix, which is in neither. `rows` (of `ids`), `positions` and `values` tell where
    the next tokens of the first occurrences are.
    """

    length: int
    tokens: NDArray[np.uint32]
    counts: Ints
    total: int
    ends: int
    rows: Ints
    positions: Ints
    values: Ints
    ids: NDArray[np.void]

    def documents(self) -> list[str]:
        """The documents of the occurrences."""
        return [self.ids[row].tobytes().hex() for row in self.rows if row >= 0]


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage: its document, its tokens there (`first` to `end`), and its score."""

    document: str
    row: int
    first: int
    end: int
    score: float
    tokens: NDArray[np.uint32]

    def overlaps(self, other: Passage) -> bool:
        """Do both have tokens of the same document in common?"""
        return self.document == other.document and self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True, eq=False)
class AllowedCounts:
    """How much a policy allows: rows of the token search, those of each of its lists, passages, and their words.

    What is not searched counts nothing. With the counts of a whole store a part of it answers as the whole would.
    """

    rows: int
    list_rows: Ints
    passages: int
    words: int

    def __add__(self, other: AllowedCounts) -> AllowedCounts:
        return AllowedCounts(
            self.rows + other.rows,
            self.list_rows + other.list_rows,
            self.passages + other.passages,
            self.words + other.words,
        )


class _AllowedDocuments:
    """Which documents of each bucket a policy allows, in the form each search wants; None where all are."""

    def __init__(self, buckets: Sequence[Bucket], masks: Sequence[Mask]) -> None:
        self.masks = [None if mask.all() else mask for mask in masks]
        self.everything = all(mask is None for mask in self.masks)
        self._buckets = buckets
        self.rows = sum(
            int((bucket.index["tokens"][mask].astype(np.int64) - 1).sum())
            for bucket, mask in zip(buckets, masks, strict=True)
        )
        self.passages: AllowedPassages | None = None
        self.suffixes: AllowedSuffixes | None = None
        self.whole: AllowedCounts | None = None

    @cached_property
    def places(self) -> list[NDArray[np.uint8] | None] | None:
        """One bit per token of each bucket."""
        if self.everything:
            return None
        return [
            None if mask is None else np.packbits(np.repeat(mask, bucket.index["tokens"]), bitorder="little")
            for bucket, mask in zip(self._buckets, self.masks, strict=True)
        ]


class View:
    """An opened generation. `dead` are documents that are being erased: no answer shows them any more.

    It may hold a part of the buckets. `count_allowed` of all parts, added up, given to `use_counts` of each, makes a
    part's answers its share of those of the whole.
    """

    def __init__(
        self,
        generation: Generation,
        buckets: list[Bucket],
        dead: frozenset[bytes],
        before: View | None,
        lock: SharedLock,
    ) -> None:
        self.generation = generation
        self.buckets = buckets
        self.dead = dead
        self.lock = lock
        self.on_close: Callable[[View], None] = lambda _: None
        """Is told when the generation was let go of."""
        self._guard = Lock()
        self._policies: dict[Policy, _AllowedDocuments] = {}
        self._last_allowed: tuple[Policy, _AllowedDocuments] | None = None
        self._followers: dict[tuple[_AllowedDocuments, bytes], NextTokens] = {}
        known = before._rows if before else None
        self._rows: KnnIndex | None = known.with_buckets([key_rows(bucket) for bucket in buckets]) if known else None
        self._starts = np.cumsum([0, *map(len, buckets)])

    def close(self) -> None:
        """Let go of the generation."""
        self.lock.close()
        self.on_close(self)

    def require_sound(self) -> None:
        """Refuse buckets whose bytes are not those of the manifest, whatever is remembered of their files."""
        entries = self.generation.buckets
        with ThreadPoolExecutor(_HASHERS) as pool:
            list(pool.map(lambda bucket: bucket.require_sound(entries[bucket.prefix].sha256), self.buckets))

    def allowed(self, policy: Policy) -> _AllowedDocuments:
        """What a policy allows of the live documents."""
        last = self._last_allowed
        if last is not None and last[0] is policy:
            return last[1]
        with self._guard:
            allowed = self._policies.get(policy)
            if allowed is None:
                masks = [self._live(bucket) & policy.allows(bucket) for bucket in self.buckets]
                allowed = _AllowedDocuments(self.buckets, masks)
                if len(self._policies) >= _POLICIES:
                    self._policies.pop(next(iter(self._policies)))
                self._policies[policy] = allowed
            self._last_allowed = policy, allowed
        return allowed

    def _live(self, bucket: Bucket) -> Mask:
        mask = np.ones(len(bucket), dtype=np.bool_)
        for row in map(bucket.find, self.dead):
            if row >= 0:
                mask[row] = False
        return mask

    def holds(self, document: str) -> bool:
        """Is this document here, and not being erased?"""
        name = bytes.fromhex(document)
        return name not in self.dead and any(bucket.find(name) >= 0 for bucket in self._buckets_of(name))

    def _buckets_of(self, name: bytes) -> list[Bucket]:
        prefixes = [bucket.prefix for bucket in self.buckets]
        prefix = leaf_of(name, prefixes)
        return [] if prefix is None else [self.buckets[prefixes.index(prefix)]]

    def documents(
        self,
        selector: Selector | None = None,
        policy: Policy = EVERYTHING,
        *,
        after: str = "",
        disputed: bool = False,
    ) -> Iterator[Document]:
        """The live and allowed documents a selector means, all without one, in the order of their ids.

        Those up to the id `after` are passed over without being read. `disputed` are those whose evidence disagrees:
        every record of a bucket is read when they are asked for first.
        """
        if selector is not None:
            selector.require_one_meaning(self.buckets)
        for bucket in self.buckets:
            mask = self._live(bucket) & policy.allows(bucket)
            mask[: bucket.rows_up_to(after)] = False
            if disputed and mask.any():
                mask &= bucket.derive(_disputed, bucket)
            if selector is None:
                yield from map(bucket.document, np.flatnonzero(mask).tolist())
            elif mask.any():
                yield from selector.documents(bucket, mask)

    def totals_by(self, column: str, policy: Policy) -> dict[str, tuple[int, int]]:
        """How many documents and tokens a policy allows, by tier or by a name that documents have; no text is read."""
        totals: dict[str, tuple[int, int]] = {}
        for bucket in self.buckets:
            chosen = bucket.index[self._live(bucket) & policy.allows(bucket)]
            names = TIERS if column == "tier" else bucket.names[column]
            codes, lengths = chosen[column], chosen["tokens"].astype(np.int64) - 1
            counts = np.bincount(codes, minlength=len(names))
            sums = np.bincount(codes, weights=lengths, minlength=len(names))
            for code in np.flatnonzero(counts).tolist():
                documents, tokens = totals.get(names[code], (0, 0))
                totals[names[code]] = documents + int(counts[code]), tokens + int(sums[code])
        return totals

    def same_texts(self, most: int) -> list[list[Facts]]:
        """Documents that have one text under different licences, by text: at most so many texts; none is read."""
        marks = np.concatenate([np.empty(0, dtype="V16"), *(bucket.index["mark"] for bucket in self.buckets)])
        live = np.concatenate([np.empty(0, dtype=np.bool_), *map(self._live, self.buckets)])
        _, numbers, counts = np.unique(marks.view("S16"), return_inverse=True, return_counts=True)
        repeated = np.flatnonzero(live & (counts[numbers] > 1))
        groups: dict[int, list[Facts]] = {}
        for row, number in zip(repeated.tolist(), numbers[repeated].tolist(), strict=True):
            groups.setdefault(number, []).append(self.facts[row])
        found = (group for group in groups.values() if len({item.license for item in group}) > 1)
        return list(islice(found, most))

    def document(self, row: int) -> Document:
        """The document behind a row of `Neighbours` or a `Passage`."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.buckets[number].document(row - int(self._starts[number]))

    @cached_property
    def facts(self) -> FactTable:
        """Who is behind the rows."""
        return FactTable(self.buckets)

    def document_tokens(self, row: int) -> NDArray[np.uint32]:
        """The tokens of a document, without the one that begins it."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        bucket = self.buckets[number]
        entry = bucket.index[row - int(self._starts[number])]
        first = int(entry["first"])
        tokens: NDArray[np.uint32] = bucket.tokens[first + 1 : first + int(entry["tokens"])].astype(np.uint32)
        return tokens

    @cached_property
    def quotes(self) -> tuple[int, ...]:
        """The different `quote` rights of the documents."""
        rights = [np.unique(bucket.index["quote"]) for bucket in self.buckets]
        return tuple(np.unique(np.concatenate([np.empty(0, dtype=np.uint32), *rights])).tolist())

    @cached_property
    def ids(self) -> NDArray[np.void]:
        """The ids of all documents; rows of answers are numbers in it."""
        return np.concatenate([np.empty(0, dtype="V16"), *(bucket.index["id"] for bucket in self.buckets)])

    def row_search(self, tables: SearchTables) -> KnnIndex:
        """The token search; `tables` are those of the store's codec."""
        with self._guard:
            if self._rows is None:
                self._rows = KnnIndex(tables, [key_rows(bucket) for bucket in self.buckets])
            return self._rows

    @cached_property
    def _token_table(self) -> TokenTable:
        return TokenTable([(bucket.tokens, bucket.index["first"]) for bucket in self.buckets])

    @cached_property
    def _suffixes(self) -> NgramIndex:
        return NgramIndex([suffix_text(bucket) for bucket in self.buckets], self.generation.config.begin)

    @cached_property
    def _passages(self) -> Bm25Index:
        return Bm25Index([passage_arrays(bucket) for bucket in self.buckets])

    def search(
        self,
        tables: SearchTables,
        keys: ArrayLike,
        k: int,
        policy: Policy = EVERYTHING,
        *,
        probes: int,
        threads: int = 0,
    ) -> Neighbours:
        """The nearest allowed rows of each key. Few allowed rows are compared one by one."""
        allowed = self.allowed(policy)
        whole = allowed.whole
        if (whole or allowed).rows <= EXACT_ROWS:
            probes = tables.codec.settings.lists
        nearest = self.row_search(tables).search(
            keys,
            k,
            probes=probes,
            allowed=allowed.places,
            rows_wanted=ROWS_PER_NEIGHBOUR * k,
            list_rows=whole.list_rows if whole else None,
            threads=threads,
        )
        rows, positions, values = self._token_table.look_up(nearest.buckets, nearest.places)
        return Neighbours(np.zeros_like(rows), rows, positions, values, nearest.distances, (self.ids,))

    def count_allowed(self, policy: Policy, tables: SearchTables | None) -> AllowedCounts:
        """How much a policy allows here; `tables` are for token search, None where there is none."""
        allowed = self.allowed(policy)
        list_rows, passages, words = np.empty(0, dtype=np.int64), 0, 0
        if tables is not None:
            list_rows = self.row_search(tables).count_rows(allowed.places)
        if "bm25" in self.generation.config.searches:
            counted = self._passages.allow(self._passage_masks(allowed))
            passages, words = counted.passages, counted.words
        return AllowedCounts(allowed.rows, list_rows, passages, words)

    def use_counts(self, policy: Policy, whole: AllowedCounts) -> None:
        """Answer as a part of a whole that a policy allows so much of."""
        allowed = self.allowed(policy)
        if allowed.whole is None:
            allowed.passages, allowed.whole = None, whole

    def continuations(self, prefix: Ids, policy: Policy = EVERYTHING, **limits: int) -> Continuations:
        """What follows the longest known suffix of a prefix in allowed documents."""
        after = self._suffixes.continuations(prefix, allowed=self._allowed_suffixes(policy), **limits)
        where = self._token_table.look_up(after.buckets, after.places)
        return Continuations(after.length, after.tokens, after.counts, after.total, after.ends, *where, self.ids)

    def longest(self, prefix: Ids, policy: Policy = EVERYTHING) -> int:
        """The length of the longest suffix of a prefix that anything follows in an allowed document."""
        return self.longest_of([prefix], policy)[0]

    def longest_of(self, prefixes: Sequence[Ids], policy: Policy = EVERYTHING) -> list[int]:
        """As `longest`, of each prefix."""
        return self._suffixes.longest_of(prefixes, allowed=self._allowed_suffixes(policy))

    def longest_match(self, ids: Ids, policy: Policy = EVERYTHING) -> Match:
        """The longest suffix of `ids` that occurs in an allowed document."""
        return self._suffixes.longest_match(ids, allowed=self._allowed_suffixes(policy))

    def levels(self, ids: Ids, start: int = 0, policy: Policy = EVERYTHING, *, orders: Sequence[int]) -> Levels:
        """What allowed documents hold before each of `ids[start:]`, for contexts of several lengths."""
        return self._suffixes.levels(ids, start, orders=orders, allowed=self._allowed_suffixes(policy))

    def followers(self, context: Ids, policy: Policy = EVERYTHING) -> NextTokens:
        """What follows all of a context in allowed documents; read-only."""
        return self.followers_of([context], policy)[0]

    def followers_of(self, contexts: Sequence[Ids], policy: Policy = EVERYTHING) -> list[NextTokens]:
        """As `followers`, of each context. Frequent ones are remembered: they are short and asked for all the time."""
        allowed = self.allowed(policy)
        keys = [(allowed, np.asarray(context, dtype=np.int64).tobytes()) for context in contexts]
        with self._guard:
            known = {key: following for key in keys if (following := self._recall(key)) is not None}
        asked = {key: context for key, context in zip(keys, contexts, strict=True) if key not in known}
        if asked:
            found = self._count_followers(list(asked.values()), policy)
            known.update((key, self._remember(key, item)) for key, item in zip(asked, found, strict=True))
        return [known[key] for key in keys]

    def _count_followers(self, contexts: Sequence[Ids], policy: Policy) -> list[NextTokens]:
        return self._suffixes.followers_of(contexts, allowed=self._allowed_suffixes(policy))

    def _recall(self, key: tuple[_AllowedDocuments, bytes]) -> NextTokens | None:
        """What is remembered, which is then the last to be forgotten."""
        following = self._followers.pop(key, None)
        if following is not None:
            self._followers[key] = following
        return following

    def _remember(self, key: tuple[_AllowedDocuments, bytes], following: NextTokens) -> NextTokens:
        """Remember what is frequent; a copy, so that what was counted along with it can be let go of."""
        if following.total <= _FREQUENT:
            return following
        kept = NextTokens(following.tokens.copy(), following.counts.copy(), following.total)
        kept.tokens.flags.writeable = kept.counts.flags.writeable = False
        with self._guard:
            self._followers[key] = kept
            if len(self._followers) > _REMEMBERED:
                self._followers.pop(next(iter(self._followers)))
        return kept

    def holders(
        self, ids: Ids, sizes: Sequence[int], weights: Sequence[float], policy: Policy = EVERYTHING
    ) -> tuple[Ints, NDArray[np.float64]]:
        """The rows of the allowed documents that hold the last tokens of `ids`, and what this weighs.

        An occurrence of the last `sizes[i]` tokens weighs `weights[i]`, which is more than 0.
        """
        rows, sums, _ = self.holders_of([ids], [len(sizes)], sizes, weights, policy)
        return rows, sums

    def holders_of(
        self, texts: Sequence[Ids], ends: ArrayLike, sizes: ArrayLike, weights: ArrayLike, policy: Policy = EVERYTHING
    ) -> tuple[Ints, NDArray[np.float64], Ints]:
        """As `holders`, of each text: the rows, what they weigh, and where those of each text end.

        Sizes and weights of all texts stand in a row; those of each end at `ends`.
        """
        found = self.weigh_holders(texts, ends, sizes, weights, policy)
        return found.rows, found.weights, np.concatenate([[0], found.ends])[np.asarray(ends, dtype=np.int64)]

    def weigh_holders(
        self, texts: Sequence[Ids], ends: ArrayLike, sizes: ArrayLike, weights: ArrayLike, policy: Policy
    ) -> Holders:
        """What `holders_of` finds, and which size found it first."""
        allowed = self._allowed_suffixes(policy)
        return self._suffixes.weigh_documents_of(texts, ends, sizes, weights, self._token_table, allowed=allowed)

    def _allowed_suffixes(self, policy: Policy) -> AllowedSuffixes | None:
        allowed = self.allowed(policy)
        if allowed.suffixes is None and allowed.places is not None:
            allowed.suffixes = self._suffixes.allow(allowed.places)
        return allowed.suffixes

    def passages(self, text: str, k: int, policy: Policy = EVERYTHING) -> list[Passage]:
        """The best allowed passages for the words of a text."""
        hits = self._passages.search(terms(text), k, allowed=self._allowed_passages(policy))
        places = zip(hits.buckets.tolist(), hits.passages.tolist(), hits.scores.tolist(), strict=True)
        return [self._passage(*place) for place in places]

    def count_passages(self, words: Sequence[str], policy: Policy = EVERYTHING) -> tuple[Ints, int]:
        """How many allowed passages hold each of some words, and how many there are."""
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(terms(word)[:1] for word in words)])
        return self.count_terms(hashes, policy), self._allowed_passages(policy).passages

    def count_terms(self, words: NDArray[np.uint64], policy: Policy = EVERYTHING) -> Ints:
        """How many allowed passages hold each of some words, which are given by their hashes."""
        return self._passages.count_passages(words, allowed=self._allowed_passages(policy))

    def use_frequencies(self, words: NDArray[np.uint64], frequencies: Ints, policy: Policy) -> None:
        """In how many passages of the whole, of which this is a part, each of some words is."""
        self._passages.note_frequencies(words, frequencies, allowed=self._allowed_passages(policy))

    def _allowed_passages(self, policy: Policy) -> AllowedPassages:
        allowed = self.allowed(policy)
        if allowed.passages is None:
            whole = (allowed.whole.passages, allowed.whole.words) if allowed.whole else None
            allowed.passages = self._passages.allow(self._passage_masks(allowed), whole=whole)
        return allowed.passages

    def _passage_masks(self, allowed: _AllowedDocuments) -> list[Mask | None]:
        return [
            None if mask is None else mask[bucket.sections["passages.documents"]]
            for bucket, mask in zip(self.buckets, allowed.masks, strict=True)
        ]

    def _passage(self, number: int, passage: int, score: float) -> Passage:
        bucket = self.buckets[number]
        names = ("passages.documents", "passages.firsts", "passages.ends")
        row, first, end = (int(bucket.sections[name][passage]) for name in names)
        start = int(bucket.index[row]["first"]) + 1
        tokens = bucket.tokens[start + first : start + end].astype(np.uint32)
        whole = int(self._starts[number]) + row
        return Passage(self.ids[whole].tobytes().hex(), whole, first, end, score, tokens)


def _disputed(bucket: Bucket) -> Mask:
    """Of each document of a bucket, whether statements about its licence disagree."""
    return np.array([bool(bucket.fields(row)["conflicts"]) for row in range(len(bucket))], dtype=np.bool_)


def open_view(
    paths: StorePaths,
    generation: Generation,
    dead: frozenset[bytes],
    before: View | None = None,
    *,
    prefixes: Collection[str] | None = None,
    remembering: bool = True,
) -> View:
    """Open a generation, or those of its buckets that have some prefixes.

    Buckets that `before` has open already are not read again, nor, `remembering`, those whose checksum is known.
    """
    known: Mapping[tuple[str, str], Bucket] = {}
    if before is not None:
        entries = before.generation.buckets
        known = {(bucket.prefix, entries[bucket.prefix].sha256): bucket for bucket in before.buckets}
    files, remembered = generation.files(), Remembered(paths.buckets) if remembering else None

    def open_bucket(prefix: str) -> Bucket:
        checksum = generation.buckets[prefix].sha256
        return known.get((prefix, checksum)) or Bucket.open(prefix, paths.buckets / files[prefix], checksum, remembered)

    lock = SharedLock(paths.reader_lock(generation.fingerprint))  # first: an erasure must see whoever maps a bucket
    try:
        with ThreadPoolExecutor(_HASHERS) as pool:
            buckets = list(pool.map(open_bucket, sorted(generation.buckets if prefixes is None else prefixes)))
        if remembered:
            remembered.save(only=set(files.values()))
        return View(generation, buckets, dead, before, lock)
    except BaseException:
        lock.close()
        raise

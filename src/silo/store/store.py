"""An opened store: add, erase, search; what was erased never comes back, and no trace of it is left.

On disk: see `paths`. One process writes at a time, any number read; every query sees the latest generation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from numpy.typing import ArrayLike

from silo.corpus.decontaminate import EvaluationText
from silo.errors import SiloError
from silo.files import (
    commit,
    disk_errors,
    exclusive,
    file_stamp,
    is_held,
    nearest_path,
    remove_file,
    remove_tree,
    write_atomic,
)
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Document, Quarantined, document_id
from silo.sources import Tally
from silo.store.adding.add import Added, Incoming, Note, gather
from silo.store.adding.admission import Admission
from silo.store.adding.given import Given, as_documents, source_of
from silo.store.adding.sync import Synced, compare_source
from silo.store.encode import DocumentPipeline, Encoder
from silo.store.erasure.before import forget_before
from silo.store.erasure.copies import Copy
from silo.store.erasure.digest import Digest
from silo.store.erasure.erase import (
    Erased,
    ListModels,
    accept,
    check_removal,
    choose_documents,
    forget_intent,
    note_findings,
    remove_documents,
    sign_receipt,
    signed_receipt,
)
from silo.store.erasure.evidence import (
    Promise,
    anchor_line,
    announce_generation,
    announce_suppression,
    begin_log,
    lost_evidence,
    make_parts,
    note_backup,
    promise_of,
    read_log,
    require_generation,
    require_readable_key,
    require_whole,
    seal,
    set_aside,
)
from silo.store.erasure.log import AuditLog
from silo.store.erasure.pending import Findings, PendingErasure
from silo.store.erasure.receipt import Result
from silo.store.erasure.replace import (
    cancel_replacement,
    exchange_documents,
    note_replaced,
    prepare_replacement,
    was_exchanged,
)
from silo.store.erasure.suppression import Suppression
from silo.store.excerpt import Excerpt, read_passage
from silo.store.manifest import (
    BUCKET_BYTES,
    Generation,
    StoreConfig,
    chosen_searches,
    partial_files,
    read_generation,
    remove_partials,
    remove_strays,
    stray_files,
    write_generation,
)
from silo.store.paths import StorePaths
from silo.store.policy import EVERYTHING, Policy
from silo.store.sections import KEY_SECTIONS, section_bytes
from silo.store.selector import Selector
from silo.store.usage import Share, Usage, append_usage, redact_usage
from silo.store.view import PROBES, Continuations, Neighbours, Passage, View, open_view
from silo.store.write import BucketBuilder, BuildBuckets, Change, apply_change
from silo.text.tokenizer import Tokenizer, load_tokenizer
from silo.text.words import ANALYSIS

if TYPE_CHECKING:
    from silo.search.knn.codec import Codec
    from silo.search.knn.index import SearchTables
    from silo.store.erasure.verify import Verified

_WATCH_SECONDS = 0.2
_CANDIDATES = 8
"""Passages looked at for each that is shown: some overlap a better one."""
_PASSAGE_TOKENS = 1024
"""The longest passages, where none are asked for: those of the paper. They are half of a shorter model's context."""
_LOG = logging.getLogger(__name__)
_UNFINISHED = (
    "warning: a change to %s is not finished: %s; "
    "documents that are being erased are not shown, and nothing is written before that is finished"
)


class Searchers(Protocol):
    """Processes elsewhere that search a store."""

    def view(self, view: View) -> View:
        """A view of the same state whose searches they answer."""

    def settle(self, view: View) -> None:
        """Have them take over the state of a view; who does not in time is passed over until it has."""


class Store:
    """A store directory. `encoder` is needed to add documents, and must be the model the store was made with.

    `list_models` says for a receipt which models were trained on a document.
    """

    _passing = frozenset[str]()
    """The errors that may pass: who watches the store looks again."""
    _remembering = True
    """Are checksums of its files remembered? Not those of a copy that will be gone."""

    def __init__(self, root: Path, config: StoreConfig, tokenizer: Tokenizer, codec: Codec | None) -> None:
        self.root = root
        self.paths = StorePaths(root)
        self.config = config
        self.tokenizer = tokenizer
        self.codec = codec
        self.encoder: Encoder | None = None
        self.load_encoder: Callable[[], Encoder] | None = None
        """Loads the model of the store where it is needed first, unless one was given to `use`."""
        self.build_buckets: BuildBuckets | None = None
        """Makes the buckets of documents that are added, where that is not to be done by this process."""
        self.list_models: ListModels = lambda *_: ()
        self.searchers: Searchers | None = None
        """Who answers searches in place of this process."""
        self.exclusions: tuple[str, ...] = ()
        """What an erasure from this store cannot reach, beside what none can."""
        self.failed = False
        self.unfinished: SiloError | None = None
        """Why an erasure or another change that was begun could not be finished when the store was opened."""
        self.recall: float | None = None
        self._tables: SearchTables | None = None
        self._guard = threading.RLock()
        self._users: dict[View, int] = {}
        self._view: View | None = None
        self._seen: Any = None
        self._watched = str(self.paths.manifest), str(self.paths.pending)
        self._log: AuditLog | None = None
        self._evidence: AuditLog | None = None
        self._restored = False

    @classmethod
    def create(
        cls,
        root: Path,
        encoder: Encoder,
        *,
        codec: Codec | None = None,
        tokenizer_file: Path | None = None,
        searches: Iterable[str] = ("knn", "ngram", "bm25"),
        passage_tokens: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Store:
        """Make an empty store; `tokenizer_file` is the encoder's, none for raw bytes."""
        chosen = cls.require_room(root, searches)
        cls.require_codec(chosen, codec)
        length = passage_tokens or max(2, min(encoder.context // 2, _PASSAGE_TOKENS))
        knn, bm25 = "knn" in chosen, "bm25" in chosen
        config = StoreConfig(
            searches=chosen,
            tokenizer=encoder.tokenizer.fingerprint,
            vocabulary=encoder.tokenizer.vocabulary,
            begin=encoder.tokenizer.begin,
            model=encoder.fingerprint if knn else "",
            codec=codec.fingerprint if knn and codec else "",
            passage_tokens=length if bm25 else 0,
            passage_stride=max(1, length // 2) if bm25 else 0,
            analysis=ANALYSIS if bm25 else "",
            bucket_bytes=bucket_bytes,
            encoded_on=encoder.mark if knn else "",
        )
        fresh = StorePaths(root.with_name(root.name + ".creating"))
        remove_tree(fresh.root)
        fresh.buckets.mkdir(parents=True)
        if tokenizer_file is not None:
            write_atomic(fresh.tokenizer, tokenizer_file.read_bytes())
        if knn and codec is not None:
            codec.save(fresh.codec)
        write_generation(fresh, Generation.of(config, {}, Digest.of()))
        begin_log(fresh)
        remove_tree(root)
        commit(fresh.root, root)
        return cls.open(root, encoder)

    @staticmethod
    def require_room(root: Path, searches: Iterable[str]) -> tuple[str, ...]:
        """The searches of a new store, which must be known ones; nothing may be at its place yet."""
        chosen = chosen_searches(searches)
        if root.is_file() or (root.is_dir() and any(root.iterdir())):
            raise SiloError("out-exists", f"{root} is not empty", "choose another path")
        return chosen

    @staticmethod
    def require_codec(searches: Iterable[str], codec: Codec | None) -> None:
        """Token search needs a codec."""
        if "knn" in searches and codec is None:
            raise SiloError("codec-invalid", "token search needs the model's codec", "run `silo lm codec MODEL` first")

    @classmethod
    def open(
        cls,
        root: Path,
        encoder: Encoder | None = None,
        *,
        list_models: ListModels = lambda *_: (),
        restored: bool = False,
    ) -> Self:
        """Open a store. What a crash left unfinished is finished first, if nobody else is writing.

        Data, list, receipts or key that are not those the log names are refused. `restored` lets them pass, for
        `replay` and nothing else.
        """
        paths = StorePaths(root)
        if not paths.manifest.is_file():
            raise SiloError("not-a-store", f"{root} is not a store", "" if root.exists() else nearest_path(root))
        config = read_generation(paths).config
        tokenizer = load_tokenizer(str(paths.tokenizer) if paths.tokenizer.exists() else None)
        _require_same("tokenizer", tokenizer.fingerprint, config.tokenizer)
        if config.analysis not in ("", ANALYSIS):
            raise SiloError("store-mismatch", f"words were cut by {config.analysis}, here they are by {ANALYSIS}")
        codec = None
        if "knn" in config.searches:
            from silo.search.knn.codec import Codec

            codec = Codec.open(paths.codec)
            _require_same("codec", codec.fingerprint, config.codec)
        store = cls(root, config, tokenizer, codec)
        store.list_models = list_models
        if encoder is not None:
            store.use(encoder)
        store._restored = restored
        if not restored:
            store.recover()
        store.refresh()
        _watch(store)
        return store

    def use(self, encoder: Encoder) -> None:
        """Take a model for adding documents; another one, or another way to its keys, than the store has is refused."""
        self.require_model(encoder.tokenizer, encoder.fingerprint)
        if self.config.model and encoder.mark != self.config.encoded_on:
            own, other = (mark or "torch in float32" for mark in (self.config.encoded_on, encoder.mark))
            message = f"the keys of the store were made by {own}: those of {other} have other bits"
            raise SiloError("store-mismatch", message, "open the store with its model, or make a store there")
        self.encoder = encoder

    def require_model(self, tokenizer: Tokenizer, fingerprint: str) -> None:
        """Refuse a model, known by its tokenizer and the fingerprint of its keys, that the store was not made with."""
        _require_same("tokenizer", tokenizer.fingerprint, self.config.tokenizer)
        if self.config.model:
            _require_same("model", fingerprint, self.config.model)

    def recover(self) -> None:
        """Finish what a crash left unfinished; somebody else who is writing does it otherwise.

        Where there is no space or no right to write the store can be read all the same: what is being erased is
        masked, and the next write or opening finishes it.
        """
        promise = self._require_evidence()
        if not self._has_left_overs(promise):
            return  # without the lock, which would be in a writer's way
        try:
            with disk_errors(self.root), exclusive(self.paths.lock):
                remove_tree(self.paths.adding)
                remove_strays(self.paths, read_generation(self.paths))
                remove_partials(self.paths)
                self._forget_readers()
                self._settle()
        except SiloError as error:
            if error.code not in ("busy", "not-writable", "disk-full", "disk-failed"):
                raise
            self.failed = error.code == "disk-failed"
            left = self.paths.pending.exists() or (promise is not None and not promise.closed)
            if left and error.code != "busy":
                self.unfinished = error
                _LOG.warning(_UNFINISHED, self.root, error)

    def begin_again(self) -> None:
        """Let an open store be written to after a write that failed: what opening it anew would do."""
        if self.failed:
            self._log = self._evidence = None
            self.failed = False
            self.recover()
            self.refresh()

    def _has_left_overs(self, promise: Promise | None) -> bool:
        """Is there something to finish or to tidy up, or is somebody writing?"""
        paths = self.paths
        if paths.pending.exists() or paths.adding.exists() or (promise is not None and not promise.closed):
            return True
        if paths.erasing.exists() or partial_files(paths):
            return True
        generation = read_generation(paths)
        current = paths.reader_lock(generation.fingerprint)
        return bool(stray_files(paths, generation)) or any(lock != current for lock in paths.readers.glob("*"))

    def _require_evidence(self) -> Promise | None:
        """Refuse a store whose parts do not belong together; what the log promises, None if it was never sealed."""
        if self._evidence is None:
            self._evidence = read_log(self.paths, read_generation(self.paths))
        if self._evidence is None or (promise := require_whole(self.paths, self._evidence)) is None:
            return None
        require_readable_key(self.paths)
        return promise

    def _require_known(self, generation: Generation) -> None:
        """Refuse a generation that the log does not name as the current one."""
        if self._restored:
            return
        if self._evidence is None:
            self._evidence = read_log(self.paths, generation)
        if self._evidence is not None:
            self._evidence.follow()
            require_generation(promise_of(self._evidence.entries), generation.fingerprint, self.paths)

    def _settle(self, *, sealed: bool = False) -> None:
        """Finish and seal what somebody before us left; with `sealed`, also a store that never was."""
        promise = self._require_evidence()
        pending = self.paths.pending.exists()
        if promise is None and not (pending or sealed):
            return
        if promise is None:
            begin_log(self.paths)
        self._finish_erasure()
        self._seal()

    def _seal(self) -> None:
        """Name the state in the log, unless that was done."""
        promise = promise_of(self.log().entries)
        if promise is None or not promise.closed:
            seal(self.paths, self.log())

    def _forget_readers(self) -> None:
        """Remove the locks of generations that nobody reads any more."""
        current = self.paths.reader_lock(read_generation(self.paths).fingerprint)
        for lock in self.paths.readers.glob("*"):
            if lock != current and not is_held(lock):
                remove_file(lock)

    # reading

    @contextlib.contextmanager
    def reading(self) -> Iterator[View]:
        """The current generation, held for as long as it is used."""
        self.refresh()
        with self._guard:
            view = self._current()
            self._users[view] = self._users.get(view, 0) + 1
        try:
            yield view
        finally:
            with self._guard:
                self._users[view] -= 1
                self._retire(view)

    @contextlib.contextmanager
    def searching(self) -> Iterator[View]:
        """The current generation for searches: those that searchers answer, where there are some."""
        with self.reading() as view:
            yield view if self.searchers is None else self.searchers.view(view)

    def _current(self) -> View:
        if self._view is None:
            raise SiloError("not-a-store", f"{self.root} was closed")
        return self._view

    def _retire(self, view: View) -> None:
        if view is not self._view and not self._users.get(view):
            self._users.pop(view, None)
            view.close()

    def refresh(self) -> None:
        """Take the latest generation, if there is a new one."""
        if self._signature() == self._seen:
            return
        with self._guard:
            while (seen := self._signature()) != self._seen:
                view = self._open_latest()
                weakref.finalize(self, view.lock.close)  # an erasure must not wait for a store that nobody holds
                old, self._view, self._seen = self._view, view, seen
                if old is not None:
                    self._retire(old)

    def _move_on(self) -> None:
        """Take the latest generation, and let searchers take it: none of them answers new requests from another."""
        self.refresh()
        if self.searchers is not None:
            with self.reading() as view:
                self.searchers.settle(view)

    def _open_latest(self) -> View:
        """Open what the manifest names; a generation that ends meanwhile is left at once."""
        while True:
            generation = read_generation(self.paths)
            pending = PendingErasure.read(self.paths.pending)
            dead = pending.hidden if pending else frozenset[bytes]()
            view = None
            try:
                self._require_known(generation)
                view = open_view(self.paths, generation, dead, self._view, remembering=self._remembering)
                if read_generation(self.paths).fingerprint == generation.fingerprint:
                    return view
            except SiloError:
                if read_generation(self.paths).fingerprint == generation.fingerprint:
                    raise
            if view is not None:
                view.close()

    def _signature(self) -> tuple[Any, ...]:
        return tuple(map(file_stamp, self._watched))

    def close(self) -> None:
        """Let go of everything."""
        with self._guard:
            view, self._view, self._seen = self._view, None, None
            if view is not None:
                self._retire(view)

    def search(self, keys: ArrayLike, k: int, policy: Policy = EVERYTHING, *, probes: int = PROBES) -> Neighbours:
        """The nearest allowed rows of each key [keys, width]."""
        with self.searching() as view:
            return view.search(self.tested_tables(), keys, k, policy, probes=probes)

    def tested_tables(self) -> SearchTables:
        """What token search needs of the codec; before the first search of an opened store the search is tested.

        Searchers have tested their own.
        """
        if self.recall is None and self.searchers is None:
            self.recall = self.self_test()["recall"]
        return self._search_tables()

    def _search_tables(self) -> SearchTables:
        with self._guard:
            if self._tables is None:
                from silo.search.knn.index import SearchTables

                self.config.require("knn")
                assert self.codec is not None
                self._tables = SearchTables(self.codec)
            return self._tables

    def self_test(self) -> dict[str, float]:
        """Compare token search with exact distances on sampled keys; refuses a search that finds too little."""
        from silo.store.erasure.verify import self_test

        with self.reading() as view:
            return self_test(view, self._search_tables())

    def continuations(self, prefix: Sequence[int], policy: Policy = EVERYTHING, **limits: int) -> Continuations:
        """What follows the longest suffix of the prefix that allowed documents hold."""
        self.config.require("ngram")
        with self.searching() as view:
            return view.continuations(prefix, policy, **limits)

    def passages(self, text: str, k: int, policy: Policy = EVERYTHING) -> list[Passage]:
        """The best allowed passages for the words of a text."""
        self.config.require("bm25")
        with self.searching() as view:
            return view.passages(text, k, policy)

    def excerpts(self, text: str, k: int, policy: Policy = EVERYTHING) -> list[Excerpt]:
        """The best allowed passages for the words of a text that do not overlap, as people read them."""
        self.config.require("bm25")
        with self.searching() as view:
            chosen: list[Passage] = []
            for passage in view.passages(text, _CANDIDATES * k, policy):
                if len(chosen) < k and not any(passage.overlaps(other) for other in chosen):
                    chosen.append(passage)
            return [read_passage(view, passage, self.tokenizer, text) for passage in chosen]

    def get(self, document: str, *, source: str = "") -> Document:
        """One document, named as for `Selector`; of several with this id, the one of `source`."""
        selector = Selector(document=document, source=source)
        with self.reading() as view:
            found = list(view.documents(selector))
            if not found:
                raise selector.matches_nothing(self.root, view.buckets)
        if len(found) > 1:
            sources = ", ".join(sorted(item.source for item in found))
            what = f"{len(found)} documents have the id {document}, of the sources {sources}"
            raise SiloError("document-ambiguous", what, "say of which source it is, or write id: and silo's id")
        return found[0]

    def documents(
        self,
        selector: Selector | None = None,
        policy: Policy = EVERYTHING,
        *,
        after: str = "",
        disputed: bool = False,
    ) -> Iterator[Document]:
        """The allowed documents that a selector means, all of them without one; those up to the id `after` are not.

        With `disputed` only those whose evidence disagrees.
        """
        with self.reading() as view:
            yield from view.documents(selector, policy, after=after, disputed=disputed)

    def totals_by(self, column: str, policy: Policy = EVERYTHING) -> dict[str, tuple[int, int]]:
        """How many documents and tokens a policy allows, by tier, license, owner, domain or source."""
        with self.reading() as view:
            return view.totals_by(column, policy)

    def holds(self, document: str) -> bool:
        """Does the store hold this document now, and is it not being erased?"""
        return bool(self.held([document]))

    def held(self, documents: Iterable[str]) -> frozenset[str]:
        """Those of some documents that the store holds now, and that are not being erased."""
        with self.reading() as view:
            return frozenset(filter(view.holds, documents))

    def note_usage(self, tokens: int, shares: Mapping[str, Share]) -> None:
        """Note a request of so many tokens in the ledger, durably: each document's share in it, and no text."""
        append_usage(self.paths, Usage(datetime.now(UTC), tokens, shares), held=self.held)

    def digest(self) -> str:
        """One value for the whole content: equal documents and configuration, equal digest."""
        with self.reading() as view:
            return view.generation.digest

    def stats(self) -> dict[str, Any]:
        """Sizes, searches and, with token search, how well it finds what it should."""
        with self.reading() as view:
            totals = view.generation.totals
            rows = max(1, totals["tokens"] - totals["documents"])
            sections = section_bytes(view.buckets)
        figures: dict[str, Any] = {
            "searches": ", ".join(self.config.searches),
            **totals,
            "buckets": len(view.buckets),
            "knn_bytes_per_token": round(sum(sections[name] for name in KEY_SECTIONS) / rows, 2),
            "ngram_bytes_per_token": round(sections["suffixes"] / rows, 2),
            "bm25_bytes_per_token": round(sections["passages"] / rows, 2),
            "record_bytes_per_token": round((sections["records"] + sections["index"]) / rows, 2),
            "kept_out": self._count_kept_out(),
            "digest": view.generation.digest,
        }
        return figures | (self.self_test() if self.codec else {})

    def _count_kept_out(self) -> int | None:
        """How many documents are kept out; None for whoever may not read the list."""
        try:
            return len(Suppression.open(self.paths.suppression))
        except SiloError as error:
            if error.code != "input-unreadable":
                raise
            return None

    def verify(
        self, *, keys: bool = False, anchors: Sequence[str] = (), advance: Advance = lambda *_: None
    ) -> Verified:
        """Check every file against manifest and log and make every bucket again from its documents; `keys` too.

        `anchors` are lines that `anchor` gave earlier: the log must still hold what they name. What looks wrong is
        looked at again, since somebody who writes meanwhile may be killed and cleaned up after at any instant.
        """
        from silo.store.erasure.verify import verify

        pipeline = self._pipeline("encoding again") if keys else None
        seen = frozenset[str]()
        while True:
            with self.reading() as view:
                found = verify(
                    view, paths=self.paths, builder=self.builder(), pipeline=pipeline, anchors=anchors, advance=advance
                )
            if seen.issuperset(found.problems):
                return found
            seen = frozenset(found.problems)
            self._finish_for_others()

    def _finish_for_others(self) -> None:
        """Finish what a writer left who was killed while we looked: damage is what is there at a second look."""
        with contextlib.suppress(SiloError):
            self.recover()

    def anchor(self) -> str:
        """One line that names the whole history up to now: kept elsewhere, it tells an older copy of the store."""
        log = read_log(self.paths, read_generation(self.paths))
        if log is None:
            raise SiloError("input-missing", f"{self.root} has no log yet", "the next write begins one")
        return anchor_line(log.head())

    # what a store does besides whose home is elsewhere, see `silo.store.remote`; one in a directory is its own home

    def _hand_on(self) -> None:
        """An erasure was accepted on the disk: let it be so wherever the store is read."""

    def _check_elsewhere(self) -> Mapping[str, Result]:
        """The old buckets of an erasure are gone from the disk: let them go everywhere, and say what was seen."""
        return {}

    def _announce(self, generation: str) -> None:
        """Say in the log which generation comes; all that came before is on the disk."""
        announce_generation(self.log(), generation)

    # writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the one writer. After a write that failed nothing more is written until the store is opened again."""
        if self.failed:
            raise SiloError("disk-failed", f"an earlier write to {self.root} failed", "open the store again")
        with exclusive(self.paths.lock):
            self._require_sound()
            if not self._restored:
                self._settle(sealed=True)
                self.unfinished = None
            try:
                yield
                self._seal()
            except (SiloError, OSError) as error:
                self.failed = isinstance(error, OSError) or error.code in ("disk-failed", "disk-full")
                raise
            finally:
                self.refresh()

    def _require_sound(self) -> None:
        """Read every byte that was not read since the store was opened: what is written next is made from them.

        A bit that a disk has changed would get a new checksum with the new bucket, and one in an index could hide a
        document from its erasure.
        """
        with self.reading() as view:
            view.require_sound()

    def log(self) -> AuditLog:
        """The log, for the one writer; it is read again only if somebody else has written to it."""
        if self._log is None or not self._log.is_current:
            self._log = AuditLog.open(self.paths.log)
        return self._log

    def builder(self) -> BucketBuilder:
        """What makes the bytes of this store's buckets."""
        return BucketBuilder(self.config, self.tokenizer, self.codec.settings.lists if self.codec else 0)

    def _require_encoder(self, purpose: str) -> None:
        if self.encoder is None and self.load_encoder is None:
            message = f"{purpose} needs the model the store was made with"
            raise SiloError("store-mismatch", message, "open it with its model")

    def _pipeline(self, purpose: str) -> DocumentPipeline:
        self._require_encoder(purpose)
        if self.encoder is None and self.load_encoder is not None:
            self.use(self.load_encoder())
        assert self.encoder is not None
        return DocumentPipeline(self.encoder, self.codec)

    def _suppression(self) -> Suppression:
        """The list of what is kept out, for the one writer."""
        return Suppression.open(self.paths.suppression, partial(announce_suppression, self.log()))

    def _incoming(self, advance: Advance) -> Incoming:
        return Incoming(self.paths, partial(self._pipeline, "adding"), advance)

    def _build_elsewhere(self, incoming: Incoming) -> BuildBuckets | None:
        """What makes buckets outside this process, if there is something; says how far it is."""
        return partial(incoming.follow, self.build_buckets) if self.build_buckets else None

    def add(
        self,
        documents: Given | Iterable[Given],
        *,
        update: bool = False,
        decontaminate: EvaluationText | None = None,
        note: Note = lambda _: None,
        advance: Advance = lambda *_: None,
    ) -> Added:
        """Put documents into the store; those without the right, kept out or already there are not taken.

        A document is a `Document`, a mapping with the fields of a JSONL record, or the path of a folder or file that
        holds some. With `update`, one that is there in another version takes its place: all of them in one instant,
        with one receipt for the old versions. Documents that give away evaluation text, where some is named, are not
        taken; the log says so. `note` gets every refusal.
        """
        self._require_encoder("adding")
        begin = time.perf_counter()
        unreadable, tally = list[Quarantined](), Tally()
        with self.writing(), self._incoming(advance) as incoming:
            self._finish_erasure()  # its checks compare with the state that it began with
            with self.reading() as view:
                admission = Admission(view.buckets, self._suppression(), decontaminate, update=update)
                given = as_documents(documents, unreadable, tally)
                done = gather(given, admission, incoming, note=note, advance=advance)
                done.written_bytes = self._write_new(view, incoming, admission.suppression)
            done.quarantined, done.tally = unreadable, tally
            if incoming.changed.count:
                done.erased, size = self._replace(incoming, frozenset(), begin)
                done.written_bytes += size
            self._log_added(done, decontaminate)
        return done

    def _log_added(self, done: Added, decontaminate: EvaluationText | None = None) -> None:
        if done.added or done.replaced:
            checked = {"decontaminated": decontaminate.as_json()} if decontaminate else {}
            replaced = {"replaced": done.replaced} if done.replaced else {}
            self.log().append("added", {"documents": done.added, **replaced, "digest": self.digest(), **checked})

    def sync(
        self,
        source: SourceRecipe | str | os.PathLike[str],
        *,
        base: Path | None = None,
        dry_run: bool = False,
        allow_empty: bool = False,
        note: Note = lambda _: None,
        advance: Advance = lambda *_: None,
    ) -> Synced:
        """Let the store hold of a folder, or of a file of JSON lines, what that holds now; others are not touched.

        New documents come in first; then changed ones are replaced and those that are gone leave, in one instant and
        with one receipt. With `dry_run` nothing is done. Unless `allow_empty`, the last document of the source stays:
        the error is `would-empty`. Paths of a recipe are relative to `base`, the current folder without it.
        """
        recipe = source if isinstance(source, SourceRecipe) else source_of(Path(source).expanduser())
        compare = partial(compare_source, recipe, base or Path.cwd(), note=note, advance=advance)
        if dry_run:
            with self.reading() as view:
                suppression = Suppression.open(self.paths.suppression)
                return compare(view, Admission(view.buckets, suppression, update=True), incoming=None)
        begin = time.perf_counter()
        with self.writing(), self._incoming(advance) as incoming:
            self._finish_erasure()
            with self.reading() as view:
                admission = Admission(view.buckets, self._suppression(), update=True)
                done = compare(view, admission, incoming=incoming)
                if not allow_empty:
                    done.require_rest()
                done.written_bytes = self._write_new(view, incoming, admission.suppression)
            gone = [item.id for item in done.gone]
            if incoming.changed.count:
                done.erased, size = self._replace(incoming, frozenset(map(bytes.fromhex, gone)), begin)
                done.written_bytes += size
            elif gone:
                done.erased = self._erase(gone, (), begin, suppress=False)
            self._log_added(done)
        return done

    def _write_new(self, view: View, incoming: Incoming, suppression: Suppression) -> int:
        """Write the buckets that new documents fall into, one group after the other; gives the bytes written."""
        if not incoming.new.count:
            return 0
        if self.build_buckets is None:
            self._pipeline("adding")  # first: a model that cannot be loaded leaves everything as it was
        suppression.save()
        build = self._build_elsewhere(incoming)
        change = Change(incoming.new, encode=incoming.encode, build=build, announce=self._announce)
        apply_change(self.paths, self.builder(), view.generation, view.buckets, change)
        return change.written_bytes

    def _replace(self, incoming: Incoming, gone: frozenset[bytes], begin: float) -> tuple[Erased, int]:
        """Put changed documents in the place of what is stored, and take others out, all in one instant.

        Gives what left, and the bytes written.
        """
        with self.reading() as view:
            change = Change(
                incoming.changed,
                gone | incoming.changed_ids,
                encode=incoming.encode,
                build=self._build_elsewhere(incoming),
            )
            after, pending = prepare_replacement(view, change, self.paths, self.builder())
            incoming.close()  # before the checks: it may hold what others wrote about
            exchange_documents(view, pending, after, self.paths, self.log())
        self._move_on()
        accepted = _milliseconds(begin)
        try:
            receipt, salts, checks = self._finish_erasure()
        except SiloError as error:
            hint = "the next command that can write there makes the checks and signs the receipt"
            raise SiloError(error.code, f"the new versions are there, not checked: {error.message}", hint) from error
        erased = Erased(pending.documents, accepted, _milliseconds(begin), receipt, salts, checks=checks)
        return erased, change.written_bytes

    def erase(
        self,
        selector: Selector,
        *,
        suppress: bool = True,
        copies: bool = False,
        accepted: Callable[[], None] = lambda: None,
    ) -> Erased:
        """Erase documents exactly, with a receipt; `suppress` keeps them from being added again.

        With `copies`, copies of the works that the same owner holds go too, and those of others are listed. `accepted`
        is called when nobody finds the documents any more, and what is left to do survives a crash.
        """
        if not selector:
            raise SiloError("usage", "say what to erase: a document, owner, source, licence, domain or query")
        begin = time.perf_counter()
        with self.writing():
            with self.reading() as view:
                ids, listed = choose_documents(view, selector, copies=copies)
            return self._erase(ids, listed, begin, suppress=suppress, accepted=accepted)

    def _erase(
        self,
        ids: Sequence[str],
        listed: tuple[Copy, ...],
        begin: float,
        *,
        suppress: bool,
        accepted: Callable[[], None] = lambda: None,
    ) -> Erased:
        """Accept an erasure and carry it out."""
        if not ids:
            return Erased((), _milliseconds(begin), _milliseconds(begin), None, {}, listed)
        accept(self.paths, read_generation(self.paths), ids, self.log(), suppress=suppress)
        self._hand_on()
        self._move_on()
        accepted_ms = _milliseconds(begin)
        accepted()
        try:
            receipt, salts, checks = self._finish_erasure()
        except SiloError as error:
            hint = "nobody finds its documents any more, and the next command that can write there finishes it"
            raise SiloError(error.code, f"the erasure is accepted and not done: {error.message}", hint) from error
        return Erased(tuple(ids), accepted_ms, _milliseconds(begin), receipt, salts, listed, checks)

    def _finish_erasure(self) -> tuple[Path | None, dict[str, str], Mapping[str, Result]]:
        """Carry out an erasure or a replacement that was accepted, from wherever it was cut off.

        A replacement that had not exchanged anything yet is taken back. Gives the receipt, the owner's salts and what
        the checks showed.
        """
        pending = PendingErasure.read(self.paths.pending)
        if pending is not None:
            self._require_sound()
        if pending is not None and pending.coming and not was_exchanged(pending, self.paths):
            cancel_replacement(self.paths, self.log())
            pending = None
        if pending is None:
            return None, {}, {}
        findings, receipt, salts = pending.findings, None, dict[str, str]()
        if findings is None:
            findings = self._remove_and_check(pending)
            note_findings(pending, findings, self.paths)
        else:
            receipt = signed_receipt(pending, self.paths, self.log())
        forget_before(self.paths)
        if receipt is None:
            findings = replace(findings, checks={**findings.checks, **self._check_elsewhere()})
            texts = {document: bytes.fromhex(text) for document, text in findings.text_hashes.items()}
            models = self.list_models(sorted(pending.documents), texts)
            after = read_generation(self.paths)
            excluded = self.exclusions
            receipt, salts = sign_receipt(pending, findings, after, self.paths, self.log(), models, excluded)
        forget_intent(self.paths)
        self.refresh()
        return receipt, salts, findings.checks

    def _remove_and_check(self, pending: PendingErasure) -> Findings:
        self.refresh()
        remove_strays(self.paths, read_generation(self.paths))  # a killed process may have left what must go
        with self.reading() as view:
            if pending.coming:
                removal = note_replaced(view, pending, self.paths, self.log())
            else:
                removal = remove_documents(view, pending, self.paths, self.builder(), self.log())
        self._move_on()
        redact_usage(self.paths, pending.gone)
        with self.reading() as view:
            return check_removal(view, removal, pending, self.paths, self.builder())

    def replay(self, *, accept_loss: bool = False) -> tuple[Erased, ...]:
        """Erase again what was erased and is here again, as after a backup was put back; others' copies stay.

        Of a store opened as `restored` the data is then the current one. Evidence that is missing is refused before
        anything is done, unless `accept_loss`: then the log says what was lost.
        """
        begin = time.perf_counter()
        with self.writing():
            losses = lost_evidence(self.paths)
            if losses and not accept_loss:
                raise losses[0].error()
            set_aside(self.paths, losses)
            self._log = self._evidence = None
            make_parts(self.paths)
            remove_strays(self.paths, read_generation(self.paths))
            self._finish_erasure()
            promise = promise_of(self.log().entries)
            restored = promise is None or read_generation(self.paths).fingerprint not in promise.generations
            suppression = Suppression.open(self.paths.suppression)
            back = [item.id for item in self.documents() if suppression.was_erased(item.id, item.text)]
            done = self._erase(back, (), begin, suppress=True)
            if back or restored or losses:
                self.log().append("replayed", {"documents": len(back), "lost": [loss.part for loss in losses]})
        self._restored = False
        return (done,) if back else ()

    def note_backup(self) -> None:
        """Say in the log that a backup begins, so that receipts can name it."""
        with self.writing():
            note_backup(self.log(), datetime.now(UTC))

    def allow(self, document: str, *, source: str = "") -> bool:
        """Let an erased document be added again; True if it was kept out.

        `document` is named as for `Selector`. A record's own id means one document of each source: of `source`, or of
        every source that the store has documents of.
        """
        plain = document.removeprefix("id:")
        with self.writing(), self.reading() as view:
            sources = {source} if source else {name for bucket in view.buckets for name in bucket.names["source"]}
            own = [] if document.startswith("id:") else [document.removeprefix("external:")]
            names = [plain] if not document.startswith("external:") else []
            names += [document_id(name, external) for name in sorted(sources) for external in own]
            announce = partial(announce_suppression, self.log())
            suppression = Suppression.open(self.paths.suppression, announce)
            return sum(suppression.lift(name) for name in names) > 0

    def compact(self) -> int:
        """Bring the buckets into the layout of their documents (after an `add` that was cut off); bytes freed."""
        with self.writing(), self.reading() as view:
            change = Change(announce=partial(announce_generation, self.log()))
            after = apply_change(self.paths, self.builder(), view.generation, view.buckets, change)
            return view.generation.totals["bytes"] - after.totals["bytes"]


def _milliseconds(begin: float) -> float:
    return round(1000 * (time.perf_counter() - begin), 3)


def _require_same(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise SiloError("store-mismatch", f"the store was made with another {what}")


def _watch(store: Store) -> None:
    """Leave an old generation soon even if nobody asks anything: an erasure waits for that."""
    reference = weakref.ref(store)
    done = threading.Event()
    weakref.finalize(store, done.set)

    def run() -> None:
        while not done.wait(_WATCH_SECONDS):
            live = reference()
            if live is None:
                return
            with live._guard:  # a store that is closed meanwhile stays closed
                if live._view is None:
                    return
                try:
                    live.refresh()
                except (SiloError, OSError) as error:
                    if not isinstance(error, SiloError) or error.code not in live._passing:
                        return
            del live

    threading.Thread(target=run, name="silo-store-watch", daemon=True).start()

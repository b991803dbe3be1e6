"""An opened store: add, erase, search; what was erased never comes back, and no trace of it is left.

On disk: `data/` (the documents: manifest and buckets, see `generation`), and beside it `codec/` and `tokenizer.json`
(copies of the model's), `log.jsonl`, `receipts/`, `keys/`, `suppression/`, `pending.json` (an erasure under way),
`readers/` and `lock` (who reads and who writes), `adding/` (documents on their way, removed in the end).
One process writes at a time, any number read; every query sees the latest generation.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from silo.errors import SiloError
from silo.files import MANIFEST, commit, exclusive, is_held, remove_file, remove_tree, write_atomic
from silo.progress import Advance
from silo.records import Document
from silo.search.bm25.words import ANALYSIS
from silo.search.knn.codec import Codec
from silo.search.knn.index import SearchTables
from silo.store.add import Added, add_documents
from silo.store.config import BUCKET_BYTES, Encoder, StoreConfig, chosen_searches
from silo.store.erasure.digest import Digest
from silo.store.erasure.erase import Erased, Listing, erase, finish_erasure, pending_documents
from silo.store.erasure.log import Journal
from silo.store.erasure.suppression import Suppression
from silo.store.erasure.verify import Verified, self_test, verify
from silo.store.generation import BUCKETS, LOG, READERS, read_generation, remove_strays, write_generation
from silo.store.policy import EVERYTHING, Policy, Selector
from silo.store.sections import KEY_SECTIONS, section_bytes
from silo.store.view import Following, Neighbours, Passage, View, open_view
from silo.store.write import Change, Workshop, apply
from silo.text.tokenizer import Tokenizer, load_tokenizer

DATA, CODEC, TOKENIZER, LOCK, ADDING, PENDING = "data", "codec", "tokenizer.json", "lock", "adding", "pending.json"
PROBES = 8
_WATCH_SECONDS = 0.2


class Store:
    """A store directory. `encoder` is needed to add documents, and must be the model the store was made with."""

    def __init__(self, root: Path, config: StoreConfig, tokenizer: Tokenizer, tables: SearchTables | None) -> None:
        self.root = root
        self.config = config
        self.tokenizer = tokenizer
        self.tables = tables
        self.encoder: Encoder | None = None
        self.listing: Listing = lambda _: ()
        self.failed = False
        self.recall: float | None = None
        self._guard = threading.RLock()
        self._users: dict[View, int] = {}
        self._view: View | None = None
        self._seen: Any = None
        self._journal: Journal | None = None

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
        chosen = chosen_searches(searches)
        if root.exists() and any(root.iterdir()):
            raise SiloError("out-exists", f"{root} is not empty", "choose another path")
        if "knn" in chosen and codec is None:
            raise SiloError("codec-invalid", "token search needs the model's codec", "run `silo lm codec MODEL` first")
        length = passage_tokens or max(2, encoder.context // 2)
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
        )
        fresh = root.with_name(root.name + ".creating")
        remove_tree(fresh)
        (fresh / DATA / BUCKETS).mkdir(parents=True)
        if tokenizer_file is not None:
            write_atomic(fresh / TOKENIZER, tokenizer_file.read_bytes())
        if knn and codec is not None:
            codec.save(fresh / CODEC)
        write_generation(fresh / DATA, config, {}, Digest.of())
        remove_tree(root)
        commit(fresh, root)
        return cls.open(root, encoder)

    @classmethod
    def open(cls, root: Path, encoder: Encoder | None = None, *, listing: Listing = lambda _: ()) -> Store:
        """Open a store. What a crash left unfinished is finished first, if nobody else is writing.

        `listing` says for a receipt which models were trained on a document.
        """
        if not (root / DATA / MANIFEST).is_file():
            raise SiloError("not-a-store", f"{root} is not a store")
        config = read_generation(root / DATA).config
        file = root / TOKENIZER
        tokenizer = load_tokenizer(str(file) if file.exists() else None)
        _require_same("tokenizer", tokenizer.fingerprint, config.tokenizer)
        if config.analysis not in ("", ANALYSIS):
            raise SiloError("store-mismatch", f"words were cut by {config.analysis}, here they are by {ANALYSIS}")
        tables = None
        if "knn" in config.searches:
            codec = Codec.open(root / CODEC)
            _require_same("codec", codec.fingerprint, config.codec)
            tables = SearchTables(codec)
        store = cls(root, config, tokenizer, tables)
        store.listing = listing
        if encoder is not None:
            store.use(encoder)
        store.recover()
        store.refresh()
        _watch(store)
        return store

    def use(self, encoder: Encoder) -> None:
        """Take a model for adding documents; another one than the store was made with is refused."""
        _require_same("tokenizer", encoder.tokenizer.fingerprint, self.config.tokenizer)
        if self.config.model:
            _require_same("model", encoder.fingerprint, self.config.model)
        self.encoder = encoder

    def recover(self) -> None:
        """Finish what a crash left unfinished; somebody else who is writing does it otherwise."""
        try:
            with exclusive(self.root / LOCK):
                remove_tree(self.root / ADDING)
                remove_strays(self.root / DATA, read_generation(self.root / DATA))
                self._forget_readers()
                if (self.root / PENDING).exists():
                    finish_erasure(self)
        except SiloError as error:
            if error.code != "busy":
                raise

    def _forget_readers(self) -> None:
        """Remove the locks of generations that nobody reads any more."""
        current = read_generation(self.root / DATA).fingerprint[:32]
        for lock in (self.root / READERS).glob("*"):
            if lock.name != current and not is_held(lock):
                remove_file(lock)

    # reading

    @contextmanager
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

    def _open_latest(self) -> View:
        """Open what the manifest names; a generation that ends meanwhile is left at once."""
        while True:
            generation = read_generation(self.root / DATA)
            dead = pending_documents(self.root / PENDING)
            view = None
            try:
                view = open_view(self.root, generation, dead, self._view)
                if read_generation(self.root / DATA).fingerprint == generation.fingerprint:
                    return view
            except SiloError:
                if read_generation(self.root / DATA).fingerprint == generation.fingerprint:
                    raise
            if view is not None:
                view.close()

    def _signature(self) -> tuple[Any, ...]:
        return tuple(_stat(self.root / name) for name in (f"{DATA}/{MANIFEST}", PENDING))

    def close(self) -> None:
        """Let go of everything."""
        with self._guard:
            view, self._view, self._seen = self._view, None, None
            if view is not None:
                self._retire(view)

    def search(self, keys: ArrayLike, k: int, policy: Policy = EVERYTHING, *, probes: int = PROBES) -> Neighbours:
        """The nearest allowed rows of each key [keys, width]."""
        with self.reading() as view:
            return view.search(self.tested_tables(), keys, k, policy, probes=probes)

    def tested_tables(self) -> SearchTables:
        """What token search needs of the codec; before the first search of an opened store the search is tested."""
        if self.recall is None:
            self.recall = self.self_test()["recall"]
        return self.search_tables()

    def search_tables(self) -> SearchTables:
        """What token search needs of the codec."""
        self.config.require("knn")
        assert self.tables is not None
        return self.tables

    def continuations(self, prefix: Sequence[int], policy: Policy = EVERYTHING, **limits: int) -> Following:
        """What follows the longest suffix of the prefix that allowed documents hold."""
        self.config.require("ngram")
        with self.reading() as view:
            return view.continuations(prefix, policy, **limits)

    def passages(self, text: str, k: int, policy: Policy = EVERYTHING) -> list[Passage]:
        """The best allowed passages for the words of a text."""
        self.config.require("bm25")
        with self.reading() as view:
            return view.passages(text, k, policy)

    def documents(self, selector: Selector | None = None) -> Iterator[Document]:
        """The documents that a selector means, all of them without one."""
        with self.reading() as view:
            yield from view.documents(selector)

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
        found: dict[str, Any] = {
            "searches": ", ".join(self.config.searches),
            **totals,
            "buckets": len(view.buckets),
            "knn_bytes_per_token": round(sum(sections[name] for name in KEY_SECTIONS) / rows, 2),
            "ngram_bytes_per_token": round(sections["suffixes"] / rows, 2),
            "bm25_bytes_per_token": round(sections["passages"] / rows, 2),
            "record_bytes_per_token": round((sections["records"] + sections["index"]) / rows, 2),
            "kept_out": len(Suppression.open(self.root)),
            "digest": view.generation.digest,
        }
        return found | (self.self_test() if self.tables else {})

    def verify(self, *, keys: bool = False, advance: Advance = lambda *_: None) -> Verified:
        """Check every file against the manifest and make every bucket again from its documents; `keys` too."""
        return verify(self, keys=keys, advance=advance)

    def self_test(self) -> dict[str, float]:
        """Compare token search with exact distances on sampled keys; refuses a search that finds too little."""
        return self_test(self)

    # writing

    @contextmanager
    def writing(self) -> Iterator[Workshop]:
        """Be the one writer. After a write that failed nothing more is written until the store is opened again."""
        if self.failed:
            raise SiloError("disk-failed", f"an earlier write to {self.root} failed", "open the store again")
        with exclusive(self.root / LOCK):
            try:
                yield self.workshop()
            except (SiloError, OSError) as error:
                self.failed = isinstance(error, OSError) or error.code in ("disk-failed", "disk-full")
                raise
            finally:
                self.refresh()

    def journal(self) -> Journal:
        """The log, for the one writer; it is read again only if somebody else has written to it."""
        if self._journal is None or not self._journal.is_current:
            self._journal = Journal.open(self.root / LOG)
        return self._journal

    def workshop(self) -> Workshop:
        """How this store's buckets are made."""
        lists = self.tables.codec.settings.lists if self.tables else 0
        return Workshop(self.root / DATA, self.config, self.tokenizer, lists)

    def add(self, documents: Iterable[Document], *, advance: Advance = lambda *_: None) -> Added:
        """Put documents into the store; those without the right, kept out or already there are not taken."""
        return add_documents(self, documents, advance=advance)

    def erase(self, selector: Selector, *, suppress: bool = True, copies: bool = False) -> Erased:
        """Erase documents exactly, with a receipt; `suppress` keeps them from being added again."""
        return erase(self, selector, suppress=suppress, copies=copies)

    def replay(self) -> tuple[Erased, ...]:
        """Erase again what is kept out and yet here, as after a backup was put back."""
        kept_out = Suppression.open(self.root)
        back = [document.id for document in self.documents() if kept_out.blocks(document.id, document.text)]
        return tuple(self.erase(Selector(document=name)) for name in back)

    def allow(self, document: str) -> bool:
        """Let an erased document be added again; True if it was kept out."""
        with self.writing():
            return Suppression.open(self.root).lift(document)

    def compact(self) -> int:
        """Bring the buckets into the layout of their documents (after an `add` that was cut off); bytes freed."""
        with self.writing() as shop, self.reading() as view:
            before = view.generation.totals["bytes"]
            after = before
            for generation in apply(shop, view.generation, view.buckets, Change()):
                after = generation.totals["bytes"]
        return before - after


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _require_same(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise SiloError("store-mismatch", f"the store was made with another {what}")


def _watch(store: Store) -> None:
    """Leave an old generation soon even if nobody asks anything: an erasure waits for that."""
    held = weakref.ref(store)
    done = threading.Event()
    weakref.finalize(store, done.set)

    def run() -> None:
        while not done.wait(_WATCH_SECONDS):
            found = held()
            if found is None or found._view is None:
                return
            try:
                found.refresh()
            except (SiloError, OSError):
                return
            del found

    threading.Thread(target=run, name="silo-store-watch", daemon=True).start()

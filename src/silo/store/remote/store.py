"""A store whose home is an object store, opened: it is read in a copy on this machine that follows the head.

Before a request the head is looked at, unless that was done less than a second ago; if it cannot be looked at,
the request fails: a machine that is cut off must not show what was erased meanwhile. Every write takes a copy of its
own (see `writer`), so that what is read here is always a state that was published. Where a change was begun and nobody
finished it for a minute, opening finishes it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from silo.errors import SiloError
from silo.files import write_atomic
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.remote.cache import Cache
from silo.remote.head import Head
from silo.remote.objects import Objects
from silo.remote.place import receipts_folder
from silo.remote.publish import Publisher, read_head, require_alone
from silo.store.adding.add import Added
from silo.store.adding.given import Given
from silo.store.adding.sync import Synced
from silo.store.erasure.erase import Erased, ListModels
from silo.store.erasure.evidence import promise_of
from silo.store.erasure.verify import Verified
from silo.store.paths import StorePaths
from silo.store.remote.working import WorkingCopy, is_own, keep_key, note_log
from silo.store.remote.writer import RemoteWriter, is_abandoned
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share

_ATTEMPTS = 5
_LOG = logging.getLogger(__name__)
_Opened = TypeVar("_Opened", bound=Store)
_Done = TypeVar("_Done", bound=Added)


class RemoteStore(Store):
    """A store at a URL; see `open_remote`. Its `root` is the copy on this machine."""

    _remembering = False
    _passing = frozenset({"remote-failed", "remote-damaged", "not-a-store"})  # as a mount that is away for a while
    working: WorkingCopy | None = None
    _given_up: Head | None = None
    _tag: str | None = None
    _looked = -math.inf

    @property
    def url(self) -> str:
        assert self.working is not None
        return self.working.cache.remote.url

    def recover(self) -> None:
        """Refuse a store whose parts do not belong together; only a writer finishes what others began."""
        self._require_evidence()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        raise SiloError("not-writable", f"{self.root} is a copy of {self.url}, which is only read")
        yield

    def refresh(self) -> None:
        """Take the latest generation, if there is a new one; the head is asked at most once in a second."""
        working = self.working
        if working is not None and time.monotonic() - self._looked >= working.fresh_seconds:
            with self._guard:
                if self._view is not None and time.monotonic() - self._looked >= working.fresh_seconds:
                    self._look(working)
        super().refresh()

    def _look(self, working: WorkingCopy) -> None:
        """Follow the head. The time counts from before it was asked: what came after that may be unknown here."""
        begin = time.monotonic()
        tag = working.cache.remote.head_tag()
        if tag != self._tag:
            working.follow()
            try:
                super().refresh()
            except SiloError:
                if not working.drop_damaged():
                    raise
                working.refill()
                super().refresh()
            self._tag = tag
        self._looked = begin

    def follow_now(self) -> None:
        """Look at the head whenever that was done last; if that fails now, the next request does it."""
        self._looked = -math.inf
        with contextlib.suppress(SiloError):
            self.refresh()

    @contextlib.contextmanager
    def _writer(self) -> Iterator[RemoteWriter]:
        """A copy of the newest state to write in, which is gone afterwards."""
        assert self.working is not None
        writer, working = _open(RemoteWriter, self.working.cache, self.list_models, restored=self._restored)
        writer.attach(working, self.follow_now, self._given_up)
        writer.encoder, writer.load_encoder = self.encoder, self.load_encoder
        try:
            yield writer
        finally:
            self.encoder = writer.encoder
            if writer.publisher.head != working.head:
                self._given_up = writer.publisher.head
            writer.close()
            working.close()
            self.follow_now()

    def close(self) -> None:
        """Let go of everything, the copy on this machine included."""
        super().close()
        if self.working is not None:
            self.working.close()

    def finish_abandoned(self) -> None:
        """Finish a change that somebody else began, if nothing has happened for a while."""
        assert self.working is not None
        promise = promise_of(self._evidence.entries) if self._evidence else None
        if not self.paths.pending.exists() and (promise is None or promise.closed):
            return
        if is_abandoned(self.working.head):
            try:
                with self._writer() as writer, writer.writing():
                    pass
            except SiloError as error:
                self.unfinished = error
                _LOG.warning("warning: a change to %s is not finished: %s", self.url, error)

    def note_usage(self, tokens: int, shares: Mapping[str, Share]) -> None:  # noqa: ARG002
        """Refused: a ledger is written at every request, and its home is a directory."""
        raise SiloError("usage", f"{self.url} keeps no ledger", "use a store in a directory for that")

    def verify(
        self, *, keys: bool = False, anchors: Sequence[str] = (), advance: Advance = lambda *_: None
    ) -> Verified:
        """As for a directory, of the copy here; then every object is read again where it lies."""
        found = super().verify(keys=keys, anchors=anchors, advance=advance)
        assert self.working is not None
        publisher = Publisher(self.working.cache.remote, self.working.head)
        problems = [*found.problems, *_object_problems(publisher, advance)]
        unchecked = list(found.unchecked)
        if self.paths.key_elsewhere.exists():
            unchecked.append(self.paths.signing_key.parent.name)
        if publisher.objects.keeps_versions() is not False:
            unchecked.append("object versions")
        return replace(found, problems=tuple(problems), unchecked=tuple(unchecked))

    # every write, in a copy of its own

    def add(self, documents: Given | Iterable[Given], **options: Any) -> Added:
        with self._writer() as writer:
            return _with_receipt(writer.add(documents, **options), writer)

    def sync(self, source: SourceRecipe | str | os.PathLike[str], **options: Any) -> Synced:
        if options.get("dry_run"):
            return super().sync(source, **options)
        with self._writer() as writer:
            return _with_receipt(writer.sync(source, **options), writer)

    def erase(
        self,
        selector: Selector,
        *,
        suppress: bool = True,
        copies: bool = False,
        accepted: Callable[[], None] = lambda: None,
    ) -> Erased:
        """As for a directory. Who loses a race begins again on what the other one left, until it is accepted."""
        told: list[bool] = []

        def tell() -> None:
            told.append(True)
            accepted()

        for attempt in range(_ATTEMPTS):
            try:
                with self._writer() as writer:
                    done = writer.erase(selector, suppress=suppress, copies=copies, accepted=tell)
                    return _keep_receipt(done, writer)
            except SiloError as error:
                if error.code != "remote-conflict" or told or attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError

    def replay(self, *, accept_loss: bool = False) -> tuple[Erased, ...]:
        with self._writer() as writer:
            return tuple(_keep_receipt(done, writer) for done in writer.replay(accept_loss=accept_loss))

    def note_backup(self) -> None:
        with self._writer() as writer:
            writer.note_backup()

    def allow(self, document: str, *, source: str = "") -> bool:
        with self._writer() as writer:
            return writer.allow(document, source=source)

    def compact(self) -> int:
        with self._writer() as writer:
            return writer.compact()


def open_remote(url: str, *, list_models: ListModels = lambda *_: (), restored: bool = False) -> RemoteStore:
    """Open the store at a URL in a copy on this machine; what the cache lacks is fetched, what is damaged again."""
    store, working = _open(RemoteStore, Cache(Objects.at(url)), list_models, restored=restored)
    store.working = working
    weakref.finalize(store, working.close)
    store.refresh()
    if not restored:
        store.finish_abandoned()
    return store


def _open(kind: type[_Opened], cache: Cache, list_models: ListModels, *, restored: bool) -> tuple[_Opened, WorkingCopy]:
    """Open a copy of the newest head; once more where the cache was damaged."""
    for again in (True, False):
        working = WorkingCopy(cache, restored=restored)
        try:
            working.follow()
            return kind.open(working.paths.root, list_models=list_models, restored=restored), working
        except BaseException as error:
            again = again and isinstance(error, SiloError) and working.drop_damaged()
            working.close()
            if not again:
                raise
    raise AssertionError


@contextlib.contextmanager
def new_remote(url: str) -> Iterator[Path]:
    """A path at which a store is made that is then published under a URL, where no store may be yet."""
    cache = Cache(Objects.at(url))
    require_free(url)
    working = WorkingCopy(cache)
    try:
        yield working.paths.root
        publish_store(working.paths.root, url)
    finally:
        working.close()


def require_free(url: str) -> None:
    """Refuse a URL at which a store or a corpus is, or around which or in which there is one."""
    objects = Objects.at(url)
    if read_head(objects) is not None:
        raise SiloError("out-exists", f"there is something at {url}", "choose another path")
    require_alone(objects)


def publish_store(root: Path, url: str) -> None:
    """Publish a store directory under a URL, where no store may be yet; its signing key is kept on this machine."""
    require_outside(root, url)
    require_free(url)
    keep_key(StorePaths(root))
    publisher = Publisher(Objects.at(url), Head.first())
    try:
        publisher.publish(root, is_own=is_own)
        note_log(StorePaths(root), publisher.objects.url)
    except SiloError as error:
        if error.code != "remote-conflict":
            raise
        raise SiloError("out-exists", f"somebody else has made a store at {url}", "choose another path") from None
    try:
        publisher.remove_garbage()  # one that was killed may have sent what was erased since
    except SiloError as error:
        _LOG.warning("warning: what was sent to %s earlier may still be there: %s", url, error)


def require_outside(root: Path, url: str) -> None:
    """Refuse to publish a store inside itself: its objects would lie among its files."""
    place = Path(url.removeprefix("file://"))
    if url.startswith("file:") and place.resolve().is_relative_to(root.resolve()):
        raise SiloError("usage", f"{url} is the store itself, or inside it", "choose a path elsewhere")


def _with_receipt(done: _Done, writer: RemoteWriter) -> _Done:
    if done.erased is not None:
        done.erased = _keep_receipt(done.erased, writer)
    return done


def _keep_receipt(erased: Erased, writer: RemoteWriter) -> Erased:
    """Keep a receipt where the person who erased finds it: the copy that it was written in is gone.

    It was signed before the last objects went: where they did not, the checks say so beside it.
    """
    if erased.receipt is None:
        return erased
    place = receipts_folder() / erased.receipt.name
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, erased.receipt.read_bytes())
    checks = erased.checks if writer.cleaned else {**erased.checks, "remote-cleaned": False}
    return replace(erased, receipt=place, checks=checks)


def _object_problems(publisher: Publisher, advance: Advance) -> list[str]:
    """Objects that are missing, altered, or in no head; what killed writers left is removed first."""
    with contextlib.suppress(SiloError):  # somebody who may only read cannot remove, and it is reported below
        publisher.remove_garbage()
    head, objects = publisher.head, publisher.objects
    problems = [f"{name} is in no head" for name in publisher.garbage()]
    problems += [f"{name} is of another store or corpus, which was not looked at" for name in publisher.heads_below()]
    for at, (name, part) in enumerate(head.files.items(), start=1):
        try:
            if objects.checksum(part.object) != part.sha256:
                problems.append(f"the object of {name} differs from the head")
        except FileNotFoundError:
            if read_head(objects) == head:  # a change that came since removes what it replaces
                problems.append(f"the object of {name} is missing")
        advance("objects", at, len(head.files))
    return problems

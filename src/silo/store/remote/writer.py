"""One write to a remote store: in a copy of the newest head, published at the instants at which it may be seen.

Every state that is published is one that a process killed in a store directory could have left there, so that whoever
writes next finishes it: an erasure that was accepted, documents up to some bucket, or the end. Nothing is acknowledged
before it is published, and a copy whose write failed is thrown away. Who finds that somebody else has published
meanwhile gets the error `remote-conflict`, and has changed nothing since what it published last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from silo.errors import SiloError
from silo.files import file_sha256
from silo.remote.head import Head
from silo.remote.publish import Publisher
from silo.store.adding.add import Incoming
from silo.store.erasure.erase import DRAIN_SECONDS, Erased, drain_readers
from silo.store.erasure.receipt import CACHES_ELSEWHERE, NOT_CHECKED, Result
from silo.store.manifest import read_generation
from silo.store.paths import StorePaths
from silo.store.remote.working import (
    BUCKETS,
    MANIFEST_NAME,
    WorkingCopy,
    is_lasting,
    is_unfinished,
    note_log,
    require_key,
)
from silo.store.store import Store

ABANDONED_SECONDS = 60.0


def is_abandoned(head: Head) -> bool:
    """Whether nothing has happened for so long that whoever began a change is taken for gone.

    A time that is as far ahead is of a clock that is wrong, and tells nothing.
    """
    age = datetime.now(UTC) - datetime.fromisoformat(head.at)
    return abs(age.total_seconds()) > ABANDONED_SECONDS


class RemoteWriter(Store):
    """A store opened for one write. `published` is called after every swap of the head."""

    _remembering = False
    working: WorkingCopy
    publisher: Publisher
    published: Callable[[], None]
    given_up: Head | None
    cleaned = True
    """Whether the last write removed what no head names any more."""

    def attach(self, working: WorkingCopy, published: Callable[[], None], given_up: Head | None) -> None:
        """Say what is published, who wants to know, and what a write led to that is over, finished or not."""
        self.working, self.published, self.given_up = working, published, given_up
        self.publisher = Publisher(working.cache.remote, working.head)
        self.exclusions = (CACHES_ELSEWHERE,)

    def recover(self) -> None:
        """Refuse a store whose parts do not belong together; what is unfinished is finished by `writing`."""
        self._require_evidence()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        with super().writing():
            yield
        self._publish()
        try:
            self.publisher.remove_garbage()
        except SiloError:  # the write is done; whoever writes next removes what is left
            self.cleaned = False

    def _settle(self, *, sealed: bool = False) -> None:
        self._require_abandoned()
        super()._settle(sealed=sealed)
        self._publish()

    def _require_abandoned(self) -> None:
        """Leave an erasure to the one who began it, who has the salts to give to its owner, while that may go on."""
        head = self.publisher.head
        if self.paths.pending.exists() and head != self.given_up and not is_abandoned(head):
            hint = f"wait; if nothing happens for {ABANDONED_SECONDS:.0f} seconds, the next write finishes it"
            raise SiloError("busy", f"an erasure from {self.publisher.objects.url} is under way", hint)

    def _publish(self) -> None:
        cache = self.working.cache
        left = self.publisher.publish(self.root, is_own=lambda name: is_unfinished(name, self.paths))
        note_log(self.paths, cache.remote.url)
        for name, part in self.publisher.head.files.items():
            if is_lasting(name):
                cache.take_in(self.root / name, part.sha256)
        if left:
            cache.prune(self.publisher.head)
        self.published()

    def _hand_on(self) -> None:
        require_key(self.paths)
        self._publish()
        time.sleep(self.working.fresh_seconds)  # by then nobody goes by an older head

    def _announce(self, generation: str) -> None:
        if file_sha256(self.paths.manifest) != self.publisher.head.files[MANIFEST_NAME].sha256:
            self._publish()
        super()._announce(generation)

    def _check_elsewhere(self) -> Mapping[str, Result]:
        self._publish()
        left = [*self.publisher.remove_garbage(), *self.publisher.heads_below()]
        head, cache, current = self.publisher.head, self.working.cache, read_generation(self.paths)
        versions = self.publisher.objects.keeps_versions()
        return {
            "remote-objects": len(head.objects),
            "remote-hits": len(left),
            "remote-versions-gone": NOT_CHECKED if versions is None else not versions,
            "cache-hits": cache.count_strays(head, BUCKETS, DRAIN_SECONDS),
            "cache-readers-drained": all(drain_readers(StorePaths(folder), current) for folder in cache.copies(head)),
        }

    def _finish_erasure(self) -> tuple[Path | None, dict[str, str], Mapping[str, Result]]:
        if self.paths.pending.exists():
            require_key(self.paths)
        return super()._finish_erasure()

    def _replace(self, incoming: Incoming, gone: frozenset[bytes], begin: float) -> tuple[Erased, int]:
        require_key(self.paths)
        return super()._replace(incoming, gone, begin)

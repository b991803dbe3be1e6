"""A process that erases documents one after another and looks for what is left of each, wherever silo may write.

The data must be, byte for byte, that of a store which never held the document; every other file of the store, and every
file of the folders below, must hold none of its traces.

Answers lines `folder erasures seed`. The environment names private folders: TMPDIR, XDG_CACHE_HOME, SILO_HOME and, if
the compiled kernels are to be scanned too, NUMBA_CACHE_DIR. The answer is JSON: counts and the files with traces.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from silo.cli import main as silo
from silo.records import Document
from silo.store.bucket import EncodedDocument
from silo.store.erasure.residue import Traces, scan
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share
from tests.reliability.helper import serve
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, document, small_store, tree

PLACES = ("TMPDIR", "XDG_CACHE_HOME", "SILO_HOME", "NUMBA_CACHE_DIR")
LIFE = 25
"""Erasures from one store before another is made."""


def _documents(store: Store) -> list[EncodedDocument]:
    with store.reading() as view:
        return [item for bucket in view.buckets for item in bucket.encoded_documents()]


def _traces(gone: EncodedDocument, staying: list[EncodedDocument]) -> Traces:
    (keys,) = SmallEncoder().keys([gone.tokens.astype(np.uint32)])
    return Traces.of([gone], [keys.tobytes(), keys.astype(np.float16).tobytes()]).without(staying)


def _use(store: Store, item: Document) -> None:
    """Leave whatever a store in use leaves: answers, a line in the ledger that names the document."""
    answers(store)
    store.note_usage(8, {item.id: Share(item.owner, item.license, 0.5)})


def _outside() -> dict[Path, bytes]:
    """Every file of the folders that the environment names."""
    places = [Path(os.environ[place]) for place in PLACES if place in os.environ]
    return {path: path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}


@dataclass(slots=True)
class Count:
    """What was done, and where traces were found."""

    erasures: int = 0
    windows: int = 0
    files: int = 0
    hits: list[str] = field(default_factory=list)


def _live(store: Store, item: Document, count: Count, *, by_command: bool) -> None:
    """Add a document, use it, replace it by another version and look for the old one; erase it and look again."""
    never, before = tree(store.paths.data), _outside()
    store.add([item])
    _use(store, item)
    old = _documents(store)
    newer = replace(item, text=f"{item.text[::-1]} {item.external_id} was written anew.")
    assert store.add([newer], update=True).replaced == 1
    _look(store, item, _traces(_part(old, item), _documents(store)), before, count)
    _use(store, newer)
    parts = _documents(store)
    gone = _part(parts, item)
    _erase(store, item.external_id, by_command=by_command)
    _look(store, item, _traces(gone, [part for part in parts if part is not gone]), before, count)
    count.hits += [f"{item.external_id}: data"] if tree(store.paths.data) != never else []


def _part(parts: list[EncodedDocument], item: Document) -> EncodedDocument:
    (part,) = (part for part in parts if part.id.hex() == item.id)
    return part


def _look(store: Store, item: Document, traces: Traces, before: dict[Path, bytes], count: Count) -> None:
    """Look for traces everywhere but in the data, which is compared as a whole.

    A file outside of the store that is as it was before the document came cannot hold it: compiled kernels are full of
    small numbers in a row, which are also tokens.
    """
    outside = _outside()
    changed = [path for path, content in outside.items() if before.get(path) != content]
    found = scan([*(path for path in store.root.iterdir() if path != store.paths.data), *changed], traces)
    count.erasures += 1
    count.windows += len(traces)
    count.files += found.files + len(outside) - len(changed)
    count.hits += [f"{item.external_id}: {hit}" for hit in found.hits]


def run(folder: Path, erasures: int, seed: int) -> Count:
    """So many erasures, of old versions and of whole documents.

    The first of all, which compiles what is not compiled, does not count.
    """
    rng, count = random.Random(seed), Count()
    while count.erasures < erasures:
        store = small_store(folder / "store")
        store.add(POOL)
        if not count.erasures:
            for by_command in (False, True):
                _live(store, _document("first", rng), Count(), by_command=by_command)
                store.allow(_document("first", rng).id)
        for _ in range(min(LIFE, (erasures - count.erasures + 1) // 2)):
            _live(store, _document(f"q{count.erasures}", rng), count, by_command=rng.random() < 0.1)
        store.close()
        shutil.rmtree(store.root)
    return count


def _document(name: str, rng: random.Random) -> Document:
    words = " ".join(f"{rng.choice(('elm', 'oak', 'yew'))}{rng.randrange(10**6)}" for _ in range(rng.randint(4, 60)))
    return document(name, f"The {name} of {words}.", owner=f"owner of {name}")


def _erase(store: Store, name: str, *, by_command: bool) -> None:
    """Erase a document, by the API or as a person does."""
    if not by_command:
        store.erase(Selector(document=name))
        return
    with redirect_stdout(io.StringIO()):  # the answers of this process go to the real one
        assert silo(["store", "erase", str(store.root), "--document", name, "--json"]) == 0


def main() -> None:
    serve(lambda words: json.dumps(asdict(run(Path(words[0]), int(words[1]), int(words[2])))))


if __name__ == "__main__":
    main()

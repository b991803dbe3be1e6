"""A process that erases documents one after another and looks for what is left of each, wherever silo may write.

The data must be, byte for byte, that of a store which never held the document; every other file of the store, and every
file of the folders below, must hold none of its traces.

Answers lines `folder erasures seed`. The environment names private folders: TMPDIR, XDG_CACHE_HOME, SILO_HOME and, if
the compiled kernels are to be scanned too, NUMBA_CACHE_DIR. The answer is JSON: counts and the files with traces.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np

from silo.cli import main as silo
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


def _use(store: Store, rng: random.Random) -> None:
    """Leave whatever a store in use leaves: answers, a line in the ledger, a listing."""
    answers(store)
    held = list(store.documents())
    share = {item.id: Share(item.owner, item.license, 0.5) for item in rng.sample(held, min(3, len(held)))}
    store.note_usage(8, share)


def run(folder: Path, erasures: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    done, windows, files, hits = 0, 0, 0, list[str]()
    for life in range(-(-erasures // LIFE)):
        root = folder / f"store{life}"
        store = small_store(root)
        store.add(POOL)
        never = tree(store.paths.data)
        for _ in range(min(LIFE, erasures - done)):
            name = f"q{done}"
            words = " ".join(
                f"{rng.choice(('elm', 'oak', 'yew'))}{rng.randrange(10**6)}" for _ in range(rng.randint(4, 60))
            )
            store.add([document(name, f"The {name} of {words}.", owner=f"owner of {name}")])
            _use(store, rng)
            parts = _documents(store)
            mark = store.documents(Selector(document=name)).__next__().id
            (gone,) = (item for item in parts if item.id.hex() == mark)
            traces = _traces(gone, [item for item in parts if item is not gone])
            _erase(store, name, by_command=rng.random() < 0.1)
            beside = [path for path in root.iterdir() if path != store.paths.data]
            found = scan([*beside, *(Path(os.environ[place]) for place in PLACES if place in os.environ)], traces)
            done, windows, files = done + 1, windows + len(traces), files + found.files
            hits += [f"{name}: {hit}" for hit in found.hits]
            hits += [f"{name}: data"] if tree(store.paths.data) != never else []
        store.close()
        shutil.rmtree(root)
    return {"erasures": done, "windows": windows, "files": files, "hits": hits}


def _erase(store: Store, name: str, *, by_command: bool) -> None:
    """Erase a document, by the API or as a person does."""
    if not by_command:
        store.erase(Selector(document=name))
        return
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the answers of this process go to the real one
    try:
        assert silo(["store", "erase", str(store.root), "--document", name, "--quiet"]) == 0
    finally:
        os.dup2(out, 1)
        os.close(out)


def main() -> None:
    serve(lambda words: json.dumps(run(Path(words[0]), int(words[1]), int(words[2]))))


if __name__ == "__main__":
    main()

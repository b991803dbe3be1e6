"""Random histories of adding, replacing, erasing and reopening against a store that never held what left.

Counts come from SILO_HISTORIES (6 in `make test`, 2,000 in `make reliability`); the number that ran is printed.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from silo.recipe import SourceRecipe
from silo.records import Document
from silo.search.knn.codec import Codec, CodecSettings
from silo.sources import read_documents
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import SmallEncoder, document, small_codec, small_store, tree

HISTORIES = int(os.environ.get("SILO_HISTORIES", "6"))
STEPS = 12
SHARDS = 4

POOL = [
    document(
        f"p{n}",
        f"Page {n} of the {('red', 'green', 'blue')[n % 3]} book tells how {n * n} ships left harbour {n % 5}. "
        * (1 + n % 4),
        owner=f"o{n % 3}",
        domain=f"d{n % 2}",
    )
    for n in range(24)
]


def answers(store: Store) -> list[object]:
    """What a store says to fixed questions, bit for bit."""
    encoder = SmallEncoder()
    ids = np.concatenate([[256], np.frombuffer(POOL[5].text.encode(), dtype=np.uint8)]).astype(np.uint32)
    (keys,) = encoder.keys([ids])
    said: list[object] = []
    for policy in (Policy(), Policy.of(owners=["o1", "o2"])):
        found = store.search(keys[::9], 6, policy, probes=3)
        after = store.continuations([*b"of the red book tells how"], policy)
        best = store.passages("blue book harbour 3", 4, policy)
        said += [found.distances.tobytes(), found.values.tolist(), found.positions.tolist()]
        said += [found.documents(at) for at in range(len(found.rows))]
        said += [
            after.length,
            after.tokens.tolist(),
            after.counts.tolist(),
            after.documents(),
            after.positions.tolist(),
        ]
        said += [(item.document, item.first, item.end, item.score) for item in best]
    return said


def run_history(
    root: Path, seed: int, make: Callable[[Path], Store] = small_store, pool: Sequence[Document] = POOL
) -> None:
    """One random history; every state is compared with a store that was made of its documents in one go."""
    rng = random.Random(seed)
    store = make(root / "lived")
    held: dict[str, Document] = {}
    for step in range(STEPS):
        choice = rng.random()
        if choice < 0.5:
            some = rng.sample(pool, rng.randint(1, 8))
            store.add(some)
            held = {item.external_id: item for item in some} | held
        elif choice < 0.6 and held:
            some = [_other_version(held[name], rng) for name in rng.sample(sorted(held), min(3, len(held)))]
            first = {item.external_id: item for item in reversed([*some, rng.choice(pool)])}
            store.add([*some, *first.values()], update=True)
            held |= first
        elif choice < 0.85 and held:
            name = rng.choice(sorted(held))
            if rng.random() < 0.7:
                store.erase(Selector(document=name), suppress=False)
                del held[name]
            else:
                owner = held[name].owner
                store.erase(Selector(owner=owner), suppress=False)
                held = {key: item for key, item in held.items() if item.owner != owner}
        elif choice < 0.93:
            store.close()
            store = Store.open(store.root, SmallEncoder())
        else:
            store.compact()
        if step % 4 == 3 or step == STEPS - 1:
            same_as_rebuilt(store, list(held.values()), root / f"rebuilt-{step}", make)
    store.close()


def _other_version(item: Document, rng: random.Random) -> Document:
    """The same document with another owner, or with another text: longer, shorter, or with a word changed."""
    if rng.random() < 0.2:
        return replace(item, owner=f"o{rng.randrange(9)}")
    half = item.text[: len(item.text) // 2]
    return replace(item, text=rng.choice([f"{item.text} Version {rng.randrange(99)}.", f"{half}.", half[::-1]]))


def same_as_rebuilt(
    store: Store, held: list[Document], root: Path, make: Callable[[Path], Store] = small_store
) -> None:
    never = make(root)
    random.Random(len(held)).shuffle(held)
    never.add(held)
    assert tree(store.root / "data") == tree(never.root / "data")
    assert store.digest() == never.digest()
    if held:
        assert answers(store) == answers(never)
    never.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing crashes here, and waiting for the disk is most of the time."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_history_shows(memory: Path, shard: int) -> None:
    seeds = range(shard, HISTORIES, SHARDS)
    for seed in seeds:
        run_history(memory / str(seed), seed)
        shutil.rmtree(memory / str(seed))
    print(f"histories {len(seeds)}, steps each {STEPS}, differences 0")


@pytest.mark.usefixtures("no_waiting")
def test_no_history_of_real_documents_shows(shared: Path, memory: Path) -> None:
    pool = []
    for domain in ("clinical_notes", "enron_emails", "imdb_reviews", "code_copyleft"):
        source = SourceRecipe("jsonl", (str(shared / "data" / f"{domain}.validation.jsonl.zst"),))
        short = (item for item in read_documents(source, shared, []) if len(item.text) < 4000)
        pool += [replace(item, owner=domain) for item in itertools.islice(short, 8)]
    histories = max(2, HISTORIES // 20)
    for seed in range(histories):
        run_history(memory / str(seed), 10_000 + seed, pool=pool)
        shutil.rmtree(memory / str(seed))
    print(f"histories of {len(pool)} real documents {histories}, steps each {STEPS}, differences 0")


def test_a_codec_learned_from_the_store_would_be_noticed(tmp_path: Path) -> None:
    """Planted bug: every store learns its codec from its own first documents."""

    def careless(root: Path) -> Store:
        some = random.Random(str(root)).sample(POOL, 6)
        ids = [np.frombuffer(item.text.encode(), dtype=np.uint8).astype(np.uint32) for item in some]
        keys = np.concatenate(list(SmallEncoder().keys(ids)))
        return small_store(root, codec=Codec.learn(keys, CodecSettings(lists=8, code_bytes=8, iterations=3)))

    with pytest.raises(AssertionError):
        run_history(tmp_path, 0, careless)


def test_a_tombstone_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: an erasure only masks the document and leaves it in its bucket."""
    store = small_store(tmp_path / "s")
    store.add(POOL[:6])
    monkeypatch.setattr("silo.store.erasure.erase.apply_change", lambda _paths, _builder, now, *_: now)
    done = store.erase(Selector(document="p3"))
    assert done.receipt is not None
    with pytest.raises(AssertionError):
        same_as_rebuilt(store, [item for item in POOL[:6] if item.external_id != "p3"], tmp_path / "never")


def test_keys_that_saw_another_document_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: documents are encoded end to end, so that a key depends on the document before it."""
    assert small_codec()
    whole = SmallEncoder.keys

    def careless(self: SmallEncoder, documents: list[NDArray[np.uint32]]) -> Iterator[NDArray[np.float32]]:
        (joined,) = whole(self, [np.concatenate(documents)]) if documents else (np.empty((0, 16), dtype=np.float32),)
        at = 0
        for ids in documents:
            yield joined[at : at + len(ids) - 1]
            at += len(ids)

    monkeypatch.setattr(SmallEncoder, "keys", careless)
    with pytest.raises(AssertionError):
        for seed in range(5):
            run_history(tmp_path / str(seed), seed)

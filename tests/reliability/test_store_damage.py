"""Damaged files are noticed, every one of them, and no wrong answer is given; the residue scanner finds what it should.

A store with everything it can have (documents, log, receipts, keys, suppression list, ledger), one with an erasure that
was cut off, settings, and a model: every byte of every file is flipped, every file is cut, removed and replaced by an
older version of itself. Each time an error with a code comes out of opening, verifying or using it, or the answers are
those of the sound one. Counts come from SILO_FLIPS (every byte in `make reliability`, every 151st in `make test`).
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import zstandard

from silo.errors import SiloError
from silo.files import write_json
from silo.inference.settings import Settings, load_settings, save_settings
from silo.lm.firewall import what_it_shaped
from silo.lm.manifest import open_manifest, verify_files
from silo.search.knn.codec import Codec
from silo.store.erasure.residue import Traces, scan
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share, Usage, append_usage, statements
from tests.reliability.codec_nursery import TWO, install, make_codec, make_model
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store, tree

EVERY = int(os.environ.get("SILO_FLIPS", "151"))
SHARDS = 4

Look = Callable[[Path], object]
"""Opens, verifies and asks whatever is in a folder: an error with a code, or everything it says."""


class Damaged(Exception):
    """Something says that it is not as it was written."""


def _look_at_store(root: Path) -> object:
    store = Store.open(root, SmallEncoder())
    try:
        if problems := store.verify().problems:
            raise Damaged(problems[0])
        said = answers(store), [item.as_json() for item in store.documents()], store.digest()
        back = store.add([POOL[1], POOL[3]])
        receipts = sorted(path.name for path in store.paths.receipts.iterdir())
        return said, back.added, back.reasons, statements(store.paths), receipts
    finally:
        store.close()


def _look_at_unfinished(root: Path) -> object:
    """An erasure or a replacement that was cut off is finished, or refused: what was to go is gone in any case."""
    store = Store.open(root, SmallEncoder())
    try:
        if problems := store.verify().problems:
            raise Damaged(problems[0])
        said = answers(store), [item.as_json() for item in store.documents()], store.digest()
        return said, store.add([POOL[4]]).reasons, len(list(store.paths.receipts.iterdir()))
    finally:
        store.close()


def _look_at_settings(root: Path) -> object:
    return [load_settings(root, "tuned", frozenset(names)) for names in ({"knn"}, {"knn", "ngram"})]


def _look_at_model(root: Path) -> object:
    manifest = open_manifest(root)
    verify_files(root, manifest)
    codec = Codec.open(root / "codec").fingerprint
    if manifest.get("codec", codec) != codec:
        raise Damaged("another codec")
    return sorted(manifest["files"].items()), codec, what_it_shaped(root, TWO)


def _note(store: Store, tokens: float) -> None:
    share = {item.id: Share(item.owner, item.license, tokens) for item in store.documents()}
    append_usage(store.paths, Usage(datetime(2026, 3, 1, tzinfo=UTC), 64, share), held=store.held)


def _make_store(root: Path) -> dict[str, bytes]:
    """A store with something in each of its files; gives what its files were some changes ago."""
    store = small_store(root)
    write_json(store.paths.model_place, {"model": "/models/one"})
    store.add(POOL[:3])
    _note(store, 0.5)
    store.erase(Selector(document="p1"))
    before = tree(root)
    write_json(store.paths.model_place, {"model": "/models/two"})
    store.add(POOL[3:5])
    store.erase(Selector(document="p3"))
    _note(store, 0.25)
    store.close()
    return before


def _make_unfinished(root: Path) -> dict[str, bytes]:
    """A store whose process died while it wrote buckets without an erased document."""
    store = small_store(root)
    store.add([POOL[0], POOL[4]])
    before = tree(root)
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> None:
            raise SiloError("disk-full", "no space left")

        patch.setattr("silo.store.erasure.erase.apply_change", full)
        with pytest.raises(SiloError):
            store.erase(Selector(document="p4"))
    store.close()
    return before


def _make_replacing(root: Path) -> dict[str, bytes]:
    """A store whose process died after it had exchanged a document, before it looked what was left of the old one."""
    store = small_store(root)
    store.add([POOL[0], POOL[4]])
    before = tree(root)
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> None:
            raise SiloError("disk-full", "no space left")

        patch.setattr("silo.store.store.note_replaced", full)
        with pytest.raises(SiloError):
            store.add([replace(POOL[4], text="Page 4 of the green book was written anew.")], update=True)
    store.close()
    return before


def _make_settings(root: Path) -> dict[str, bytes]:
    for k in (8, 16):
        before = tree(root) if root.exists() else {}
        save_settings(root, "tuned", {"knn": Settings(k=k), "knn+ngram": Settings(k=k)}, {"figures": {"lm": 3.5}})
    return before


def _make_model(root: Path) -> dict[str, bytes]:
    make_model(root)
    before = tree(root)
    install(root, make_codec())
    return before


KINDS: dict[str, tuple[Callable[[Path], dict[str, bytes]], Look]] = {
    "store": (_make_store, _look_at_store),
    "unfinished": (_make_unfinished, _look_at_unfinished),
    "replacing": (_make_replacing, _look_at_unfinished),
    "settings": (_make_settings, _look_at_settings),
    "model": (_make_model, _look_at_model),
}

_EMPTY = "is empty, and made again"
_TORN = "a last entry without its end was never acknowledged: opening seals the same state again"
HARMLESS = {
    "store: lock": _EMPTY,
    "store: ledger.lock": _EMPTY,
    "store: readers": _EMPTY,
    "store: store.json": "says where to look for the model, which must then be the one the store was made with",
    "store: log.jsonl": _TORN,
    "store: put back": "a bucket that no manifest names is removed, and so is a lock that nobody holds",
    "unfinished: lock": _EMPTY,
    "unfinished: ledger.lock": _EMPTY,
    "unfinished: readers": _EMPTY,
    "unfinished: log.jsonl": _TORN,
    "unfinished: put back": "a lock that nobody holds is removed",
    "unfinished: suppression": "the erasure enters its works again",
    "unfinished: erasing": "only checks need it: the erasure is done, and the receipt says what was not checked",
    **{f"replacing: {name}": _EMPTY for name in ("lock", "ledger.lock", "readers")},
    "replacing: log.jsonl": _TORN,
    "replacing: erasing": "only checks need it: the receipt says what was not checked",
    "replacing: put back": "a bucket that no manifest names is removed, and so is a lock that nobody holds",
    "model: manifest.json": "without it a model is somebody else's, of unknown training data; its files are the same",
}
"""Files of which some damage changes no answer, and why."""

OLDER = {
    "ledger.jsonl": "a request that nobody noted and one whose line was taken away look the same",
    "settings/tuned.json": "older settings are whole settings: those that were tuned then",
}
"""Files that may be replaced by an older or shorter version of themselves, whole to the last line."""


@dataclass(slots=True)
class _World:
    """A sound folder, and what became of damaged ones."""

    root: Path
    kind: str
    sound: dict[str, bytes]
    said: object
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def make(cls, root: Path, kind: str) -> tuple[_World, dict[str, bytes]]:
        make, look = KINDS[kind]
        before = make(root)
        sound = tree(root)
        world = cls(root, kind, sound, look(root))
        world.restore()
        return world, before

    def restore(self) -> None:
        """Make every file what it was; names that came in the meantime go."""
        for name in tree(self.root).keys() - self.sound.keys():
            (self.root / name).unlink()
        for name, content in self.sound.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != content:
                self._write(path, content)

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o600)

    def damage(self, name: str, content: bytes | None, how: str) -> None:
        """Look at the folder with this in place of a file, or without the file."""
        path = self.root / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, content)
        self.counts[how] += 1
        try:
            said = KINDS[self.kind][1](self.root)
        except (SiloError, Damaged):
            self.counts["noticed"] += 1
        else:
            self._judge(name, said, how)
        self.restore()

    def _judge(self, name: str, said: object, how: str) -> None:
        if name in OLDER and how in ("cut", "older", "removed"):
            self.counts["whole"] += 1
            return
        assert said == self.said, f"a wrong answer of the {self.kind} with {name} {how}"
        places = {f"{self.kind}: {place}" for place in (name, name.split("/")[0], how)}
        assert places & HARMLESS.keys(), f"{name} {how}"
        self.counts["harmless"] += 1

    def report(self, what: str) -> None:
        found = dict(self.counts)
        noticed, harmless, whole = (found.pop(name, 0) for name in ("noticed", "harmless", "whole"))
        done = ", ".join(f"{count:,} {how}" for how, count in found.items())
        more = f", {whole} whole but older" if whole else ""
        print(f"damaged {what}: {done}; {noticed:,} noticed, {harmless:,} harmless{more}, 0 wrong answers")


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_noticed_or_harmless(memory: Path, kind: str, shard: int) -> None:
    world, _ = _World.make(memory / kind, kind)
    files = sorted(world.sound)
    places = [(name, at) for name in files for at in range(0, len(world.sound[name]), EVERY)]
    for name, at in places[shard::SHARDS]:
        whole = world.sound[name]
        world.damage(name, whole[:at] + bytes([whole[at] ^ (0x41, 0x01, 0x80)[at % 3]]) + whole[at + 1 :], "flipped")
    world.report(f"bytes of {len(files)} files of a {kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_cut_removed_or_older_is_noticed_or_harmless(memory: Path, kind: str) -> None:
    world, before = _World.make(memory / kind, kind)
    for name, whole in world.sound.items():
        lines = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A][:-1][-40:]
        for size in sorted({0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1, *lines}):
            if 0 <= size < len(whole):
                world.damage(name, whole[:size], "cut")
        world.damage(name, None, "removed")
        if before.get(name, whole) != whole:
            world.damage(name, before[name], "older")
    for name in before.keys() - world.sound.keys():
        world.damage(name, before[name], "put back")
    world.report(f"files of a {kind}")


def test_extra_files_are_removed(memory: Path) -> None:
    store = small_store(memory / "store")
    store.add(POOL[:3])
    store.close()
    for name in ("stray.txt", "buckets/old.bucket", "manifest.json.partial"):
        (store.root / "data" / name).write_bytes(b"x")
    assert Store.open(store.root).verify().problems == ()
    assert not (store.root / "data" / "stray.txt").exists()


def test_the_scanner_finds_planted_residue_in_every_form(tmp_path: Path) -> None:
    opened = small_store(tmp_path / "store")
    opened.add(POOL[:3])
    with opened.reading() as view:
        parts = [part for bucket in view.buckets for part in bucket.encoded_documents()]
    name = POOL[1].id
    gone = [part for part in parts if part.id.hex() == name]
    (keys,) = SmallEncoder().keys([gone[0].tokens.astype(np.uint32)])
    vectors = [keys.tobytes(), keys.astype(np.float16).tobytes()]
    traces = Traces.of(gone, vectors).without(part for part in parts if part.id.hex() != name)
    opened.erase(Selector(document="p1"))
    assert scan([opened.root], traces).hits == ()
    text = POOL[1].text
    planted = {
        "raw": text.encode()[7:60],
        "utf16": text.encode("utf-16-le")[10:90],
        "escaped": ('{"t": "' + text[:50] + '"}').encode(),
        "fp16": keys.astype(np.float16).tobytes()[64:128],
        "fp32": keys.tobytes()[:64],
        "codes": gone[0].codes.tobytes()[200:264],
        "tokens": gone[0].tokens[3:30].astype("<u4").tobytes(),
        "id": bytes.fromhex(name),
        "hex": name.encode(),
        "zstd": zstandard.ZstdCompressor().compress(b"header " + text.encode()),
        "gzip": gzip.compress(text.encode()),
    }
    for kind, data in planted.items():
        place = opened.root / "receipts" / f"planted-{kind}"
        place.write_bytes(b"noise" * 11 + data + b"more noise")
        assert scan([opened.root], traces).hits == (place.name,), kind
        place.unlink()
    print(f"planted forms {len(planted)}, found {len(planted)}, hits without planting 0")

"""A reader that opens the store again and again while somebody writes never takes a change for damage."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from silo.errors import SiloError
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.test_store_histories import POOL
from tests.store.small import small_store

ROUNDS = 2
_READER = """
import sys
from pathlib import Path
from silo.store.store import Store
root, opened = Path(sys.argv[1]), 0
print("ready", flush=True)
while not (root.parent / "stop").exists():
    store = Store.open(root)
    assert list(store.documents())
    store.close()
    opened += 1
print(opened, flush=True)
"""


def _patiently(act: Callable[[], object]) -> None:
    """Do it once nobody else holds the lock: who opens a store that is being written looks whether to finish it."""
    for _ in range(200):
        try:
            act()
        except SiloError as error:
            assert error.code == "busy"
            time.sleep(0.01)
        else:
            return
    raise AssertionError("busy for two seconds")


def _write(store: Store) -> None:
    for _ in range(ROUNDS):
        _patiently(lambda: store.add(POOL[6:]))
        for item in POOL[6:12]:
            _patiently(lambda item=item: store.erase(Selector(document=item.id)))  # type: ignore[misc]
            _patiently(lambda item=item: store.allow(item.id))  # type: ignore[misc]
        _patiently(lambda: store.erase(Selector(domain="d1"), suppress=False))
        _patiently(lambda: store.add(POOL[:6]))


def test_readers_never_take_a_change_for_damage(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    store.add(POOL[:6])
    command = [sys.executable, "-c", _READER, str(store.root)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert reader.stdout
        assert reader.stdout.readline() == "ready\n"
        _write(store)
        (tmp_path / "stop").touch()
        said, complaint = reader.communicate(timeout=60)
    finally:
        reader.kill()
    assert reader.returncode == 0, complaint
    print(f"opened {int(said)} times during {ROUNDS * 15} changes, refused 0")
    assert Store.open(store.root).verify().problems == ()

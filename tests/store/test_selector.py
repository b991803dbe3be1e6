"""Which documents a name means: nobody can choose an id that makes an erasure hit somebody else's document."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import document, small_store

VICTIM = document("diary", "a text that somebody would like to see gone")
TRAP = document(VICTIM.id, "a text under an id that was chosen with care", source="elsewhere")
OTHERS = [document(f"d{n}", f"text {n} of many others. " * 9) for n in range(30)]


@pytest.fixture(params=[400, 100_000], ids=["many buckets", "one bucket"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    made = small_store(tmp_path / "s", bucket_bytes=request.param)
    made.add([VICTIM, TRAP, *OTHERS])
    return made


def _meant(store: Store, name: str) -> list[str]:
    return [item.id for item in store.documents(Selector(document=name))]


def test_a_plain_name_that_means_two_documents_is_refused_with_both_spellings(store: Store) -> None:
    for act in (lambda: _meant(store, VICTIM.id), lambda: store.erase(Selector(document=VICTIM.id))):
        with pytest.raises(SiloError) as caught:
            act()
        assert caught.value.code == "document-ambiguous"
        assert f"id:{VICTIM.id}" in caught.value.hint and f"external:{VICTIM.id}" in caught.value.hint
    assert store.holds(VICTIM.id) and store.holds(TRAP.id)


def test_each_spelling_means_one_name_space(store: Store) -> None:
    assert _meant(store, f"id:{VICTIM.id}") == [VICTIM.id]
    assert _meant(store, f"external:{VICTIM.id}") == [TRAP.id]
    assert _meant(store, f"id:{TRAP.id}") == _meant(store, TRAP.id) == [TRAP.id]
    assert _meant(store, "external:diary") == _meant(store, "diary") == [VICTIM.id]
    assert store.erase(Selector(document=f"id:{VICTIM.id}")).documents == (VICTIM.id,)
    assert _meant(store, VICTIM.id) == [TRAP.id]
    assert _meant(store, f"id:{VICTIM.id}") == []


def test_a_record_whose_own_id_begins_like_a_spelling_can_be_named(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    odd = [document("id:7", "one of them"), document("external:7", "another one")]
    store.add(odd)
    assert _meant(store, "external:id:7") == [odd[0].id]
    assert _meant(store, "external:external:7") == [odd[1].id]
    with pytest.raises(SiloError) as caught:
        Selector(document="id:7")
    assert caught.value.code == "usage" and "external:id:7" in caught.value.hint


def test_replay_takes_out_what_came_back_and_nothing_else(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.add([VICTIM, TRAP])
    shutil.copytree(store.paths.data, tmp_path / "backup")
    store.erase(Selector(document=f"id:{VICTIM.id}"))
    store.close()
    shutil.rmtree(store.paths.data)
    shutil.copytree(tmp_path / "backup", store.paths.data)
    back = Store.open(store.root, restored=True)
    assert [item.documents for item in back.replay()] == [(VICTIM.id,)]
    assert back.holds(TRAP.id) and not back.holds(VICTIM.id)

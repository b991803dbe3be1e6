"""Passages as people read them: where they stand, the best sentence, and documents by their names."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.records import PLACES
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import document, small_store

LEAVE = (
    "# Leave\n\nParental leave is 16 weeks. It may be taken in two parts.\n\n"
    "# Holidays\n\nHolidays are 25 days a year. Zoë says: “Ümlaute” of the café may be carried over until March."
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = small_store(tmp_path_factory.mktemp("excerpts") / "store", passage_tokens=48)
    places = {PLACES: [[0, "section Leave"], [4, "section Holidays"]]}
    made.add(
        [
            document("hr/leave.md", LEAVE, owner="hr", license="MIT", meta=places),
            document("travel", "Travel by train. Flights need the approval of the head of department.", owner="office"),
            document("travel", "The same id in another source, about flights and trains.", source="other"),
        ]
    )
    return made


def test_an_excerpt_says_where_it_stands_and_which_sentence_it_is(store: Store) -> None:
    best = store.excerpts("how long is parental leave", 1)[0]
    assert best.document.external_id == "hr/leave.md"
    assert best.sentence == "Parental leave is 16 weeks."
    assert best.place == "section Leave"
    assert best.text == LEAVE[best.start : best.end]
    assert store.excerpts("carried over until March", 1)[0].place == "section Holidays"
    said = best.as_json()
    assert (said["license"], said["owner"], said["characters"]) == ("MIT", "hr", [best.start, best.end])


def test_places_are_exact_where_a_passage_cuts_a_character(store: Store) -> None:
    found = store.excerpts("Zoë Ümlaute café March holidays leave parts", 10)
    assert len({(item.start, item.end) for item in found}) == len(found) > 2
    assert all(item.text == item.document.text[item.start : item.end] for item in found)
    assert all(item.sentence in item.document.text for item in found)


def test_excerpts_do_not_overlap_and_obey_the_policy(store: Store) -> None:
    found = [item for item in store.excerpts("leave weeks holidays days", 10) if item.document.owner == "hr"]
    spans = sorted((item.start, item.end) for item in found)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    assert not store.excerpts("parental leave", 3, Policy.of(owners=["office"]))
    assert not store.excerpts("zebra", 3)


def test_a_document_is_got_by_either_of_its_ids(store: Store) -> None:
    leave = store.get("hr/leave.md")
    assert (leave.text, store.get(f"id:{leave.id}"), store.get("external:hr/leave.md")) == (LEAVE, leave, leave)
    with pytest.raises(SiloError) as caught:
        store.get("travel")
    assert (caught.value.code, "other, test" in caught.value.message) == ("document-ambiguous", True)
    assert store.get("travel", source="other").source == "other"
    with pytest.raises(SiloError) as caught:
        store.get("hr/Leave.md")
    assert (caught.value.code, caught.value.hint) == ("nothing-selected", "did you mean document 'hr/leave.md'?")


def test_an_erased_document_is_neither_found_nor_got(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.add([document("a", "The lamp in the tower."), document("b", "The lamp in the harbour.")])
    store.erase(Selector(document="a"))
    assert [item.document.external_id for item in store.excerpts("lamp", 5)] == ["b"]
    with pytest.raises(SiloError, match="no document"):
        store.get("a")

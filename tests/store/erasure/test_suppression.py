"""An erased work cannot come back, and the list that keeps it out tells nothing without its key."""

from __future__ import annotations

import errno
import os
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.records import document_id
from silo.store.erasure.suppression import LEAST_LETTERS, Suppression, folded_letters

TEXT = "It was a café, bright and cold; and the clocks were striking thirteen."
OTHER = "A wholly different text that nobody ever asked to have taken away from here."
WORK, COPY, FREE = (document_id("test", name) for name in ("work", "copy", "free"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Suppression.open(tmp_path / "suppression").add([(WORK, TEXT)])
    return tmp_path


def test_an_empty_list_blocks_nothing_and_writes_nothing(tmp_path: Path) -> None:
    empty = Suppression.open(tmp_path / "suppression")
    assert empty.blocks(WORK, TEXT) is None
    assert not empty.lift(WORK)
    empty.add([])
    assert len(empty) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_erased_document_is_blocked_by_id_and_by_text(place: Path) -> None:
    opened = Suppression.open(place / "suppression")
    assert opened.blocks(WORK, OTHER) == "the document was erased"
    assert opened.blocks(COPY, TEXT) == "a document with the same text was erased"
    assert opened.blocks(FREE, OTHER) is None
    assert len(opened) == 1


@pytest.mark.parametrize(
    "edited",
    [
        TEXT.upper(),
        "  " + TEXT.replace(" ", " \r\n\t") + "\n",
        unicodedata.normalize("NFD", TEXT),
        TEXT.replace("é", "e"),
        TEXT.replace(",", "").replace(".", "!!!").replace(" ", " - "),
        "\u201c" + TEXT.replace("-", "\u2014") + "\u201d",
        "\u200b".join(TEXT),
        TEXT.replace("a", "\uff41"),
        "\ufeff# " + TEXT + " ***",
    ],
)
def test_trivial_edits_do_not_slip_through(place: Path, edited: str) -> None:
    assert edited != TEXT
    assert Suppression.open(place / "suppression").blocks(COPY, edited)


def test_other_words_are_another_text(place: Path) -> None:
    opened = Suppression.open(place / "suppression")
    assert opened.blocks(COPY, TEXT.replace("cold", "warm")) is None
    assert opened.blocks(COPY, TEXT + " More.") is None


@given(
    st.text(st.characters(codec="utf-8"), max_size=80),
    st.text(st.sampled_from(" \t\n.,;:-_!?\u00a0\u2014"), max_size=5),
)
def test_folding_ignores_punctuation_space_and_unicode_form(text: str, noise: str) -> None:
    folded = folded_letters(text)
    assert folded_letters(noise + text + noise) == folded
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert folded_letters(unicodedata.normalize(form, text)) == folded


@given(st.text(st.characters(max_codepoint=127), max_size=80))
def test_plain_and_other_text_fold_alike(text: str) -> None:
    assert folded_letters(text) == folded_letters(text + "\u2014") == folded_letters(text.swapcase())
    assert folded_letters(text) == "".join(filter(str.isalnum, text.lower()))


def test_a_text_of_almost_nothing_does_not_block_others(tmp_path: Path) -> None:
    opened = Suppression.open(tmp_path / "suppression")
    opened.add([(WORK, "..."), (COPY, ""), (FREE, "Thank you!")])
    other = document_id("test", "other")
    assert opened.blocks(other, "") is None
    assert opened.blocks(other, "---") is None
    assert opened.blocks(other, "thank you") is None
    assert opened.blocks(other, "Thank  you!") == "a document with the same text was erased"
    assert opened.blocks(COPY, OTHER)
    assert len("thank you") < LEAST_LETTERS


def test_a_re_licensed_document_may_come_back(place: Path) -> None:
    opened = Suppression.open(place / "suppression")
    opened.add([(FREE, OTHER)])
    assert opened.lift(WORK)
    assert not opened.lift(WORK)
    for again in (opened, Suppression.open(place / "suppression")):
        assert again.blocks(WORK, TEXT) is None
        assert again.blocks(COPY, TEXT) is None
        assert again.blocks(FREE, OTHER)


def test_lifting_one_of_two_owners_of_a_text_keeps_it_out(place: Path) -> None:
    opened = Suppression.open(place / "suppression")
    opened.add([(COPY, TEXT)])
    assert opened.lift(WORK)
    assert opened.blocks(WORK, TEXT)
    assert opened.lift(COPY)
    assert opened.blocks(WORK, TEXT) is None


def test_every_text_a_document_had_is_kept_out(place: Path) -> None:
    opened = Suppression.open(place / "suppression")
    opened.add([(WORK, OTHER)])
    opened.add([(WORK, OTHER)])
    assert len(opened) == 1
    for again in (opened, Suppression.open(place / "suppression")):
        assert again.blocks(COPY, TEXT) and again.blocks(COPY, OTHER)


def _let_in(opened: Suppression, document: str, text: str) -> None:
    """Lift a document, and add it."""
    opened.lift(document)
    opened.readmit(document, text)
    opened.save()


def test_a_document_that_may_be_added_again_counts_as_erased_until_it_is(tmp_path: Path) -> None:
    place = tmp_path / "suppression"
    opened = Suppression.open(place)
    opened.note([(WORK, TEXT), (FREE, OTHER)])
    opened.add([(WORK, TEXT)])
    for again in (opened, Suppression.open(place)):
        assert len(again) == 0
        assert again.blocks(WORK, TEXT) is None
        assert again.was_erased(WORK, TEXT) and again.was_erased(FREE, OTHER)
        assert not again.was_erased(WORK, OTHER) and not again.was_erased(COPY, TEXT)
    _let_in(opened, WORK, OTHER)
    assert Suppression.open(place).was_erased(WORK, TEXT), "another text was added under its id"
    _let_in(opened, WORK, TEXT)
    assert not Suppression.open(place).was_erased(WORK, TEXT)
    opened.add([(WORK, TEXT)])
    opened.lift(WORK)
    assert Suppression.open(place).was_erased(WORK, TEXT), "it may be added, and must not come back by itself"


def test_the_bytes_depend_on_the_set_of_documents_alone(place: Path, tmp_path: Path) -> None:
    listed = place / "suppression" / "suppressed.json"
    opened = Suppression.open(place / "suppression")
    opened.add([(FREE, OTHER)])
    both = listed.read_bytes()
    _let_in(opened, WORK, TEXT)
    _let_in(opened, FREE, OTHER)
    opened.add([(FREE, OTHER)])
    opened.add([(COPY, TEXT)])
    _let_in(opened, COPY, TEXT)
    opened.add([(WORK, TEXT)])
    assert listed.read_bytes() == both


def test_the_list_reveals_nothing_without_the_key(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = (place / "suppression" / "suppressed.json").read_bytes().decode()
    assert WORK not in data
    assert not any(TEXT[at : at + 8] in data for at in range(len(TEXT) - 8))
    elsewhere = tmp_path_factory.mktemp("other")
    Suppression.open(elsewhere / "suppression").add([(WORK, TEXT)])
    marks = [
        set(folder.joinpath("suppression/suppressed.json").read_text().split('"')) for folder in (place, elsewhere)
    ]
    assert not {mark for mark in marks[0] & marks[1] if len(mark) == 64}


def test_key_and_folder_are_private(place: Path) -> None:
    key = place / "suppression" / "key"
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    assert key.parent.stat().st_mode & 0o777 == 0o700
    key.chmod(0o640)
    with pytest.raises(SiloError, match="others may read"):
        Suppression.open(place / "suppression")


def damaged(place: Path) -> bool:
    with pytest.raises(SiloError) as caught:
        Suppression.open(place / "suppression")
    return caught.value.code == "store-damaged"


def test_every_changed_byte_of_list_and_key_is_an_error(place: Path) -> None:
    for name in ("suppressed.json", "key"):
        path = place / "suppression" / name
        data = path.read_bytes()
        with path.open("r+b", buffering=0) as stream:
            for at in range(len(data)):
                os.pwrite(stream.fileno(), bytes([data[at] ^ 1]), at)
                assert damaged(place), f"byte {at} of {name}"
                os.pwrite(stream.fileno(), data[at : at + 1], at)
            for size in range(len(data) - 1, -1, -1):
                os.ftruncate(stream.fileno(), size)
                assert damaged(place), f"{size} bytes of {name}"
            os.pwrite(stream.fileno(), data, 0)
    assert Suppression.open(place / "suppression").blocks(WORK, TEXT)


@pytest.mark.parametrize("name", ["suppressed.json", "key"])
def test_a_missing_file_is_an_error_and_not_an_empty_list(place: Path, name: str) -> None:
    (place / "suppression" / name).unlink()
    assert damaged(place)


def test_the_list_of_another_key_is_an_error(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("other")
    Suppression.open(elsewhere / "suppression").add([(FREE, OTHER)])
    shutil.copy(elsewhere / "suppression" / "key", place / "suppression" / "key")
    assert damaged(place)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failure_at_any_call_leaves_the_old_list_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    owner = Path if call == "rename" else os
    real = getattr(owner, call)
    for number in range(1, 20):
        place = tmp_path / str(number)
        place.mkdir()
        calls = 0

        def failing(*arguments: object, at: int = number) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.EIO, "failed")
            return real(*arguments)

        opened = Suppression.open(place / "suppression")
        monkeypatch.setattr(owner, call, failing)
        try:
            opened.add([(WORK, TEXT)])
        except SiloError:
            monkeypatch.undo()
            held = len(Suppression.open(place / "suppression"))
            assert held in (0, 1)
            Suppression.open(place / "suppression").add([(WORK, TEXT)])
            assert Suppression.open(place / "suppression").blocks(COPY, TEXT)
        else:
            monkeypatch.undo()
            assert calls < number
            return
    pytest.fail("the failing call was never passed")

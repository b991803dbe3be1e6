"""`silo ask` and `silo chat`: what they print, and with which status they end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.store.selector import Selector
from tests.inference.ask.world import NOTES, note_store, speaker

PAINTED = "The boat was painted in 1987 by Anna Berg."
BOAT = "When was the boat painted?"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ask")
    note_store(root / "store", speaker(root, PAINTED)).close()
    return root


def ask(place: Path, *arguments: str) -> int:
    return main(["ask", str(place / "store"), *arguments])


def test_json_has_the_fields_that_stay(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place, BOAT, "--json") == 0
    reply: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (reply["text"], reply["found"]) == (PAINTED, True)
    assert 0 < reply["shares"]["boat.md"] < 1
    (citation,) = reply["citations"]
    assert (citation["document"], citation["place"], citation["licence"]) == ("boat.md", "", "NOASSERTION")
    assert NOTES["boat.md"][citation["start"] : citation["end"]] == citation["quote"] == PAINTED


def test_people_read_the_answer_its_source_and_the_shares(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place, BOAT, "--ledger") == 0
    answer, _, source, shares = capsys.readouterr().out.splitlines()
    assert answer == PAINTED
    assert source == f'boat.md: "{PAINTED}" (NOASSERTION)'
    assert shares.startswith("shares: language model ") and "boat.md" in shares
    assert ask(place, "What protects the lettuce from slugs?") == 0
    shown = capsys.readouterr().out
    assert "garden.md" in shown and "CC-BY-4.0" in shown and "- CC-BY-4.0: name A. Writer" in shown


def test_not_in_the_store_has_a_status_of_its_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place, "Who painted the Mona Lisa?") == 12
    assert capsys.readouterr().out == "Not in the store.\n"


def test_a_question_may_come_from_standard_input(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BOAT.encode())))
    assert ask(place, "-", "--quiet") == 0
    assert PAINTED in capsys.readouterr().out


def test_what_cannot_be_asked_says_why(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "input-missing": [str(place / "store"), BOAT, "--model", str(tmp_path)],
        "not-a-store": [str(tmp_path), BOAT],
        "usage": [str(place / "store"), BOAT, "--max-tokens", "0"],
        "policy-invalid": [str(place / "store"), BOAT, "--policy", "owner"],
    }
    for code, arguments in cases.items():
        assert main(["ask", *arguments]) in (2, 3, 5)
        assert f"[{code}]" in capsys.readouterr().err or code == "input-missing"


def chat(place: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    return main(["chat", str(place / "store"), *options])


def test_a_chat_answers_line_by_line(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["/sources", BOAT, "", "/sources", "/what", "And who did it?", "Who sells rope?", "/quit", "never asked"]
    assert chat(place, lines, monkeypatch) == 0
    shown = capsys.readouterr()
    assert shown.out.count(PAINTED) >= 3, "an answer, its source, and the answer to the question that leans on it"
    assert "characters" in shown.out and "never asked" not in shown.out
    assert shown.out.rstrip().endswith("Not in the store.")
    assert "no answer yet" in shown.err and "/quit to leave" in shown.err


def test_a_chat_can_speak_json_and_ends_with_its_input(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(place, [BOAT], monkeypatch, "--json") == 0
    assert json.loads(capsys.readouterr().out)["text"] == PAINTED


def test_hostile_names_and_quotes_command_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "The boat was painted\x1b[2J red in 1987."
    store = note_store(tmp_path / "store", speaker(tmp_path, texts=[text]), {"a\x1b]0;x\x07.md": text})
    assert ask(tmp_path, BOAT) == 0
    assert "\x1b" not in capsys.readouterr().out
    store.erase(Selector(owner="A. Writer"))
    assert ask(tmp_path, BOAT) == 12

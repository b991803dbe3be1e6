"""Data cannot command the terminal: names, messages and text are shown with their control characters made visible."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main, show
from tests.conftest import record, write_jsonl
from tests.inference.world import make_model

EVIL = "\x1b[2J\x1b]8;;http://evil\x07\x9b31m\x7f\u202e\u2066\u200b\u2028\u2029\x85\ufeff\U000e0041\x08\r[red]:skull:"
FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)
TEXT = f"The quick brown fox {EVIL} jumps over the lazy dog. The quick brown fox {EVIL} sleeps."


def hostile(name: str, text: str = TEXT, **fields: str) -> dict[str, Any]:
    """A record with control characters in every field."""
    named = {name: f"{name}{EVIL}" for name in ("owner", "source", "domain", "url", "title", "author")}
    return record(f"{name}{EVIL}\nfaked: line", text, **{**named, "license": f"CC-BY-4.0 {EVIL}", **fields})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `my-model` and files of hostile records."""
    root = tmp_path_factory.mktemp("hostile")
    make_model(root).rename(root / "my-model")
    write_jsonl(root / "in.jsonl", [hostile("a"), hostile("b", TEXT * 2, license="CC-BY-4.0"), hostile("c", "")])
    with (root / "in.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"id": "\\u001b[2J", "text": 1}\n')
    write_jsonl(root / "against.jsonl", [hostile("d")])
    write_jsonl(root / "validation.jsonl", [record("v", "The quick brown fox sleeps over the lazy dog.")])
    (root / "folder").mkdir()
    (root / "folder" / "x\x1b[2J\u202e.txt").write_text(TEXT, encoding="utf-8")
    (root / "folder" / "y\x1b[2J\u202e.txt").write_bytes(b"\xff\x00")
    return root


@pytest.fixture
def shown(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(place)

    def call(*arguments: str, status: int = 0) -> str:
        found = main(list(arguments))
        out, err = capsys.readouterr()
        assert found == status, err
        assert not FORBIDDEN.findall(out + err), arguments
        return out + err

    return call


def test_no_command_prints_a_control_character_of_the_data(shown: Any, place: Path) -> None:
    predict = ("--model", "my-model", "--store", "s", "--method", "knn+ngram", "--lambda", "0.9")
    shown("corpus", "build", "--jsonl", "in.jsonl", "--out", "c")
    shown("corpus", "stats", "c")
    shown("corpus", "overlap", "c", "--against", "against.jsonl")
    shown("store", "create", "s", "--model", "my-model")
    assert "not added" in shown("store", "add", "s", "--jsonl", "in.jsonl")
    listed = shown("store", "list", "s")
    assert "\\x1b" in listed
    shown("store", "stats", "s")
    written = shown("generate", "The quick brown fox", *predict, "--neighbours", "2", "--ledger", "--max-tokens", "60")
    assert "\\x1b" in written
    shown("generate", f"The {EVIL}", *predict, "--method", "ngram+ric", "--max-tokens", "30")
    shown("score", *predict, "--jsonl", "validation.jsonl")
    shown("store", "tune", "s", "--model", "my-model", "--jsonl", "validation.jsonl", "--save", "mine")
    assert "\\x1b" in shown("credits", "s")
    shown("store", "erase", "s", "--owner", f"owner{EVIL}", "--dry-run")
    shown("store", "verify", "s")
    shown("store", "erase", "s", "--owner", f"owner{EVIL}", "--copies")
    receipts = map(str, (place / "s" / "receipts").glob("*.json"))
    shown("receipt", "verify", *receipts, "--key", str(place / "s" / "keys" / "receipts.pem.pub"))
    shown("quickstart", "folder", "--model", "my-model", "--max-tokens", "20")


def test_errors_show_what_they_quote(shown: Any) -> None:
    for arguments, status in (
        (("store", "list", f"nowhere{EVIL}"), 3),
        (("score", "--model", "my-model", "--policy", f'owner == "{EVIL}" and', "--jsonl", "validation.jsonl"), 2),
        (("generate", "x", "--model", "my-model", "--method", EVIL), 2),
        (("nonsense" + EVIL,), 2),
    ):
        assert "error: " in shown(*arguments, status=status)
        assert shown(*arguments, "--debug", status=status)


def test_json_is_exact_and_still_commands_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show.print_json({"text": EVIL + "\n\u00e9\ud800"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": EVIL + "\n\u00e9\ud800"}
    assert not FORBIDDEN.findall(out) and "\u00e9" in out


def test_text_keeps_its_lines() -> None:
    assert show.visible("a\tb\nc\r", keep="\n\t") == "a\tb\nc\\x0d"
    assert show.visible("plain \u00e9 \u0645 \U0001f98a") == "plain \u00e9 \u0645 \U0001f98a"


def test_a_terminal_gets_colours_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.chdir(place)
    assert main(["generate", f"The {EVIL}", "--model", "my-model", "--max-tokens", "8"]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert not FORBIDDEN.findall(out)

"""Names that mean nothing are said to mean nothing, with names that are near, and status 3 where nothing was done."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from silo.cli import main, show
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.usage import Share, Usage, append_usage
from tests.conftest import build_from, record, words, write_jsonl
from tests.store.small import document, small_store

CORP = document("report", "A report of the corporation about its winter.", owner="Corp", license="MIT")
ANN = document("diary", "A diary of somebody about the summer.", owner="Ann")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = small_store(tmp_path_factory.mktemp("matched") / "store")
    store.add([CORP, ANN])
    shares = {CORP.id: Share("Corp", "MIT", 1.0)}
    append_usage(store.paths, Usage(datetime(2026, 1, 5, tzinfo=UTC), 10, shares), held=store.held)
    store.close()
    return str(store.root)


@pytest.mark.parametrize(
    ("command", "said", "hint"),
    [
        ("store list STORE --owner corp", "no document of STORE has owner 'corp'", "did you mean owner 'Corp'?"),
        ("store list STORE --document diry", "has document 'diry'", "did you mean document 'diary'?"),
        ("store list STORE --query zebra", "has query 'zebra'", "`silo store list` shows what is there"),
        ("store erase STORE --owner corp", "has owner 'corp'", "did you mean owner 'Corp'?"),
        ("store erase STORE --license mit --dry-run", "has license 'mit'", "did you mean license 'MIT'?"),
        ("store allow STORE --document nothing", "nothing is not kept out of STORE", "needs its --source"),
        ("credits STORE --owner corp", "names the owner 'corp'", "did you mean Corp?"),
    ],
)
def test_a_name_that_means_nothing_is_no_success(
    path: str, command: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path if word == "STORE" else word for word in command.split()]) == 3
    shown = capsys.readouterr()
    first, second = shown.err.splitlines()
    assert said.replace("STORE", path) in first and first.endswith("[nothing-selected]")
    assert hint in second
    assert shown.out == ""


def test_scripts_still_get_an_empty_list(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "list", path, "--owner", "corp", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == []
    assert main(["credits", path, "--owner", "corp", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["owners"] == []


def test_an_owner_without_a_share_has_an_empty_statement(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--owner", "Ann"], ["--owner", "Corp", "--from", "2026-02-01"]):
        assert main(["credits", path, *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["owners"] == []


def test_values_of_a_policy_that_no_document_has_are_named(path: str) -> None:
    store = Store.open(Path(path))
    with store.reading() as view:

        def unknown(text: str) -> list[str]:
            return Policy.parse(text).unknown_names(view.buckets)

        assert unknown('owner != "corp"') == ["no document has the owner 'corp' of the policy: did you mean Corp?"]
        assert unknown('not (license in ["mit", "ISC"])') == ["no document has the license 'ISC' of the policy"]
        assert unknown('tier <= "by" and owner == "Corp" and source not in []') == []
    store.close()


def test_corpus_verbs_name_what_they_do_not_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_from([write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 40))])], tmp_path / "corpus")
    corpus = str(tmp_path / "corpus")
    for command, status, hint in (
        (["stats", f"{corpus[:-1]}"], 3, "did you mean corpus?"),
        (["stats", corpus, "--reference", "pil"], 3, "did you mean pile?"),
        (
            ["overlap", corpus, "--against", str(tmp_path / "in.jsonl"), "--tiers", "pd,restrict"],
            2,
            "did you mean restricted?",
        ),
        (["overlap", corpus, "--against", str(tmp_path / "in.jsonl"), "--tiers", "by"], 3, "check the paths"),
        (["overlap", corpus, "--against", str(tmp_path / "in.json")], 3, "did you mean in.jsonl?"),
        (["build", str(tmp_path / "corpus.tml"), "--out", str(tmp_path / "new")], 2, "give the path of a recipe"),
    ):
        assert main(["corpus", *command]) == status
        assert hint in capsys.readouterr().err


def test_lists_and_statements_as_csv(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "list", path, "--csv", str(tmp_path / "documents.csv")]) == 0
    header, *rows = csv.reader((tmp_path / "documents.csv").read_text(encoding="utf-8").splitlines())
    assert header[:4] == ["id", "external_id", "source", "owner"]
    assert {(row[1], row[3]) for row in rows} == {("report", "Corp"), ("diary", "Ann")}
    assert capsys.readouterr().out == ""
    assert main(["credits", path, "--csv", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["owner,requests,documents,tokens,share", "Corp,1,1,1.0,0.1"]
    assert main(["store", "list", path, "--csv", str(tmp_path / "none" / "x.csv")]) == 3
    assert main(["store", "list", path, "--owner", "corp", "--csv", "-"]) == 3
    assert capsys.readouterr().out.count("\n") == 1, "the header alone"


def test_a_spreadsheet_computes_nothing_of_a_name(tmp_path: Path) -> None:
    show.write_csv(str(tmp_path / "x.csv"), ("name", "n"), [["=1+1", -2], ["a\x1b[31m,\n", 3.5]])
    assert (tmp_path / "x.csv").read_text() == 'name,n\n\'=1+1,-2\n"a\\x1b[31m,\\x0a",3.5\n'

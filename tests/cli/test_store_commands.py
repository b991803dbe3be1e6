"""The store's commands as a script sees them: from an empty store to a receipt that can be checked offline."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from silo.cli import main
from silo.files import file_sha256
from silo.pairing import open_store
from silo.records import document_id, place_at
from silo.store.selector import Selector
from tests.conftest import record, words, write_jsonl
from tests.sources.document_files import notebook
from tests.store.small import document, small_store, tree


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a codec, trained on permitted text."""
    place = tmp_path_factory.mktemp("model")
    train = [record(f"t{number}", words(number, 60), license="CC0-1.0") for number in range(8)]
    write_jsonl(place / "train.jsonl", train)
    assert main(["corpus", "build", "--jsonl", str(place / "train.jsonl"), "--out", str(place / "c"), "--quiet"]) == 0
    (place / "lm.toml").write_text(
        'corpus = "c"\ntiers = ["pd"]\nvocabulary = 300\ncontext = 64\nmax_tokens = 512\nbatch_tokens = 128\n'
    )
    assert main(["lm", "train", str(place / "lm.toml"), "--out", str(place / "lm"), "--quiet", "--json"]) == 0
    codec = ["lm", "codec", str(place / "lm"), "--corpus", str(place / "c"), "--lists", "8", "--bytes", "8"]
    assert main([*codec, "--keys", "1000", "--quiet"]) == 0
    return place / "lm"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str, status: int = 0) -> Any:
        assert main([*arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    kept = [record(f"k{n}", words(500 + n, 50), license="", owner="keeper", domain="mail") for n in range(6)]
    gone = [record(f"g{n}", words(700 + n, 50), license="", owner="goer", domain="books") for n in range(3)]
    return {
        "all": write_jsonl(tmp_path / "all.jsonl", [*kept, *gone]),
        "kept": write_jsonl(tmp_path / "kept.jsonl", kept),
    }


def test_a_store_from_creation_to_receipt(model: Path, files: dict[str, Path], tmp_path: Path, run: Any) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert run("store", "create", one, "--model", str(model))["searches"] == "knn, ngram, bm25"
    added = run("store", "add", one, "--jsonl", str(files["all"]))
    assert (added["read"], added["added"], added["rejected"]) == (9, 9, 0)
    assert run("store", "add", one, "--jsonl", str(files["all"]))["unchanged"] == 9
    assert len(run("store", "list", one, "--owner", "goer")) == 3
    assert run("store", "stats", one)["documents"] == 9
    listed = run("store", "erase", one, "--owner", "goer", "--dry-run")
    assert len(listed["documents"]) == 3
    assert run("store", "stats", one)["documents"] == 9
    erased = run("store", "erase", one, "--document", "g1", "--salts", str(tmp_path / "salts.json"))
    assert erased["documents"] == [document_id("test", "g1")]
    assert erased["accepted_ms"] < erased["done_ms"]
    salts = json.loads((tmp_path / "salts.json").read_text())
    proof = [
        "receipt",
        "verify",
        erased["receipt"],
        "--key",
        f"{one}/keys/receipts.pem.pub",
        "--log",
        f"{one}/log.jsonl",
    ]
    assert run(*proof)["valid"]
    ((name, salt),) = salts.items()
    assert run(*proof, "--document", name, "--salt", salt)["valid"]
    content = json.loads(Path(erased["receipt"]).read_text())
    assert [(item["name"], item["listed"]) for item in content["models"]] == [("lm", False)]
    run("store", "erase", one, "--owner", "goer")
    run("store", "create", other, "--model", str(model))
    run("store", "add", other, "--jsonl", str(files["kept"]))
    assert tree(Path(one) / "data") == tree(Path(other) / "data")
    assert run("store", "digest", one) == run("store", "digest", other)
    assert run("store", "verify", one, "--keys")["problems"] == []
    again = run("store", "add", one, "--jsonl", str(files["all"]))
    assert (again["rejected"], again["reasons"]) == (3, {"suppressed": 3})
    assert run("store", "allow", one, "--document", name)["was_kept_out"] is True
    assert run("store", "compact", one)["freed_bytes"] == 0


def test_stdin_folders_and_bad_lines(model: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    run("store", "create", path, "--model", str(model), "--search", "ngram,bm25")
    lines = json.dumps(record("a", words(1, 30))) + "\nnot json\n" + json.dumps(record("b", words(2, 30))) + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    added = run("store", "add", path, "--jsonl", "-")
    assert (added["read"], added["added"], added["quarantined"]) == (3, 2, 1)
    assert added["read"] == added["added"] + added["unchanged"] + added["rejected"] + added["quarantined"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("A note about the harbour and its ships.")
    assert run("store", "add", path, "--folder", str(tmp_path / "notes"), "--owner", "me")["added"] == 1
    assert len(run("store", "list", path, "--query", "the  HARBOUR")) == 1
    assert run("store", "erase", path, "--owner", "nobody", status=3)["error"]["code"] == "nothing-selected"


def test_a_folder_of_documents_comes_in_with_its_places_and_leaves_without_a_trace(
    model: Path, tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    kept, every = tmp_path / "kept" / "docs", tmp_path / "every" / "docs"
    leave = notebook({"source": "# Leave"}, {"source": "Sixteen weeks of leave for every parent."})
    for folder in (kept, every):
        folder.mkdir(parents=True)
        (folder / "leave.ipynb").write_bytes(leave)
        for name in ("a.xyz", "b.xyz"):
            (folder / name).write_text("x")
    (every / "pay.csv").write_text("name,days\nAnn,16\nBob,17\n")
    (every / "bad.docx").write_bytes(b"no")
    for store in (one, other):
        run("store", "create", store, "--model", str(model), "--search", "ngram,bm25")
    added = run("store", "add", one, "--folder", str(every))
    assert (added["added"], added["quarantined"], added["skipped"], added["derived_ids"]) == (2, 1, 2, 0)
    assert added["skipped_files"] == [{"ending": ".xyz", "reason": "kind-unknown", "why": "unknown kind", "files": 2}]
    assert main(["store", "add", other, "--folder", str(kept)]) == 0
    assert "skipped 2 files: 2 .xyz (unknown kind)" in capsys.readouterr().err
    opened = open_store(Path(one))
    (stored,) = opened.documents(Selector(document="external:leave.ipynb"))
    opened.close()
    assert place_at(stored, stored.text.index("weeks")) == "cell 2"
    run("store", "erase", one, "--document", "external:pay.csv")
    assert tree(Path(one) / "data") == tree(Path(other) / "data")
    table = tmp_path / "table.jsonl"
    parquet.write_table(pa.table({"text": [words(5, 30)]}), table)
    assert run("store", "add", one, "--jsonl", str(table))["derived_ids"] == 1
    assert run("store", "list", one, "--source", "table")[0]["external_id"] == "table.jsonl:row 1"
    assert main(["store", "add", one, "--jsonl", str(table)]) == 0
    assert "1 record has no id" in capsys.readouterr().err


def test_evaluation_text_stays_out_of_a_store(
    model: Path, files: dict[str, Path], tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "test.jsonl.gz"
    whole.write_bytes(gzip.compress(json.dumps(record("e", words(700, 50))).encode()))
    quoted = tmp_path / "valid.txt"
    quoted.write_text(f"{words(91, 200)} {' '.join(words(501, 50).split()[:20])}")
    store, clean = str(tmp_path / "store"), str(tmp_path / "clean")
    for place in (store, clean):
        run("store", "create", place, "--model", str(model), "--search", "ngram")
    add = ["store", "add", store, "--jsonl", str(files["all"]), "--decontaminate", str(whole), str(quoted)]
    report = tmp_path / "report.jsonl"
    added = run(*add, "--rejected", str(report))
    assert (added["read"], added["added"], added["rejected"], added["decontaminated"]) == (9, 8, 1, 1)
    assert added["reasons"] == {"contaminated": 1}
    (left_out,) = map(json.loads, report.read_text().splitlines())
    assert (left_out["external_id"], left_out["reason"]) == ("g0", "contaminated")
    assert "test.jsonl.gz#e" in left_out["detail"]
    assert left_out == added["rejected_documents"][0]

    assert not (tmp_path / "store" / "log.jsonl").read_text().count("test.jsonl")
    lines = map(json.loads, (tmp_path / "store" / "log.jsonl").read_text().splitlines())
    entry = next(line for line in lines if line["kind"] == "added")
    assert entry["decontaminated"]["threshold"] == "0.5"
    assert entry["decontaminated"]["files"] == sorted(map(file_sha256, (whole, quoted)))
    gone = write_jsonl(
        tmp_path / "clean.jsonl",
        [json.loads(line) for line in files["all"].read_text().splitlines() if '"g0"' not in line],
    )
    run("store", "add", clean, "--jsonl", str(gone))
    assert tree(tmp_path / "store" / "data") == tree(tmp_path / "clean" / "data")

    strict = run(*add, "--decontaminate-rule", "strict")
    assert strict["reasons"] == {"contaminated": 1, "contaminated-stored": 1}
    assert (strict["decontaminated"], strict["unchanged"]) == (1, 7)
    assert main([*add, "--quiet"]) == 0
    assert "decontaminated" in capsys.readouterr().out
    assert main([*add, "--rejected", str(tmp_path / "none" / "x")]) == 3


def test_notes_that_are_mostly_masked_stay_out(model: Path, tmp_path: Path, run: Any) -> None:
    masked = record("m", "[**Name**] [**Hospital 2**] seen on [**2020-1-1**]", license="")
    half = record("h", "[**Name**] [**Hospital**] was here", license="")
    notes = write_jsonl(tmp_path / "notes.jsonl", [masked, half])
    store = str(tmp_path / "store")
    run("store", "create", store, "--model", str(model), "--search", "ngram")
    added = run("store", "add", store, "--jsonl", str(notes))
    assert (added["read"], added["added"], added["rejected"], added["masked"]) == (2, 1, 1, 1)
    assert [(item["external_id"], item["reason"]) for item in added["rejected_documents"]] == [("m", "mostly-masked")]


def test_errors_of_the_store_have_their_own_status(model: Path, tmp_path: Path, run: Any) -> None:
    assert run("store", "stats", str(tmp_path), status=3)["error"]["code"] == "not-a-store"
    path = str(tmp_path / "s")
    run("store", "create", path, "--model", str(model))
    assert run("store", "create", path, "--model", str(model), status=2)["error"]["code"] == "out-exists"
    assert run("store", "erase", path, status=2)["error"]["code"] == "usage"
    assert run("store", "create", str(tmp_path / "t"), "--model", str(model), "--search", "magic", status=2)
    assert run("store", "add", path, status=2)["error"]["code"] == "usage"
    manifest = Path(path) / "data" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"knn", b"kNN"))
    assert run("store", "stats", path, status=4)["error"]["code"] == "store-damaged"


def test_people_are_told_what_did_not_happen(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, lines = str(tmp_path / "s"), tmp_path / "bad.jsonl"
    lines.write_text("{no json\n" * 7)
    assert main(["store", "create", store, "--model", str(model)]) == 0
    assert main(["store", "add", store, "--jsonl", str(lines)]) == 3
    told = capsys.readouterr().err
    assert "error: nothing of 7 records can be read; bad.jsonl:line 1: " in told
    assert told.count("not added: ") == 6
    assert "2 more" in told
    assert main(["store", "erase", store, "--document", "mistyped"]) == 3
    assert "no document of" in capsys.readouterr().err
    assert main(["generate", "x", "--model", str(model), "--store", store, "--max-tokens", "2"]) == 0
    assert "no documents" in capsys.readouterr().err


def test_nothing_is_not_added(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, lines = str(tmp_path / "s"), tmp_path / "empty.jsonl"
    lines.write_bytes(b"")
    assert main(["store", "create", store, "--model", str(model)]) == 0
    for options in (("--jsonl", str(lines)), ("--jsonl", "-"), ("--jsonl", str(lines), "--update")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
        assert main(["store", "add", store, *options]) == 3
        assert "the sources hold no record at all [input-empty]" in capsys.readouterr().err


def test_a_folder_without_text_leaves_no_store(model: Path, tmp_path: Path, run: Any) -> None:
    (tmp_path / "mine").mkdir()
    assert run("quickstart", str(tmp_path / "mine"), "--model", str(model), status=3)["error"]["code"] == "input-empty"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_recipe_masks_and_limits_what_a_store_gets(model: Path, tmp_path: Path, run: Any) -> None:
    records = [record("a", "Write to ada@example.org, please. " * 3), record("b", words(900, 400))]
    write_jsonl(tmp_path / "notes[1].jsonl", records)
    source = '[[source]]\nkind = "jsonl"\npaths = ["notes*.jsonl"]\n'
    (tmp_path / "recipe.toml").write_text(f'{source}[limits]\nmax_record_bytes = 1200\n[pii]\nmask = ["email"]\n')
    for name in ("masked", "plain"):
        run("store", "create", str(tmp_path / name), "--model", str(model), "--search", "ngram")
    added = run("store", "add", str(tmp_path / "masked"), str(tmp_path / "recipe.toml"))
    assert (added["added"], added["quarantined"]) == (1, 1)
    assert run("store", "list", str(tmp_path / "masked"), "--query", "ada@example.org", status=3) == []
    plain = run("store", "add", str(tmp_path / "plain"), "--jsonl", str(tmp_path / "notes[1].jsonl"))
    assert plain["added"] == 2, "a name on the command line is no pattern"
    assert len(run("store", "list", str(tmp_path / "plain"), "--query", "ada@example.org")) == 1


def test_replayed_erasures_hand_out_their_salts(model: Path, files: dict[str, Path], tmp_path: Path, run: Any) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    run("store", "create", str(store), "--model", str(model), "--search", "ngram")
    run("store", "add", str(store), "--jsonl", str(files["all"]))
    shutil.copytree(store / "data", backup)
    first = run("store", "erase", str(store), "--document", "g1")
    shutil.rmtree(store / "data")
    shutil.copytree(backup, store / "data")
    refused = run("store", "list", str(store), status=4)["error"]
    assert (refused["code"], "silo store replay" in refused["hint"]) == ("store-damaged", True)
    again = run("store", "replay", str(store), "--salts", str(tmp_path / "salts.json"))
    (name,) = again["documents"]
    assert again["salts"] == json.loads((tmp_path / "salts.json").read_text()) == {name: again["salts"][name]}
    key = ["--key", str(store / "keys" / "receipts.pem.pub")]
    proof = ["receipt", "verify", again["receipts"][0], "--document", name, "--salt", again["salts"][name], *key]
    assert run(*proof)["document_proven"]
    assert main(["receipt", "verify", first["receipt"], *again["receipts"], *key, "--json"]) == 0


def test_backup_and_restore_from_the_command_line(tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    made = small_store(tmp_path / "store")
    made.add([document(f"d{n}", f"some words of document {n}") for n in range(3)])
    whole = made.digest()
    made.close()
    store, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    done = run("store", "backup", store, copy)
    assert done == {"backup": copy, "documents": 3, "bytes": done["bytes"], "digest": whole, "noted": True}
    assert run("store", "backup", store, copy, status=2)["error"]["code"] == "out-exists"
    run("store", "erase", store, "--document", "d1")
    digest = run("store", "digest", store)
    assert run("store", "restore", copy, store, status=2)["error"]["code"] == "out-exists"
    (tmp_path / "store" / "data" / "manifest.json").unlink()
    back = run("store", "restore", copy, store, "--salts", str(tmp_path / "salts.json"))
    assert (back["held"], back["evidence"], back["digest"]) == (2, "store", digest["digest"])
    assert back["salts"] == json.loads((tmp_path / "salts.json").read_text())
    assert [*back["salts"]] == back["documents"] != []
    assert Path(back["receipts"][0]).is_file()
    assert run("store", "verify", store)["problems"] == []
    assert main(["store", "restore", copy, str(tmp_path / "lost"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["evidence"] == "backup"
    assert "not known here" in said.err


def test_anchors_find_an_older_copy_of_a_store(model: Path, files: dict[str, Path], tmp_path: Path, run: Any) -> None:
    store, copy, anchors = tmp_path / "store", tmp_path / "copy", tmp_path / "anchors.txt"
    run("store", "create", str(store), "--model", str(model), "--search", "ngram")
    first = run("store", "anchor", str(store))["anchor"]
    shutil.copytree(store, copy)
    run("store", "add", str(store), "--jsonl", str(files["all"]))
    anchors.write_text(first + "\n" + run("store", "anchor", str(store))["anchor"] + "\n")
    assert run("store", "verify", str(store), "--anchor", str(anchors))["problems"] == []
    assert run("store", "verify", str(copy), "--anchor", first)["problems"] == []
    (problem,) = run("store", "verify", str(copy), "--anchor", str(anchors), status=4)["problems"]
    assert "older copy" in problem
    assert run("store", "verify", str(copy), "--anchor", "no-such", status=3)["error"]["code"] == "input-missing"


def test_an_erasure_whose_checks_failed_says_so(
    tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.store.erasure.erase.DRAIN_SECONDS", 0.1)
    store = small_store(tmp_path / "s")
    store.add([document(f"d{n}", f"some words of document {n}") for n in range(3)])
    with store.reading():
        erased = run("store", "erase", str(tmp_path / "s"), "--document", "d1", status=4)
        assert (erased["failed_checks"], erased["not_checked"]) == (["readers-drained"], [])
        assert main(["store", "erase", str(tmp_path / "s"), "--document", "d2"]) == 4
        assert "failed: readers-drained [check-failed]" in capsys.readouterr().err
    store.close()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": 5}', '"x"', "{" * 9, "\udcff", "[" * 100_000])
def test_a_damaged_store_json_is_told(tmp_path: Path, run: Any, content: str) -> None:
    small_store(tmp_path / "s").close()
    (tmp_path / "s" / "store.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert run("store", "digest", str(tmp_path / "s"), status=4)["error"]["code"] == "store-damaged"
    (tmp_path / "s" / "store.json").unlink()
    assert run("store", "digest", str(tmp_path / "s"))["digest"]


def test_nothing_matched_is_an_error_that_offers_the_nearest_names(
    model: Path, files: dict[str, Path], tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "s")
    run("store", "create", path, "--model", str(model))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "harbour.txt").write_text("A note about the harbour and its ships.")
    run("store", "add", path, "--folder", str(tmp_path / "notes"), "--owner", "Corp")
    for command in (["erase"], ["erase", "--dry-run"]):
        error = run("store", command[0], path, *command[1:], "--owner", "corp", status=3)["error"]
        assert error["code"] == "nothing-selected"
        assert error["hint"] == "did you mean owner 'Corp'?"
    capsys.readouterr()
    assert run("store", "list", path, "--owner", "corp", status=3) == []
    near = run("store", "erase", path, "--document", "harbor.txt", status=3)["error"]["hint"]
    assert near == "did you mean document 'harbour.txt'?"
    assert "silo store list" in run("store", "erase", path, "--owner", "zzz", status=3)["error"]["hint"]


def test_allow_takes_the_id_of_the_record(model: Path, tmp_path: Path, run: Any) -> None:
    path = str(tmp_path / "s")
    run("store", "create", path, "--model", str(model))
    (tmp_path / "notes").mkdir()
    for name in ("one", "two"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"A note about the {name} harbour and its many ships.")
    run("store", "add", path, "--folder", str(tmp_path / "notes"))
    run("store", "erase", path, "--document", "one.txt")
    assert run("store", "add", path, "--folder", str(tmp_path / "notes"))["added"] == 0
    assert run("store", "allow", path, "--document", "three.txt", status=3)["error"]["code"] == "nothing-selected"
    assert run("store", "allow", path, "--document", "one.txt")["was_kept_out"] is True
    assert run("store", "add", path, "--folder", str(tmp_path / "notes"))["added"] == 1


@pytest.fixture
def notes(model: Path, tmp_path: Path, run: Any) -> str:
    """A store that holds a folder of three notes."""
    (tmp_path / "notes").mkdir()
    for name in ("harbour", "tower", "bridge"):
        text = f"The {name} was built by hand. It took the town {len(name)} years. Nobody was paid for it."
        (tmp_path / "notes" / f"{name}.txt").write_text(text)
    store = str(tmp_path / "store")
    run("store", "create", store, "--model", str(model), "--search", "ngram,bm25")
    run("store", "add", store, "--folder", str(tmp_path / "notes"), "--owner", "town")
    return store


def test_a_changed_document_is_replaced_on_request(
    notes: str, tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["store", "add", notes, "--folder", str(tmp_path / "notes"), "--owner", "town"]
    (tmp_path / "notes" / "tower.txt").write_text("The tower fell down last year.")
    assert main(add) == 0
    told = capsys.readouterr().err
    assert "changed and left as it was: 1; --update replaces" in told
    assert "tower.txt (other-record: stored under this id with another text: --update replaces it)" in told
    done = run(*add, "--update", "--salts", str(tmp_path / "salts.json"))
    assert (done["replaced"], done["unchanged"], done["rejected"], done["failed_checks"]) == (1, 2, 0, [])
    assert done["salts"] == json.loads((tmp_path / "salts.json").read_text())
    key = ["--key", f"{notes}/keys/receipts.pem.pub", "--log", f"{notes}/log.jsonl"]
    proof = run("receipt", "verify", done["receipt"], *key)
    assert (proof["valid"], proof["kind"], proof["replaced"], proof["failed_checks"]) == (True, "replacement", 1, [])
    assert main(["receipt", "verify", done["receipt"], *key]) == 0
    assert "replaced" in capsys.readouterr().out
    assert run(*add, "--update")["unchanged"] == 3
    assert run(*add, "--update", "--salts", str(tmp_path / "none" / "x"), status=3)["error"]["code"] == "input-missing"


def test_a_store_follows_a_folder(
    notes: str, model: Path, tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "notes"
    sync = ["store", "sync", notes, "--folder", str(folder), "--owner", "town"]
    (folder / "tower.txt").write_text("The tower fell down last year.")
    (folder / "bridge.txt").unlink()
    (folder / "mill.txt").write_text("The mill is new.")
    digest = run("store", "digest", notes)["digest"]
    for options in (["--dry-run"], []):
        done = run(*sync, *options)
        assert done["dry_run"] == bool(options)
        assert [done[name] for name in ("added", "changed", "gone", "kept", "unchanged")] == [1, 1, 1, 0, 1]
        lists = {name: [item["external_id"] for item in done[f"{name}_documents"]] for name in ("added", "changed")}
        assert lists == {"added": ["mill.txt"], "changed": ["tower.txt"]}
        (gone,) = done["gone_documents"]
        assert (gone["external_id"], gone["source"], gone["reason"]) == ("bridge.txt", "notes", "not-there")
        assert ("receipt" in done) == (not options) == (done["digest"] != digest)
    twin = str(tmp_path / "twin")
    run("store", "create", twin, "--model", str(model), "--search", "ngram,bm25")
    run("store", "add", twin, "--folder", str(folder), "--owner", "town")
    assert tree(Path(notes) / "data") == tree(Path(twin) / "data")
    for file in folder.iterdir():
        file.unlink()
    assert run(*sync, status=2)["error"]["code"] == "would-empty"
    assert main([*sync, "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "needs --yes" in told.err and "mill.txt" in told.out
    assert run(*sync, "--yes")["gone"] == 3
    assert run("store", "sync", notes, "--jsonl", "-", status=2)["error"]["code"] == "usage"
    assert run("store", "sync", notes, status=2)["error"]["code"] == "usage"


def test_a_store_can_be_searched_and_read(notes: str, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("store", "search", notes, "how many years did the tower take", "--limit", "2")
    assert (found[0]["external_id"], found[0]["owner"], found[0]["license"]) == ("tower.txt", "town", "NOASSERTION")
    assert found[0]["text"][: len(found[0]["sentence"])] and found[0]["sentence"] in found[0]["text"]
    assert main(["store", "search", notes, "harbour", "--policy", "owner == 'town'"]) == 0
    assert "harbour.txt, characters 0 to" in capsys.readouterr().out
    assert run("store", "search", notes, "harbour", "--policy", "owner == 'nobody'", status=3) == []
    assert (
        run("store", "search", notes, "harbour", "--policy", "owner =", status=2)["error"]["code"] == "policy-invalid"
    )
    assert run("store", "search", notes, "harbour", "--limit", "0", status=2)["error"]["code"] == "usage"
    whole = run("store", "get", notes, "tower.txt")
    assert whole["text"].startswith("The tower") and whole["rights"]["store"] and whole["source"] == "notes"
    assert run("store", "get", notes, f"id:{whole['id']}") == whole
    assert main(["store", "get", notes, "tower.txt", "--text"]) == 0
    assert capsys.readouterr().out == whole["text"] + "\n"
    assert main(["store", "get", notes, "tower.txt"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("restricted", "NOASSERTION", "train False", whole["text"][:40]))
    assert run("store", "get", notes, "towr.txt", status=3)["error"]["hint"].startswith("did you mean document 'tower")

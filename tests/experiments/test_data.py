"""Splits that keep together what belongs together, cut to what a reference can read, and made once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from silo.errors import SiloError
from silo.experiments.harness.data import SPLITS, DataRecipe, find_domains, prepare_data
from tests.conftest import record, write_jsonl

RECIPE = DataRecipe(train_bytes=2_000, together={"mail": "thread", "code": "package"})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for at, split in enumerate(SPLITS):
        mails = [
            record(f"m{at}-{n}", f"Subject: {'re : ' * at}deal {n % 40} of {['march', 'april', 'may'][at]}\nhello {n}")
            for n in range(60)
        ]
        mails = [
            {**mail, "text": mail["text"].replace(str(n % 40), "abcdefghij"[n % 10])} for n, mail in enumerate(mails)
        ]
        code = [record(f"c{at}-{n}", f"x = {n}", metadata={"package": f"p{n % 30}"}) for n in range(60)]
        prose = [record(f"t{at}-{n}", f"{'word ' * 40}{n}") for n in range(30)]
        write_jsonl(folder / f"mail.{split}.jsonl", mails)
        write_jsonl(folder / f"code.{split}.jsonl", code)
        write_jsonl(folder / f"prose.{split}.jsonl", prose)
    write_jsonl(folder / "lonely.train.jsonl", [record("l", "no validation")])
    return folder


def _read(out: Path, domain: str, split: str) -> list[dict[str, Any]]:
    packed = (out / f"{domain}.{split}.jsonl.zst").read_bytes()
    return [json.loads(line) for line in zstandard.ZstdDecompressor().decompress(packed).splitlines()]


def test_documents_of_a_group_are_in_one_split(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_data(data, out, replace(RECIPE, whole=("code", "mail")))
    for domain in ("code", "mail"):
        groups = [{_group_of(item) for item in _read(out, domain, split)} for split in SPLITS]
        assert not groups[0] & groups[1] | groups[1] & groups[2] | groups[0] & groups[2]
        assert sum(len(_read(out, domain, split)) for split in SPLITS) == 180


def _group_of(item: dict[str, Any]) -> str:
    text = str(item["text"])
    return str(item["metadata"]["package"]) if "metadata" in item else text.split("deal ")[1][0]


def test_train_text_is_cut_and_evaluation_text_is_not(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    counts = prepare_data(data, out, RECIPE)
    assert "lonely" not in counts
    assert counts["prose"]["test"] == {
        "documents": 30,
        "bytes": sum(len(item["text"]) for item in _read(out, "prose", "test")),
    }
    assert 1_500 < counts["prose"]["train"]["bytes"] <= 2_000
    before = {
        item["id"] for item in (json.loads(line) for line in (data / "prose.test.jsonl").read_text().splitlines())
    }
    assert {item["id"] for item in _read(out, "prose", "test")} == before


def test_what_was_made_is_kept_and_other_data_are_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_data(data, out, RECIPE)
    stamp = (out / "prose.test.jsonl.zst").stat().st_mtime_ns
    prepare_data(data, out, RECIPE)
    assert (out / "prose.test.jsonl.zst").stat().st_mtime_ns == stamp
    write_jsonl(data / "new.train.jsonl", [record("n", "new")])
    for split in SPLITS:
        write_jsonl(data / f"new.{split}.jsonl", [record(split, "new")])
    with pytest.raises(SiloError, match=r"other data, or by another data\.toml: new differs"):
        prepare_data(data, out, RECIPE)
    (data / "new.test.jsonl").unlink()
    write_jsonl(data / "prose.test.jsonl", [record("new", "another text")])
    with pytest.raises(SiloError, match=r"data\.toml: prose differs"):
        prepare_data(data, out, RECIPE)


def test_data_may_change_until_all_of_them_were_read(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    broken = (data / "prose.test.jsonl").read_bytes()
    (data / "prose.test.jsonl").write_text("{")
    with pytest.raises(SiloError, match="json-invalid"):
        prepare_data(data, out, RECIPE)
    (data / "prose.test.jsonl").write_bytes(broken)
    (data / "code.test.jsonl").unlink()
    write_jsonl(data / "mail.test.jsonl", [record("new", "Subject: another\nmail")])
    assert list(prepare_data(data, out, RECIPE)) == ["mail", "prose"]
    assert list(prepare_data(data, out, RECIPE)) == ["mail", "prose"]


def test_records_need_no_more_than_a_text(tmp_path: Path) -> None:
    for split in SPLITS:
        write_jsonl(tmp_path / "mine" / f"own.{split}.jsonl", [{"text": f"{split} text"}, {"text": "b", "domain": "x"}])
    prepare_data(tmp_path / "mine", tmp_path / "out", DataRecipe(together={"own": "package"}))
    found = [item for split in SPLITS for item in _read(tmp_path / "out", "own", split)]
    assert {item["domain"] for item in found} == {"own"}
    assert len({item["id"] for item in found}) == len(found) == 6


@pytest.mark.parametrize(("line", "code"), [('{"id": 1}', "field-missing"), ('{"text"', "json-invalid")])
def test_a_record_that_cannot_be_read_is_named(line: str, code: str, tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"own.{split}.jsonl").write_text('{"text": "good"}\n' + line)
    with pytest.raises(SiloError, match=r"own\.test\.jsonl:line 2") as refused:
        prepare_data(tmp_path, tmp_path / "out", RECIPE)
    assert refused.value.code == code


def test_a_folder_without_all_splits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-missing"):
        find_domains(tmp_path)

"""The command line as a script sees it: JSON on stdout, two-line errors on stderr, stable exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from silo import __version__
from silo.cli import main
from silo.corpus.corpus import Corpus
from silo.errors import CODES
from silo.records import Tier
from tests.conftest import record, words, write_jsonl


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    train = [record(f"t{number}", words(number, 40), license="CC0-1.0") for number in range(8)]
    more = [record(f"m{number}", words(number + 100, 40), domain="code") for number in range(4)]
    return {
        "train": write_jsonl(tmp_path / "train.jsonl", train),
        "more": write_jsonl(tmp_path / "more.jsonl", more),
        "test": write_jsonl(tmp_path / "test.jsonl", [record("t0", words(0, 40))]),
    }


def test_build_takes_several_files_after_one_option(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    status, printed, errors = _run(
        capsys,
        *("corpus", "build", "--jsonl", str(files["train"]), str(files["more"]), "--out", out),
        *("--decontaminate", str(files["test"]), "--workers", "1", "--json"),
    )
    assert (status, errors) == (0, "")
    summary = json.loads(printed)
    assert summary["read"] == 12
    assert summary["accepted"] == 11
    assert summary["reasons"] == {"contaminated": 1}
    assert summary["tiers"] == {"pd": 7, "sw": 4, "by": 0, "restricted": 0}
    for name in ("rejected", "quarantined", "tokens", "seconds", "peak_memory_mb"):
        assert summary[name] >= 0
    status, printed, _ = _run(capsys, "corpus", "stats", out, "--json")
    assert status == 0
    assert json.loads(printed)["totals"]["documents"] == 11
    status, printed, _ = _run(capsys, "corpus", "overlap", out, "--against", str(files["test"]), "--json")
    assert status == 0
    assert json.loads(printed)["columns"] == ["prose"]


def test_build_from_a_recipe_goes_to_the_home_folder(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('workers = 1\n[[source]]\nkind = "jsonl"\npaths = ["train.jsonl"]\n')
    monkeypatch.setenv("SILO_HOME", str(tmp_path / "home"))
    status, printed, _ = _run(capsys, "corpus", "build", str(recipe))
    assert status == 0
    assert "accepted" in printed
    assert (tmp_path / "home" / "corpora" / "mine" / "manifest.json").exists()


def test_tables_and_plots_for_people(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert _run(capsys, "corpus", "build", "--jsonl", str(files["more"]), "--out", out, "--workers", "1")[0] == 0
    plot = tmp_path / "shares.png"
    status, printed, _ = _run(capsys, "corpus", "stats", out, "--plot", str(plot))
    assert status == 0
    assert "code" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")
    heat = tmp_path / "heat.png"
    status, printed, _ = _run(capsys, "corpus", "overlap", out, "--against", str(files["test"]), "--plot", str(heat))
    assert status == 0
    assert "prose" in printed
    assert heat.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["corpus"], 2, "usage"),
        (["corpus", "build", "--out", "x"], 2, "usage"),
        (["corpus", "build", "--jsonl", "none.jsonl", "--out", "x"], 3, "input-missing"),
        (["corpus", "build", "none.toml", "--out", "x"], 2, "recipe-missing"),
        (["corpus", "stats", "nowhere"], 3, "input-missing"),
        (["corpus", "overlap", "nowhere", "--against", "a"], 3, "input-missing"),
        (["nonsense"], 2, "usage"),
        (["corpus", "build", "--nonsense"], 2, "usage"),
    ],
)
def test_errors_have_two_lines_a_code_and_a_status(
    arguments: list[str],
    status: int,
    code: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given, printed, errors = _run(capsys, *arguments)
    assert given == status
    first, second = errors.splitlines()
    assert first.startswith("error: ")
    assert first.endswith(f"[{code}]")
    assert second.startswith("hint: ")
    assert printed == ""
    given, printed, _ = _run(capsys, *arguments, "--json")
    assert json.loads(printed)["error"]["code"] == code
    assert not any(tmp_path.iterdir())


def test_a_recipe_with_a_misspelt_key_names_the_right_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[[source]]\nkind = "jsonl"\npath = ["x"]\n')
    status, _, errors = _run(capsys, "corpus", "build", str(recipe), "--out", str(tmp_path / "out"))
    assert status == 2
    assert "did you mean 'paths'?" in errors


def test_a_model_from_corpus_to_verdict(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = str(tmp_path / "out"), str(tmp_path / "model")
    build = ["corpus", "build", "--jsonl", str(files["train"]), str(files["more"]), "--out", out, "--workers", "1"]
    assert _run(capsys, *build)[0] == 0
    recipe = tmp_path / "lm.toml"
    recipe.write_text(
        'corpus = "out"\ntiers = ["pd"]\nvocabulary = 300\ncontext = 32\nmax_tokens = 512\nbatch_tokens = 128\n'
    )
    status, printed, _ = _run(capsys, "lm", "train", str(recipe), "--out", model, "--json")
    assert status == 0
    assert json.loads(printed)["tokens"] == 512
    status, printed, _ = _run(capsys, "lm", "eval", model, "--jsonl", str(files["test"]), "--json")
    assert status == 0
    assert {"tokens", "perplexity", "bits_per_byte"} <= json.loads(printed).keys()
    status, printed, _ = _run(capsys, "lm", "verify", model, "--corpus", out, "--json")
    assert status == 0
    assert json.loads(printed)["violations"] == []
    seen = next(Corpus.open(Path(out)).documents(tiers=[Tier.pd])).id
    status, printed, _ = _run(capsys, "lm", "verify", model, "--saw", seen, "--json")
    assert "tokenizer" in json.loads(printed)["shaped"]
    assert _run(capsys, "lm", "train", "--corpus", out, "--tiers", "restricted", "--out", str(tmp_path / "no"))[0] == 5
    assert _run(capsys, "lm", "import", str(tmp_path / "nothing"), "--out", str(tmp_path / "no"))[0] == 3


def test_version_help_and_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"silo {__version__}"
    status, printed, _ = _run(capsys, "doctor", "--json")
    assert status == 0
    assert {row["package"] for row in json.loads(printed)["packages"]} >= {"torch", "numba", "fastwarc"}


def test_help_is_quick() -> None:
    before = os.times()
    subprocess.run([sys.executable, "-m", "silo", "--help"], check=True, capture_output=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


def test_every_error_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    for code, kind in CODES.items():
        assert f"`{code}` | {int(kind.status)} |" in page, code

"""Defaults of `silo.toml` and the environment: what counts most, what is refused, and limits that nobody widens."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.cli.arguments.config import KEYS
from silo.cli.main import parse
from silo.errors import SiloError
from silo.store.policy import Policy


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without variables of silo."""
    for key in KEYS:
        monkeypatch.delenv(f"SILO_{key.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(path: Path, **values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))


def _generate(*options: str) -> argparse.Namespace:
    return parse(["generate", "x", *options])


def test_without_any_statement_defaults_are_what_they_were(here: Path) -> None:
    found = _generate("--model", "m")
    assert (found.store, found.policy, found.guard, found.quiet, found.home) == ([], "", None, False, None)
    assert (found.device, found.settings, found.method) == (None, None, None)
    assert parse(["store", "list", "s"]).quiet is False
    with pytest.raises(SiloError, match="required: --model") as caught:
        _generate()
    assert caught.value.hint == "run `silo generate --help`, or state it in silo.toml"


def test_a_flag_beats_a_variable_beats_the_folder_beats_the_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(here / "silo-home" / "silo.toml", settings="home", model="m", method="knn", device="auto", quiet=True)
    assert (_generate().settings, _generate().model) == ("home", str(here / "silo-home" / "m").replace(f"{here}/", ""))
    assert _generate().quiet is True
    _write(here / "silo.toml", settings="folder", method="ngram", quiet=False)
    assert (_generate().settings, _generate().device, _generate().quiet) == ("folder", "auto", False)
    monkeypatch.setenv("SILO_SETTINGS", "variable")
    assert (_generate().settings, _generate().method) == ("variable", "ngram")
    assert _generate("--settings", "flag").settings == "flag"
    monkeypatch.setenv("SILO_QUIET", "yes")
    assert _generate().quiet is True


def test_stores_of_a_flag_replace_those_that_are_stated(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(here / "silo.toml", model="m", store="one")
    assert _generate().store == ["one"]
    _write(here / "silo.toml", model="m", store=["one", "two"])
    assert _generate().store == ["one", "two"]
    assert _generate("--store", "three").store == ["three"]
    monkeypatch.setenv("SILO_STORE", "a:b")
    assert _generate().store == ["a", "b"]


def test_a_home_is_found_first_and_its_paths_are_relative_to_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(here / "elsewhere" / "silo.toml", model="models/m", store=["stores/s"])
    _write(here / "silo.toml", home="elsewhere")
    found = _generate()
    assert (found.home, found.model, found.store) == ("elsewhere", "elsewhere/models/m", ["elsewhere/stores/s"])
    monkeypatch.setenv("SILO_HOME", str(here / "third"))
    with pytest.raises(SiloError, match="required: --model"):
        _generate()
    assert _generate("--home", "elsewhere").model == "elsewhere/models/m"
    _write(here / "elsewhere" / "silo.toml", home="again")
    with pytest.raises(SiloError, match="a home cannot state"):
        _generate("--home", "elsewhere")


def test_options_of_other_meaning_are_left_alone(here: Path) -> None:
    _write(here / "silo.toml", model="m", store="s", home="h", method="knn")
    assert parse(["store", "add", "s", "--jsonl", "x"]).model is None, "where the store's model is now"
    assert parse(["store", "create", "s"]).model == "m"
    assert parse(["demo"]).home == "silo-demo"
    assert parse(["quickstart", "notes"]).store is None, "where the new store goes"
    assert parse(["eval", "tasks", "--tasks", "t"]).method == []
    assert parse(["lm", "eval", "other", "--jsonl", "x"]).model == "other"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("modle = 'x'", "recipe-key", "did you mean 'model'?"),
        ("threads = 'two'", "recipe-value", "must be a whole number"),
        ("guard = 0", "usage", "./silo.toml: the guard lets at least one token"),
        ("policy = 'ownr == 1'", "policy-invalid", "./silo.toml: policy, column"),
        ("model = ", "recipe-syntax", "silo.toml"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(content: str, code: str, words: str, here: Path) -> None:
    (here / "silo.toml").write_text(content)
    with pytest.raises(SiloError) as caught:
        _generate("--model", "m", "--store", "s")
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize(("name", "value"), [("SILO_THREADS", "two"), ("SILO_QUIET", "maybe"), ("SILO_POLCY", "x")])
def test_wrong_variables_are_refused(name: str, value: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SiloError, match=name) as caught:
        _generate("--model", "m")
    assert caught.value.code == "usage"
    monkeypatch.delenv(name)
    monkeypatch.setenv("SILO_STORE_KILLS", "5")
    _generate("--model", "m")


def test_a_policy_is_narrowed_by_everybody_and_widened_by_nobody(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"home": 'tier <= "by"', "folder": 'owner != "a"', "variable": 'license == "MIT"', "flag": 'domain == "d"'}
    _write(here / "silo-home" / "silo.toml", policy=said["home"])
    _write(here / "silo.toml", model="m", policy=said["folder"])
    monkeypatch.setenv("SILO_POLICY", said["variable"])
    whole = Policy()
    for text in (said["flag"], said["variable"], said["folder"], said["home"]):
        whole = whole.narrowed(Policy.parse(text))
    assert Policy.parse(_generate("--policy", said["flag"]).policy) == whole
    assert Policy.parse(_generate("--policy", "").policy) == Policy.parse(_generate().policy), (
        "an empty one widens nothing"
    )
    tricky = _generate("--policy", 'owner == "a" or tier <= "restricted"').policy
    assert Policy.parse(tricky).condition != Policy.parse('owner == "a" or tier <= "restricted"').condition
    for command in (["score", "--jsonl", "x"], ["eval", "tasks", "--tasks", "t"], ["quickstart", "notes"]):
        assert Policy.parse(parse(command).policy) == Policy.parse(_generate().policy)


def test_the_smallest_guard_counts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(here / "silo.toml", model="m", store="s", guard=20)
    assert _generate().guard == 20
    assert _generate("--guard", "5").guard == 5
    assert capsys.readouterr().err == ""
    assert _generate("--guard", "50").guard == 20
    assert "the guard is 20, as ./silo.toml says, and not 50" in capsys.readouterr().err
    monkeypatch.setenv("SILO_GUARD", "8")
    assert _generate().guard == 8
    _write(here / "silo.toml", model="m", guard=20)
    assert _generate().guard is None, "there is no store to guard"


def test_every_command_that_writes_from_stores_knows_policy_and_guard() -> None:
    from silo.cli.arguments.parser import leaves, option_names
    from silo.cli.main import build_parser

    writing = [set(option_names(leaf)) for _, leaf in leaves(build_parser()) if "--max-tokens" in option_names(leaf)]
    stored = [options for options in writing if "--store" in options]
    assert len(stored) >= 2
    assert all({"--policy", "--guard"} <= options for options in stored)


def test_doctor_says_where_values_come_from(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(here / "silo.toml", model="m", policy='tier <= "by"')
    _write(here / "silo-home" / "silo.toml", policy='owner != "x"', settings="mine")
    monkeypatch.setenv("SILO_THREADS", "1")
    assert main(["doctor", "--json"]) == 0
    said = {row["key"]: (row["value"], row["from"]) for row in json.loads(capsys.readouterr().out)["configuration"]}
    assert said["model"] == ("m", "./silo.toml")
    assert said["settings"] == ("mine", "silo-home/silo.toml")
    assert said["threads"] == (1, "$SILO_THREADS")
    assert said["device"] == (None, "default")
    assert said["policy"] == ('(tier <= "by") and (owner != "x")', "./silo.toml, silo-home/silo.toml")
    assert set(said) == set(KEYS)


def test_help_needs_no_right_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "silo.toml").write_text("nonsense")
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "--help"])
    assert stopped.value.code == 0
    assert main(["doctor"]) == 2
    assert "silo.toml" in capsys.readouterr().err

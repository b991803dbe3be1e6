"""What the docs show works: commands and Python run, recipes parse, links lead somewhere, plain words only."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import zstandard

from silo.cli import main
from silo.recipe import CorpusRecipe, parse_recipe
from tests.conftest import record, words, write_jsonl

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
JOURNEY = ROOT / "docs" / "build-a-corpus.md"


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def _inputs(place: Path) -> None:
    write_jsonl(place / "train.jsonl", [record(f"t{n}", words(n, 40), license="CC0-1.0") for n in range(8)])
    more = write_jsonl(place / "more.jsonl", [record(f"m{n}", words(50 + n, 40), domain="code") for n in range(4)])
    (place / "more.jsonl.zst").write_bytes(zstandard.compress(more.read_bytes()))
    write_jsonl(place / "test.jsonl", [record("t0", words(0, 40))])


def test_the_journey_and_all_python_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for block in _blocks(JOURNEY, "console") for line in block.splitlines() if line[:2] == "$ "]
    assert len(commands) >= 3
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "silo"
        assert main(arguments) == 0, command
    for page in PAGES:
        for block in _blocks(page, "python"):
            exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_in_the_docs_parse(page: Path) -> None:
    for block in _blocks(page, "toml"):
        content = tomllib.loads(block)
        if "source" in content:
            parse_recipe(content, CorpusRecipe, where=page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text

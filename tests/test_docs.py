"""What the docs show works: commands and Python run, recipes parse, links lead somewhere, plain words only."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from silo.cli import main
from silo.recipe import CorpusRecipe, parse_recipe
from tests.docs_world import ROOT, fill_in, hurry, make_world, slip_in

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_RUN = {
    "make demo": "takes minutes; tests/journeys/test_demo.py runs its stages on small text",
    "make test": "runs this test",
    "pip install": "installs; tests/test_package.py compares what a wheel holds with the tree",
    "python -m build": "builds and installs; tests/test_package.py does so as far as it is quick",
    "silo corpus build recipes/shared-data.toml": "reads the experiments' data, which is not part of the repository",
    "silo experiment": "trains and measures for hours; tests/experiments runs them on small text",
    "python benchmarks/": "measurements take minutes to hours",
    "make test-page": "installs and runs tests/page",
    "make test-ray": "installs and runs tests/cluster",
    "ray ": "starts processes that stay; tests/cluster starts three nodes and ends them",
    "serve run": "runs until it is stopped; tests/cluster/test_http.py deploys the same application",
    "silo serve": "runs until it is stopped; tests/server starts and stops it",
    "silo eval harness": "needs the extra lm-eval; tests/server/test_harness.py runs it",
    "silo mcp": "talks to a client until that leaves; tests/server/test_mcp.py does",
    "torchrun": "starts processes that train at full length; tests/lm/test_train.py trains with two of them",
}
"""Beginnings of commands that are not run, and why."""

ELSEWHERE = " --ray "
"""An option that needs a cluster; tests/cluster runs such commands."""

HARMLESS = {"cat", "cp", "diff", "echo", "mv", "silo"}
"""Programs of a shell line that may run, in a folder that is thrown away."""

MEANWHILE = {"One restricted record is moved into the public-domain shard.": slip_in}
"""What a page says has happened between two commands."""

FOREIGN = {"--peers-python"}
"""Options of the benchmarks."""


def _blocks(page: Path, language: str) -> list[str]:
    return [block for name, block in _all_blocks(page) if name == language]


def _all_blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def _commands(page: Path) -> list[str]:
    return [line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything a page may begin with."""
    root = tmp_path_factory.mktemp("world")
    make_world(root)
    return root


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, which a page may change."""
    hurry(monkeypatch)
    monkeypatch.delenv("SILO_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copytree(world, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _commands(page) or _blocks(page, "python")], ids=lambda page: page.name
)
def test_a_page_runs_as_written(page: Path, place: Path) -> None:
    made = re.findall(r"(?:--out|store create) (\S+)", page.read_text(encoding="utf-8"))
    for name in {"my-corpus", "my-model", "my-store"} & set(made):
        shutil.rmtree(place / name)
    for language, block in _all_blocks(page):
        if language == "python":
            exec(compile(block, page.name, "exec"), {})
        elif language == "console":
            _play(block)
        elif language == "toml" and (head := re.match(r"# (\w+\.toml)\n", block)):
            (place / head[1]).write_text(block, encoding="utf-8")


def _play(block: str) -> None:
    """Run the commands of a block; each must end with the status that the page shows, 0 if it shows none."""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        if command.startswith(tuple(NOT_RUN)) or ELSEWHERE in command:
            continue
        status = re.search(r"^exit status (\d+)$", shown, re.MULTILINE)
        assert _run(fill_in(command)) == (int(status[1]) if status else 0), command
        for line in MEANWHILE.keys() & set(shown.splitlines()):
            MEANWHILE[line]()


def _run(command: str) -> int:
    """The exit status of a command line; its last program, if that is silo, runs in this process and spares imports."""
    unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", command.partition(" #")[0])
    programs = [part.split()[0] for part in re.split(r"\|+|&+|;", unquoted)]
    assert set(programs) <= HARMLESS, f"{command}: let it run, or say in NOT_RUN why not"
    assert not re.search(r"(?:^|[ =])(?:/|~|\.\./)", unquoted), f"{command}: it leaves the folder"
    before, _, last = command.rpartition(" | ")
    if programs[-1] != "silo" or set(unquoted.rpartition(" | ")[2]) & set("&;<>*?$`"):
        return subprocess.run(["bash", "-o", "pipefail", "-c", command], check=False).returncode
    with pytest.MonkeyPatch.context() as patch:
        if before:
            given = subprocess.run(["bash", "-c", before], check=True, capture_output=True).stdout
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        return main(shlex.split(last, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_stands_in_a_console_block(page: Path) -> None:
    shown = [line[2:] for block in _blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    assert shown == _commands(page)


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of every command, by its name."""
    found = {"": _options()}
    for noun in _words():
        found[noun] = _options(noun)
        found |= {f"{noun} {verb}": _options(noun, verb) for verb in _words(noun)}
    return found


def _options(*command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", _help(*command)))


def _words(*command: str) -> list[str]:
    """What may come after the beginning of a command."""
    return re.findall(r"^ {4}([\w-]+)", _help(*command), re.MULTILINE)


def _help(*command: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit):
        main([*command, "--help"])
    return shown.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_running_text_exist(page: Path, options: dict[str, set[str]]) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for mention in re.findall(r"`((?:silo |--)[^`]+)`", text):
        command = re.match(r"silo((?: [a-z][a-z-]*(?![^ ]))*)", mention)
        known = options[_name(command[1].split(), options)] if command else set().union(*options.values(), FOREIGN)
        assert set(re.findall(r"--[a-z][a-z-]*", mention)) <= known, mention


def _name(words: list[str], options: dict[str, set[str]]) -> str:
    """The command that words are; what follows one without verbs are its arguments, as in `silo completion bash`."""
    for length in range(len(words), 0, -1):
        name = " ".join(words[:length])
        if name in options and (length == len(words) or not any(other.startswith(f"{name} ") for other in options)):
            return name
    assert not words, f"silo {' '.join(words)} is no command"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_in_the_docs_parse(page: Path) -> None:
    for block in _blocks(page, "toml"):
        content = tomllib.loads(block)
        if "source" in content:
            parse_recipe(content, CorpusRecipe, where=page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]+)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(page.parent / target), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_every_threat_names_tests_and_files_that_exist() -> None:
    named = re.findall(r"`((?:tests|src)/[^`]+)`", (ROOT / "docs" / "threats.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    for file, _, test in (name.partition("::") for name in named):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in source, f"{file}::{test}"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text

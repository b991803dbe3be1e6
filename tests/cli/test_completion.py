"""The completion scripts in the shells they are for: what a user types and what it becomes."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from silo.cli import main
from silo.cli.arguments.parser import leaves, option_names
from silo.cli.main import build_parser

TYPED = {
    "silo sto\t": "store",
    "silo store er\t": "store erase",
    "silo store erase --dr\t": "store erase --dry-run",
    "silo lm codec m --rotation op\t": "lm codec m --rotation opq",
    "silo experiment scal\t": "experiment scaling",
    "silo completion fi\t": "completion fish",
    "silo store add s --folder not\t": "store add s --folder notes/",
    "silo corpus stats not\t": "corpus stats notes/",
}
"""What is typed, the tabulator last, and what the command gets when the line is sent."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three scripts and a folder `notes`."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "notes").mkdir()
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, "-m", "silo", "completion", shell], check=True, capture_output=True, text=True
        )
        (folder / f"silo.{shell}").write_text(done.stdout)
    return folder


def _need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")


class _Terminal:
    """A shell that believes somebody types."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process, self._end = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb", PS1="READY> ", PROMPT="READY> ", HISTFILE="")
            os.execvp(command[0], command)
        self._seen = ""

    def wait_for(self, text: str) -> str:
        """What was shown up to and with a text."""
        until = time.monotonic() + 60
        while text not in self._seen:
            assert time.monotonic() < until, f"{text!r} did not come: {self._seen!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                self._seen += os.read(self._end, 4096).decode(errors="replace")
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def close(self) -> None:
        os.close(self._end)
        os.waitpid(self._process, 0)


@pytest.mark.parametrize(
    ("command", "setup"),
    [
        (["bash", "--norc", "--noprofile", "-i"], 'source silo.bash; silo() { echo "GOT:$*":END; }'),
        (
            ["zsh", "-f", "-i"],
            'autoload -Uz compinit; compinit -u -D; source ./silo.zsh; silo() { print -r -- "GOT:$*":END; }',
        ),
    ],
    ids=["bash", "zsh"],
)
def test_what_is_typed_becomes_what_was_meant(command: list[str], setup: str, scripts: Path) -> None:
    _need(command[0])
    shell = _Terminal(command, scripts)
    shell.wait_for("READY> ")
    shell.type(f"{setup}; echo DO'NE'\n")
    shell.wait_for("DONE")
    for typed, expected in TYPED.items():
        shell.type(typed)
        time.sleep(0.05)
        shell.type("\n")
        got = shell.wait_for(":END\r\n").rpartition("GOT:")[2].removesuffix(":END\r\n")
        assert got.rstrip("/ ") == expected.rstrip("/"), typed
    shell.type("exit\n")
    shell.close()


def test_bash_offers_what_a_place_takes(scripts: Path) -> None:
    _need("bash")

    def offered(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = f'source silo.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _silo; echo "${{COMPREPLY[@]}}"'
        run = ["bash", "--norc", "-c", code]
        return set(subprocess.run(run, cwd=scripts, check=True, capture_output=True, text=True).stdout.split())

    nouns = {path[0] for path, _ in leaves(build_parser())}
    assert offered("silo", "") == nouns
    assert offered("silo", "receipt", "") == {"verify"}
    for path, leaf in leaves(build_parser()):
        assert offered("silo", *path, "--") >= set(option_names(leaf)), path
    assert offered("silo", "generate", "x", "--ric", "") == {"basic", "ensemble", "concat", "concat-next"}
    assert offered("silo", "generate", "x", "--ric", "=", "con") == {"concat", "concat-next"}
    assert offered("silo", "generate", "x", "--model", "") == set(), "files, which bash offers by itself"
    assert offered("silo", "nonsense", "") == nouns


def test_fish_offers_what_a_place_takes(scripts: Path, tmp_path: Path) -> None:
    _need("fish")
    lines = [typed.rstrip("\t") for typed in TYPED] + ["silo ", "silo store ", "silo store erase --d"]
    code = "source silo.fish; " + "; ".join(f"echo '== {line}'; complete -C '{line}'" for line in lines)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        ["fish", "-N", "-c", code], cwd=scripts, check=True, capture_output=True, text=True, env=environment
    )
    offered: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            offered[line[3:]] = words = {}
        else:
            word, _, text = line.partition("\t")
            words[word] = text
    for typed, expected in TYPED.items():
        assert expected.split()[-1] in offered[typed.rstrip("\t")], typed
    assert set(offered["silo "]) == {path[0] for path, _ in leaves(build_parser())}
    assert offered["silo store "]["erase"] == "take documents out, exactly, with a receipt"
    assert set(offered["silo store erase --d"]) == {"--debug", "--document", "--domain", "--dry-run"}


def test_another_shell_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "SHELL takes bash, zsh, fish, not 'tcsh'" in capsys.readouterr().err

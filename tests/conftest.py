"""Small real corpora and records for the tests."""

from __future__ import annotations

import json
import os

# Before numpy is there: the bits of a codec depend on it, and helpers in other processes learn the same one.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from silo.corpus.build import build
from silo.recipe import CorpusRecipe, SourceRecipe

hypothesis.settings.register_profile("silo", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("silo")

SHARED = Path(__file__).parent.parent.parent / "shared"

Record = Mapping[str, Any]


def record(id: str, text: str, **fields: Any) -> dict[str, Any]:
    """A record as in a JSONL file."""
    return {"id": id, "text": text, "source": "test", "domain": "prose", "license": "MIT", **fields}


def words(seed: int, count: int) -> str:
    """Text that shares no 13-gram with the text of another seed."""
    return " ".join(f"w{seed}x{number}" for number in range(count))


def write_jsonl(path: Path, records: Iterable[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in records), encoding="utf-8")
    return path


def build_from(files: Iterable[Path], out: Path, **settings: Any) -> dict[str, Any]:
    """Build a corpus from JSONL files in this process."""
    source = SourceRecipe("jsonl", tuple(map(str, files)))
    return build(CorpusRecipe(source=(source,), **{"workers": 1, **settings}), out, base=out.parent)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remembered checksums of models that tests make do not stay on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("../shared is not on this machine")
    return SHARED

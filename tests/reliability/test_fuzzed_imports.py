"""Thousands of damaged models: an import ends in a model or a typed error, and takes bounded memory.

`SILO_FUZZ` sets how many mutations of files are read, `SILO_FUZZ_IMPORTS` how many are imported, which makes a network
each time and is slower (60 of each in `make test`; 100,000 and 5,000 in `make reliability`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.lm.importers.import_model import import_model
from tests.reliability.import_fuzzer import make_sources

COUNT = int(os.environ.get("SILO_FUZZ", "60"))
IMPORTS = int(os.environ.get("SILO_FUZZ_IMPORTS", "60"))
MOST_MEMORY = 500


@pytest.mark.parametrize(
    ("kinds", "count"),
    [(("gguf-file", "safetensors-file"), COUNT), (("gguf", "config", "tokenizer", "safetensors"), IMPORTS)],
    ids=["files", "imports"],
)
def test_only_typed_errors_and_bounded_memory(kinds: tuple[str, ...], count: int, memory: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.reliability.import_fuzzer", str(memory), ",".join(kinds)]
    environment = {**os.environ, "TMPDIR": str(memory)}
    done = subprocess.run([*command, str(count), "1"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    every = [json.loads(line) for line in done.stdout.splitlines()[-len(kinds) :]]
    assert [found.pop("kind") for found in every] == list(kinds)
    for kind, found in zip(kinds, every, strict=True):
        print(f"{kind}: {count:,} mutations, {found}")
        assert found["raw"] == {}, done.stderr[-2000:]
        assert sum(found["codes"].values()) == count
        assert found["grown_mib"] < MOST_MEMORY


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 1 << 31},
        {"text_config": {"num_experts": 1 << 31}},
        {"hidden_size": 1 << 31},
        {"hidden_size": 1 << 22},
        {"vocab_size": 1 << 40},
        {"num_key_value_heads": 0},
    ],
)
def test_a_configuration_that_promises_too_much_is_refused_at_once(change: dict[str, Any], tmp_path: Path) -> None:
    make_sources(tmp_path)
    file = tmp_path / "whole" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(SiloError) as caught:
        import_model(str(tmp_path / "whole"), tmp_path / "out")
    assert caught.value.code == "not-a-model"


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 100_000 + "}"])
def test_a_configuration_nested_without_end_is_refused(content: str, tmp_path: Path) -> None:
    make_sources(tmp_path)
    (tmp_path / "whole" / "config.json").write_text(content)
    with pytest.raises(SiloError) as caught:
        import_model(str(tmp_path / "whole"), tmp_path / "out")
    assert caught.value.code == "not-a-model"

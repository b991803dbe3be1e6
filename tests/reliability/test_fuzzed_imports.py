"""Thousands of damaged models: an import ends in a model or a typed error, and takes bounded memory.

`SILO_FUZZ` sets how many mutations of each kind are tried (1,000 and more were for the figures in docs/train.md).
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
MOST_MEMORY = 500


@pytest.mark.parametrize("kind", ["gguf", "config", "tokenizer", "safetensors"])
def test_only_typed_errors_and_bounded_memory(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.reliability.import_fuzzer", str(tmp_path), kind]
    done = subprocess.run([*command, str(COUNT), "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{kind}: {found}")
    assert found["raw"] == {}, done.stderr[-2000:]
    assert sum(found["codes"].values()) == COUNT
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

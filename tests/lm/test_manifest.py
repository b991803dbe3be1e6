"""What a model says of itself is read without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.files import write_manifest
from silo.lm.manifest import FORMAT, codec_key, open_manifest


@pytest.mark.parametrize("module", ["manifest", "firewall", "audit", "tokenizer", "windows"])
def test_listing_and_verifying_a_model_imports_no_torch(module: str) -> None:
    assert not {"torch", "transformers"} & _loaded(f"silo.lm.{module}")


@pytest.mark.parametrize("module", ["model", "engine.decoder", "encode", "scoring"])
def test_transformers_waits_for_a_network_to_open(module: str) -> None:
    assert "transformers" not in _loaded(f"silo.lm.{module}")


def _loaded(module: str) -> set[str]:
    """What an import brings along."""
    code = f"import sys, {module}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_a_model_without_a_word_on_keys_has_a_codec_for_final_states(tmp_path: Path) -> None:
    assert codec_key(tmp_path) == "final"
    write_manifest(tmp_path, {"format": FORMAT, "files": {}})
    assert codec_key(tmp_path) == "final"
    write_manifest(tmp_path, {"format": FORMAT, "files": {}, "codec_key": "ffn"})
    assert codec_key(tmp_path) == "ffn"
    write_manifest(tmp_path, {"format": FORMAT, "files": {}, "codec_key": "middle"})
    with pytest.raises(SiloError, match="not-a-model"):
        codec_key(tmp_path)


def test_a_manifest_that_names_no_files_is_damaged(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"format": FORMAT})
    with pytest.raises(SiloError, match="model-damaged"):
        open_manifest(tmp_path)

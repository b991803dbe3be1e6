"""What a model says of itself is read without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["manifest", "firewall", "audit", "tokenizer", "windows"])
def test_listing_and_verifying_a_model_imports_no_torch(module: str) -> None:
    assert not {"torch", "transformers"} & _loaded(f"silo.lm.{module}")


@pytest.mark.parametrize("module", ["model", "decoder", "encode", "scoring"])
def test_transformers_waits_for_a_network_to_open(module: str) -> None:
    assert "transformers" not in _loaded(f"silo.lm.{module}")


def _loaded(module: str) -> set[str]:
    """What an import brings along."""
    code = f"import sys, {module}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())

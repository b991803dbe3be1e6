"""What a model says of itself is read without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["manifest", "firewall", "audit", "tokenizer", "windows"])
def test_listing_and_verifying_a_model_imports_no_torch(module: str) -> None:
    code = f"import sys, silo.lm.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers"} & set(loaded)

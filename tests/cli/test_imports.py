"""What needs no language model loads none: neither torch nor transformers, which take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from silo.store.selector import Selector
from silo.store.usage import Share, Usage, append_usage
from tests.conftest import record, write_jsonl
from tests.inference.world import make_model, make_store
from tests.store.small import document, small_store

HEAVY = ("torch", "transformers", "faiss", "accelerate")

RUN = """
import json, sys
from silo.cli import main
heavy, commands = json.loads(sys.argv[1])
for command in commands:
    assert main(command) == 0, command
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, f"silo {' '.join(command)} loads {', '.join(loaded)}"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a ledger and a receipt, and records for a corpus."""
    root = tmp_path_factory.mktemp("imports")
    store = small_store(root / "store")
    texts = {name: f"{name}: some words of a document about the winter in the north." for name in "abcd"}
    store.add([document(name, text, owner=f"owner-{name}") for name, text in texts.items()])
    shares = {document("a", texts["a"]).id: Share("owner-a", "", 1.0)}
    append_usage(store.paths, Usage(datetime.now(UTC), 2, shares), held=store.held)
    store.erase(Selector(document="d"))
    store.close()
    (root / "notes").mkdir()
    (root / "notes" / "new.txt").write_text("A note that is not in the store.")
    write_jsonl(root / "in.jsonl", [record("a", "one two three four five six seven")])
    return root


def test_commands_without_a_model_load_no_torch(place: Path) -> None:
    store, receipt = str(place / "store"), str(next((place / "store" / "receipts").iterdir()))
    corpus = str(place / "corpus")
    commands = [
        ["store", "list", store],
        ["store", "stats", store],
        ["store", "digest", store],
        ["store", "verify", store],
        ["store", "search", store, "winter in the north"],
        ["store", "get", store, "a"],
        ["store", "sync", store, "--folder", str(place / "notes"), "--dry-run"],
        ["store", "erase", store, "--owner", "owner-c", "--dry-run"],
        ["store", "erase", store, "--owner", "owner-c"],
        ["store", "allow", store, "--document", document("c", "").id],
        ["store", "replay", store],
        ["store", "compact", store],
        ["store", "backup", store, f"{store}-copy"],
        ["store", "restore", f"{store}-copy", store, "--force"],
        ["credits", store],
        ["receipt", "verify", receipt, "--key", f"{store}/keys/receipts.pem.pub", "--log", f"{store}/log.jsonl"],
        ["corpus", "build", "--jsonl", str(place / "in.jsonl"), "--out", corpus, "--workers", "1"],
        ["corpus", "stats", corpus],
        ["corpus", "overlap", corpus, "--against", str(place / "in.jsonl")],
        ["doctor"],
    ]
    _run(commands)


def test_generating_with_the_engine_loads_no_torch(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    make_store(tmp_path / "store", model).close()
    prompt = ["generate", "--model", str(model), "--store", str(tmp_path / "store"), "--max-tokens", "3", "The quick"]
    _run([prompt, [*prompt, "--guard", "8", "--method", "ric+ngram"], ["doctor", "--model", str(model), "--warm"]])


def test_a_command_that_loads_torch_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="loads torch"):
        _run([["lm", "eval", str(tmp_path), "--jsonl", "none"]], planted="import torch\n")


def _run(commands: list[list[str]], planted: str = "") -> None:
    given = json.dumps([HEAVY, commands])
    code = planted + RUN.replace("== 0, command", "is not None") if planted else RUN
    done = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

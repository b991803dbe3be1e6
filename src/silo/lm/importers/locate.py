"""Where a model to import lies, and whether it can be taken; all that can be said before torch is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import MANIFEST, nearest_path
from silo.lm.manifest import TOKENIZER, open_manifest

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PUBLISHED = "openlm"
CHECKPOINTS = (".pt", ".pth", ".bin", ".safetensors")


def require_place(out: Path, *, force: bool) -> None:
    """Refuse to write over what is there; with `force`, over anything but a model that was imported."""
    if not out.exists():
        return
    if not force:
        raise SiloError("out-exists", f"{out} is already there")
    if not (out / MANIFEST).exists() or open_manifest(out).get("origin") != "imported":
        raise SiloError(
            "out-exists", f"{out} is no imported model: --force replaces nothing else", "choose another --out"
        )


def locate_model(source: str, *, position: str | None, allow_download: bool, tokenizer: Path | None) -> Path:
    """The directory or file of a model that can be imported; of a hub id what was fetched, if that is allowed."""
    if tokenizer is not None and not tokenizer.exists():
        raise SiloError("input-missing", f"there is no tokenizer at {tokenizer}", nearest_path(tokenizer))
    path = Path(source).expanduser()
    if not path.exists() and HUB_ID.fullmatch(source):
        path = _download(source, allow_download)
    if not path.exists():
        raise SiloError("input-missing", f"there is no model at {source}", nearest_path(path))
    if path.is_file() and path.suffix not in (*CHECKPOINTS, ".gguf"):
        raise SiloError("not-a-model", f"{path} is neither a model directory nor a checkpoint")
    if (path / MANIFEST).exists():
        hint = "use it as it is: importing would lose what it was trained on"
        raise SiloError("usage", f"{path} is a model of silo already", hint)
    published = path.suffix in CHECKPOINTS if path.is_file() else read_config(path).get("model_type") == PUBLISHED
    if position is not None and not published:
        raise SiloError("usage", "position is for checkpoints in OpenLM's layout; this model brings its own")
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder, empty if there is none."""
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise SiloError("not-a-model", f"{file} is not valid JSON, or nested without end") from None
    if not isinstance(content, dict):
        raise SiloError("not-a-model", f"{file} is not an object")
    return content


def _download(source: str, allowed: bool) -> Path:
    """Fetch configuration, tokenizer and weights of a hub id, nothing executable."""
    if not allowed:
        hint = "pass --download to fetch it from the Hugging Face hub, or give a local directory"
        raise SiloError("input-missing", f"there is no directory {source}", hint)
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
        if read_config(folder).get("model_type") == PUBLISHED and not list(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.jinja", "*.bin"]))
    except (OSError, ValueError) as error:
        raise SiloError("input-missing", f"{source} cannot be fetched: {error}"[:300]) from error
    return folder


def tokenizer_path(tokenizer: Path | None) -> Path | None:
    """The file, where its folder is named."""
    return tokenizer / TOKENIZER if tokenizer and tokenizer.is_dir() else tokenizer

"""`silo lm import`: somebody else's causal LM -> a model directory that never claims to know its training data.

Taken are Hugging Face directories with safetensors weights, hub ids if a download was asked for, checkpoints in the
layout of the published SILO models, and GGUF files of LLaMA models. No code that comes with a model is ever run.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from silo.errors import SiloError
from silo.files import MANIFEST, file_sha256, fingerprint
from silo.lm.importers import gguf, openlm
from silo.lm.manifest import UNVERIFIED, require_safetensors
from silo.lm.model import LanguageModel, load_network, save_model
from silo.lm.network import parameter_count
from silo.lm.tokenizer import FILE
from silo.text.tokenizer import load_tokenizer

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CHECKPOINTS = (".pt", ".pth", ".bin")
_PUBLISHED = "openlm"


@dataclass(frozen=True, slots=True)
class _SourceModel:
    """A network that was read, its tokenizer file, and what the manifest says of where it came from."""

    network: Any
    tokenizer: Path
    source: Mapping[str, Any]


def import_model(
    source: str,
    out: Path,
    *,
    position: str | None = None,
    allow_download: bool = False,
    tokenizer: Path | None = None,
) -> LanguageModel:
    """Bring a model from a directory, a checkpoint file or the Hugging Face hub to `out`.

    `position` is for checkpoints in OpenLM's layout: "none" (the published ones, default) or "rotary". `tokenizer` is a
    `tokenizer.json` (or its folder) to use instead of the one that came along.
    """
    if out.exists():
        raise SiloError("out-exists", f"{out} is already there")
    path = Path(source).expanduser()
    if not path.exists() and _HUB_ID.fullmatch(source):
        path = _download(source, allow_download)
    if not path.exists():
        raise SiloError("input-missing", f"there is no model at {source}")
    tokenizer_file = tokenizer / FILE if tokenizer and tokenizer.is_dir() else tokenizer
    with tempfile.TemporaryDirectory() as scratch:
        model = _read(path, position, tokenizer_file, Path(scratch))
        _check(model)
        save_model(model.network, model.tokenizer, out, _manifest(model, source))
    return LanguageModel.open(out)


def _download(source: str, allowed: bool) -> Path:
    """Fetch configuration, tokenizer and weights of a hub id, nothing executable."""
    if not allowed:
        hint = "pass --download to fetch it from the Hugging Face hub, or give a local directory"
        raise SiloError("input-missing", f"there is no directory {source}", hint)
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
        if _settings(folder).get("model_type") == _PUBLISHED and not list(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.jinja", "*.bin"]))
    except (OSError, ValueError) as error:
        raise SiloError("input-missing", f"{source} cannot be fetched: {error}"[:300]) from error
    return folder


def _read(path: Path, position: str | None, tokenizer: Path | None, scratch: Path) -> _SourceModel:
    if path.is_file() and path.suffix != ".gguf":
        return _read_openlm(path, _settings(path.parent), position, tokenizer)
    if (path / MANIFEST).exists():
        hint = "use it as it is: importing would lose what it was trained on"
        raise SiloError("usage", f"{path} is a model of silo already", hint)
    settings = {} if path.is_file() else _settings(path)
    if settings.get("model_type") == _PUBLISHED:
        return _read_openlm(_only_checkpoint(path), settings, position, tokenizer)
    if position is not None:
        raise SiloError("usage", "position is for checkpoints in OpenLM's layout; this model brings its own")
    return _read_gguf(path, tokenizer, scratch) if path.is_file() else _read_hugging_face(path, tokenizer)


def _read_hugging_face(path: Path, tokenizer: Path | None) -> _SourceModel:
    require_safetensors(path)
    file = tokenizer or path / FILE
    if not file.is_file():
        raise SiloError("not-a-model", f"{path} has no {FILE}", "pass --tokenizer with the model's tokenizer.json")
    files = [item for item in sorted(path.iterdir()) if item.suffix in (".json", ".jinja", ".safetensors")]
    return _SourceModel(load_network(path), file, _source("hugging-face", files))


def _settings(folder: Path) -> dict[str, Any]:
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


def _only_checkpoint(folder: Path) -> Path:
    files = [item for item in sorted(folder.iterdir()) if item.suffix in (*_CHECKPOINTS, ".safetensors")]
    if len(files) != 1:
        raise SiloError("not-a-model", f"{folder} has {len(files)} files of weights: give the path of one")
    return files[0]


def _read_openlm(file: Path, settings: dict[str, Any], position: str | None, tokenizer: Path | None) -> _SourceModel:
    if file.suffix not in (*_CHECKPOINTS, ".safetensors"):
        raise SiloError("not-a-model", f"{file} is neither a model directory nor a checkpoint")
    beside = tokenizer or file.with_name(FILE)
    if not beside.is_file():
        hint = "pass --tokenizer: the published SILO models use the one of GPT-NeoX-20B"
        raise SiloError("not-a-model", f"{file} comes without a {FILE}", hint)
    position = position or "none"
    begin = load_tokenizer(str(beside)).begin
    network = openlm.convert(openlm.read_checkpoint(file), settings, position=position, begin=begin)
    return _SourceModel(network, beside, {**_source("openlm", [file]), "position": position})


def _read_gguf(file: Path, tokenizer: Path | None, scratch: Path) -> _SourceModel:
    content = gguf.read_gguf(file)
    tokenizer = tokenizer or gguf.write_tokenizer(content, scratch)
    network = gguf.build_llama(content, begin=load_tokenizer(str(tokenizer)).begin)
    return _SourceModel(network, tokenizer, _source("gguf", [file]))


def _source(kind: str, files: list[Path]) -> dict[str, Any]:
    return {"kind": kind, "fingerprint": fingerprint({item.name: file_sha256(item) for item in files})}


def _check(model: _SourceModel) -> None:
    """Refuse a tokenizer that does not fit, and weights that do not compute."""
    tokenizer = load_tokenizer(str(model.tokenizer))
    rows = int(model.network.get_input_embeddings().weight.shape[0])
    if tokenizer.vocabulary > rows:
        hint = "pass --tokenizer with the tokenizer the model was trained with"
        raise SiloError("not-a-model", f"the tokenizer has {tokenizer.vocabulary} ids, the network only {rows}", hint)
    with torch.inference_mode():
        ids = torch.tensor([[tokenizer.begin] * 2])
        if not model.network.eval()(input_ids=ids, use_cache=False).logits.isfinite().all():
            raise SiloError("not-a-model", "the network answers with numbers that are not finite")


def _manifest(model: _SourceModel, source: str) -> dict[str, Any]:
    """What is known of an imported model: where it came from, and that nobody said what it was trained on."""
    name = source if _HUB_ID.fullmatch(source) and not Path(source).exists() else Path(source).name
    return {
        **UNVERIFIED,
        "origin": "imported",
        "source": {**model.source, "name": name},
        "architecture": model.network.config.model_type,
        "parameters": parameter_count(model.network),
    }

"""`silo lm import`: somebody else's causal LM -> a model directory that never claims to know its training data.

Taken are Hugging Face directories with safetensors weights, hub ids if a download was asked for, checkpoints in the
layout of the published SILO models, and GGUF files of LLaMA models. No code that comes with a model is ever run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from silo.errors import SiloError
from silo.files import file_sha256, fingerprint
from silo.lm.importers import gguf, openlm
from silo.lm.importers.locate import (
    CHECKPOINTS,
    HUB_ID,
    PUBLISHED,
    locate_model,
    read_config,
    require_place,
    tokenizer_path,
)
from silo.lm.manifest import UNVERIFIED, require_safetensors
from silo.lm.model import LanguageModel, load_network, save_model
from silo.lm.network import parameter_count
from silo.lm.tokenizer import FILE
from silo.progress import Advance
from silo.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class _SourceModel:
    """A network that was read, its tokenizer file, and what the manifest says of where it came from.

    `extra` are files to lie beside the weights.
    """

    network: Any
    tokenizer: Path
    source: Mapping[str, Any]
    extra: Mapping[str, bytes] = field(default_factory=dict)


def import_model(
    source: str,
    out: Path,
    *,
    position: str | None = None,
    allow_download: bool = False,
    tokenizer: Path | None = None,
    force: bool = False,
    advance: Advance = lambda *_: None,
) -> LanguageModel:
    """Bring a model from a directory, a checkpoint file or the Hugging Face hub to `out`.

    `position` is for checkpoints in OpenLM's layout: "none" (the published ones, default) or "rotary". `tokenizer` is a
    `tokenizer.json` (or its folder) to use instead of the one that came along. With `force` an imported model at `out`
    is replaced, once the new one is whole.
    """
    require_place(out, force=force)
    path = locate_model(source, position=position, allow_download=allow_download, tokenizer=tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        model = _read(path, position, tokenizer_path(tokenizer), Path(scratch), advance)
        _check(model)
        save_model(model.network, model.tokenizer, out, _manifest(model, source), extra=model.extra, replace=force)
    return LanguageModel.open(out)


def _read(path: Path, position: str | None, tokenizer: Path | None, scratch: Path, advance: Advance) -> _SourceModel:
    if path.is_file() and path.suffix != ".gguf":
        return _read_openlm(path, read_config(path.parent), position, tokenizer)
    config = {} if path.is_file() else read_config(path)
    if config.get("model_type") == PUBLISHED:
        return _read_openlm(_only_checkpoint(path), config, position, tokenizer)
    return _read_gguf(path, tokenizer, scratch, advance) if path.is_file() else _read_hugging_face(path, tokenizer)


def _read_hugging_face(path: Path, tokenizer: Path | None) -> _SourceModel:
    require_safetensors(path)
    file = tokenizer or path / FILE
    if not file.is_file():
        raise SiloError("not-a-model", f"{path} has no {FILE}", "pass --tokenizer with the model's tokenizer.json")
    files = [item for item in sorted(path.iterdir()) if item.suffix in (".json", ".jinja", ".safetensors")]
    return _SourceModel(load_network(path), file, _source("hugging-face", files))


def _only_checkpoint(folder: Path) -> Path:
    files = [item for item in sorted(folder.iterdir()) if item.suffix in CHECKPOINTS]
    if len(files) != 1:
        raise SiloError("not-a-model", f"{folder} has {len(files)} files of weights: give the path of one")
    return files[0]


def _read_openlm(file: Path, config: dict[str, Any], position: str | None, tokenizer: Path | None) -> _SourceModel:
    beside = tokenizer or file.with_name(FILE)
    if not beside.is_file():
        hint = "pass --tokenizer: the published SILO models use the one of GPT-NeoX-20B"
        raise SiloError("not-a-model", f"{file} comes without a {FILE}", hint)
    position = position or "none"
    begin = load_tokenizer(str(beside)).begin
    network = openlm.convert(openlm.read_checkpoint(file), config, position=position, begin=begin)
    return _SourceModel(network, beside, {**_source("openlm", [file]), "position": position})


def _read_gguf(file: Path, tokenizer: Path | None, scratch: Path, advance: Advance) -> _SourceModel:
    content = gguf.read_gguf(file, advance)
    tokenizer = tokenizer or gguf.write_tokenizer(content, scratch)
    network = gguf.build_llama(content, begin=load_tokenizer(str(tokenizer)).begin)
    return _SourceModel(network, tokenizer, _source("gguf", [file]), gguf.blocks_file(content, network))


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
    name = source if HUB_ID.fullmatch(source) and not Path(source).exists() else Path(source).name
    return {
        **UNVERIFIED,
        "origin": "imported",
        "source": {**model.source, "name": name},
        "architecture": model.network.config.model_type,
        "parameters": parameter_count(model.network),
    }

"""What a model directory says of itself, read without torch: its manifest, its checksums, the key of its codec.

A model directory is an ordinary Hugging Face directory (safetensors) with a `manifest.json` on top, written last, that
holds the SHA-256 of every other file. A directory without one opens too, as somebody else's model. `codec/` holds the
model's codec, and `codec_key` in the manifest the kind of key it was learned for.

A directory is replaced by another that grows beside it, `<name>.saving`, while the old one is `<name>.replaced` for a
moment. Whoever opens a model that is not there and finds these two finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from silo.checksums import checksums
from silo.errors import SiloError
from silo.files import (
    MANIFEST,
    commit,
    disk_errors,
    file_sha256,
    fingerprint,
    locked_directory,
    nearest_path,
    read_manifest,
    remove_tree,
)
from silo.text.tokenizer import Tokenizer, load_tokenizer

Key = Literal["final", "ffn"]

FORMAT = "silo-model-1"
TOKENIZER = "tokenizer.json"
UNVERIFIED = {"format": FORMAT, "origin": "imported, unverified", "training_data": "unknown"}
"""The manifest of a Hugging Face directory that silo did not write."""

CODEC_FOLDER = "codec"
"""Where the codec lies in a model directory."""

_GROWING, _REPLACED, _REPLACED_ONCE = ".saving", ".replaced", ".old"
"""Endings of the new and the old one of two directories; `.old` is of earlier versions and never removed."""

BLOCKS_FILE = "model.blocks"
"""Safetensors: NAME.scales and NAME.offsets [outputs, blocks] of matrices whose float32 were made of blocks."""

_WEIGHTS = ".safetensors"
_FUNCTION = ("config.json", TOKENIZER)
_LOADED = (*_FUNCTION, "tokenizer_config.json", "chat_template.jinja", "generation_config.json", BLOCKS_FILE)


def model_fingerprint(manifest: Mapping[str, Any]) -> str:
    """The fingerprint of the model a manifest describes."""
    files = {name: mark for name, mark in manifest["files"].items() if name in _FUNCTION or name.endswith(_WEIGHTS)}
    return fingerprint(files)


def key_fingerprint(model: str, key: Key) -> str:
    """Names a model and a kind of key; the model alone for `final`."""
    return model if key == "final" else fingerprint({"model": model, "key": key})


def read_key(root: Path) -> tuple[Key, str]:
    """The kind of key that stores made with a model directory have, and the fingerprint of the two together."""
    key = codec_key(root)
    return key, key_fingerprint(model_fingerprint(open_manifest(root)), key)


def open_manifest(root: Path) -> dict[str, Any]:
    """The manifest of a model directory; one is made up for a Hugging Face directory that has none."""
    if not recover_model(root):
        raise SiloError("input-missing", f"there is no directory {root}", nearest_path(root))
    if not (root / MANIFEST).exists():
        require_safetensors(root)
        return {**UNVERIFIED, "files": checksums(root, _file_names(root))}
    manifest = read_manifest(root, missing="not-a-model", damaged="model-damaged")
    if manifest.get("format") != FORMAT:
        raise SiloError("not-a-model", f"{root} has format {manifest.get('format')!r}, not {FORMAT!r}")
    if not isinstance(manifest.get("files"), dict):
        raise SiloError("model-damaged", f"{root / MANIFEST} names no files")
    return manifest


def require_model(root: Path) -> None:
    """Refuse what is no model directory; nothing is read that takes time."""
    if not recover_model(root):
        raise SiloError("input-missing", f"there is no directory {root}", nearest_path(root))
    if (root / MANIFEST).exists():
        open_manifest(root)
    else:
        require_safetensors(root)
    if not (root / TOKENIZER).is_file():
        raise SiloError("not-a-model", f"{root} has no {TOKENIZER}", "import the model with --tokenizer tokenizer.json")


def open_tokenizer(root: Path) -> Tokenizer:
    """The tokenizer of a model directory, with which text can be read before the network is loaded."""
    require_model(root)
    if (root / MANIFEST).exists():
        files = open_manifest(root)["files"]
        _compare(root, {name: mark for name, mark in files.items() if name == TOKENIZER}, again=False)
    return load_tokenizer(str(root / TOKENIZER))


def begin_text(root: Path) -> str:
    """How the beginning-of-text token of a model directory is written."""
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    mark = HuggingFaceTokenizer.from_file(str(root / TOKENIZER)).id_to_token(load_tokenizer(str(root)).begin)
    return mark or "<|endoftext|>"


def growing_place(root: Path) -> Path:
    """Where a model directory grows until it is whole."""
    return root.with_name(root.name + _GROWING)


def is_in_between(root: Path) -> bool:
    """True for what is only there while a model is replaced."""
    return root.name.endswith((_GROWING, _REPLACED))


def replace_model(root: Path) -> None:
    """Put the directory that has grown beside a model in its place; it is whole and durable."""
    replaced = root.with_name(root.name + _REPLACED)
    remove_tree(replaced)
    commit(root, replaced)
    commit(growing_place(root), root)
    with disk_errors(replaced):
        remove_tree(replaced)


def recover_model(root: Path) -> bool:
    """Put a model back that a crash left between two names, the new one if it is whole; False if there is none."""
    if root.is_dir():
        return True
    root = root.resolve()
    fresh, *kept = (root.with_name(root.name + ending) for ending in (_GROWING, _REPLACED, _REPLACED_ONCE))
    if not fresh.is_dir() or not any(place.is_dir() for place in kept):
        return False
    with suppress(FileNotFoundError), locked_directory(fresh, wait=True):
        # who replaced the model is done with it, or dead
        whole = [place for place in (fresh, *kept) if _is_whole(place)]
        if whole and not root.is_dir():
            commit(whole[0], root)
    return root.is_dir()


def _is_whole(root: Path) -> bool:
    try:
        verify_files(root, read_manifest(root, missing="not-a-model", damaged="model-damaged"))
    except (SiloError, LookupError, AttributeError):
        return False
    return True


def verify_files(root: Path, manifest: Mapping[str, Any]) -> None:
    """Compare every byte of every file a manifest names with its checksum."""
    _compare(root, manifest["files"], again=True)


def verify_network(root: Path, manifest: Mapping[str, Any], *, again: bool = False) -> None:
    """Compare what a network and its tokenizer are loaded from with the manifest, before it is loaded.

    Files that were compared before and have not changed since are not read, but with `again`.
    """
    files = manifest["files"]
    loaded = {name: mark for name, mark in files.items() if name in _LOADED or name.endswith(_WEIGHTS)}
    _compare(root, loaded, again=again)


def _compare(root: Path, expected: Mapping[str, str], *, again: bool) -> None:
    for name in expected:
        if not (root / name).is_file():
            raise SiloError("model-damaged", f"{root / name} is missing")
    try:
        found = checksums(root, expected, again=again)
    except OSError as error:
        raise SiloError("input-unreadable", f"{root} cannot be read: {error.strerror}") from error
    for name, mark in expected.items():
        if found[name] != mark:
            raise SiloError("model-damaged", f"{root / name} differs from the manifest")


def require_safetensors(root: Path) -> None:
    """Refuse a directory that is no Hugging Face model, or one whose weights are pickled."""
    if not (root / "config.json").is_file():
        raise SiloError("not-a-model", f"{root} has no config.json")
    if any(root.glob("*" + _WEIGHTS)):
        return
    if any(root.glob("*.bin")) or any(root.glob("*.pt")):
        hint = "pickled weights can run code: save them again as safetensors where you trust them"
        raise SiloError("not-a-model", f"{root} holds pickled weights only", hint)
    raise SiloError("not-a-model", f"{root} has no *{_WEIGHTS}")


def file_checksums(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a model directory but its manifest."""
    return {name: file_sha256(root / name) for name in _file_names(root)}


def _file_names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_file() and path.name != MANIFEST)


def codec_key(root: Path) -> Key:
    """The kind of key a model's codec was learned for; `final` where the model does not say."""
    if not (root / MANIFEST).exists():
        return "final"
    key: Key = open_manifest(root).get("codec_key", "final")
    if key not in get_args(Key):
        raise SiloError("not-a-model", f"the codec of {root} is for keys of an unknown kind: {key!r}")
    return key

"""Kind `hub`: JSON lines and Parquet files of a Hugging Face dataset, or of a local folder laid out like one.

The dataset card's licence tag covers the collection and is often wrong: it counts as weak evidence only, and yields to
what the recipe states about a folder unless it restricts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined, Tier
from silo.sources.reader.fields import assess_statement, defaults_of
from silo.sources.reader.plan import (
    SourcePart,
    describe_file,
    escape_name,
    is_excluded,
    resolve_signals,
    signals_stamp,
    size_of,
    stamp_of,
)
from silo.sources.recordfiles import PARQUET, read_record_file

_LINES = tuple(name + packed for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst"))
_ENDINGS = (*_LINES, ".parquet")
_NOT_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "config.json", "state.json"})
_CARD = "README.md"
_CONFIDENCE = 0.3
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def plan_hub(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """One part for each data file; a dataset that is not a local folder is downloaded now."""
    recipe = resolve_signals(recipe, base)
    parts = [part for name in recipe.paths for part in _plan_dataset(name, recipe, base)]
    if not parts:
        raise SiloError("input-empty", f"no JSON lines or Parquet files in {', '.join(recipe.paths) or '-'}")
    return parts


def _plan_dataset(name: str, recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """All data files, or those below a folder: `owner/name:folder`."""
    local = _local(name, base)
    dataset, _, folder = (name, "", "") if local.is_dir() else name.partition(":")
    local = _local(dataset, base)
    root = local if local.is_dir() else _download(dataset, folder)
    title = local.name if local.is_dir() else dataset
    salt = signals_stamp(recipe) + describe_file(_CARD, root / _CARD)
    inside = (root / folder).rglob("*")
    files = sorted(path for path in inside if path.name.endswith(_ENDINGS) and path.name not in _NOT_DATA)
    return [
        SourcePart(
            recipe=recipe,
            path=str(root),
            label=escape_name(f"{title}/{relative}"),
            bytes=size_of(path),
            stamp=stamp_of([describe_file(relative, path)], salt),
            members=(relative,),
        )
        for path in files
        if not (relative := path.relative_to(root).as_posix()).startswith(".")
        and not is_excluded(path, recipe.exclude, root)
    ]


def _local(name: str, base: Path) -> Path:
    return (base / Path(name).expanduser()).absolute()


def _download(name: str, folder: str) -> Path:
    if not _REPOSITORY.fullmatch(name) or ".." in PurePosixPath(folder).parts or folder.startswith("/"):
        raise SiloError("input-missing", f"{name} is neither a folder nor the name of a dataset (owner/name)")
    try:
        import huggingface_hub
    except ImportError:
        hint = "run: pip install 'silo-lm[hub]'"
        raise SiloError("extra-missing", "reading from the Hugging Face hub needs huggingface_hub", hint) from None
    inside = f"{folder.strip('/')}/" if folder else ""
    wanted = [_CARD, *(f"{inside}*{ending}" for ending in _ENDINGS)]
    try:
        return Path(huggingface_hub.snapshot_download(name, repo_type="dataset", allow_patterns=wanted))
    except Exception as error:
        # Network, login and missing datasets come as many types; for the user they are one thing.
        raise SiloError("input-missing", f"dataset {name} cannot be downloaded: {str(error)[:200]}") from error


def read_hub(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The records of one data file, with the dataset's name and folder where they name no source and domain."""
    relative = PurePosixPath(part.members[0])
    defaults = replace(
        defaults_of(part, limits, extra=_telling_tags(part)),
        source=part.recipe.name or part.label.removesuffix(escape_name(f"/{relative}")),
        domain=part.recipe.domain or _subset(relative),
        id_from_text=True,
    )
    path = Path(part.path) / relative
    expected = PARQUET if relative.name.endswith(".parquet") else "jsonl"
    yield from read_record_file(path, part.label, limits, defaults, expected=expected)


def _telling_tags(part: SourcePart) -> tuple[Evidence, ...]:
    """The card's tags; beside a licence that the recipe states for its folders, only those that restrict."""
    tags = card_evidence(Path(part.path))
    return tuple(tag for tag in tags if tag.tier == Tier.restricted) if part.recipe.license else tags


def _subset(relative: PurePosixPath) -> str:
    return next((name for name in relative.parts[:-1] if name != "data"), "")


def card_evidence(root: Path) -> tuple[Evidence, ...]:
    """The licence tags in the front matter of a dataset card."""
    try:
        with (root / _CARD).open("rb") as stream:
            text = stream.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ()
    front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    tags = _tags(front[1]) if front else []
    return tuple(assess_statement(tag, f"{_CARD}: license", "hub-tag", _CONFIDENCE) for tag in tags)


def _tags(front: str) -> list[str]:
    tags: list[str] = []
    inside = False
    for line in front.splitlines():
        item = re.match(r"\s*-\s+(.+)", line)
        if inside and item:
            tags.append(item[1])
            continue
        key = re.match(r"license\s*:\s*(.*)", line)
        inside = bool(key)
        if key and key[1]:
            tags += key[1].strip("[]").split(",")
    return [tag.strip().strip("'\"")[:200] for tag in tags if tag.strip()]

"""What experiments read: any folder of `DOMAIN.{train,validation,test}.jsonl[.zst]`, made fit for a fair comparison.

Documents that belong together (a thread of mail, a project of code) go to one split together: their files are pooled
and every group is dealt by a hash of its name. Within a split the order is that of a hash too, so that the first N
documents are a sample. Documents beyond `train_bytes` of train text are left out, so that a reference model can read
all that a store holds. A record's domain is that of its file, its id its line where it has none.
"""

from __future__ import annotations

import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from silo.errors import SiloError
from silo.files import canonical_json, disk_errors, fingerprint, read_json, remove_file, write_atomic, write_json
from silo.recipe import Limits
from silo.sources.reader.bytes import read_file_lines
from silo.text.strict_json import parse_object

SPLITS = ("train", "validation", "test")
_WHOLE = "whole"
"""An empty file beside the data once all of its domains are there."""
_HELD_OUT = 0.1
"""Of the groups of a pooled domain, this share is validation text and as much is test text."""

_NAME = re.compile(r"(?P<domain>[A-Za-z0-9_-]+)\.(?P<split>train|validation|test)\.jsonl(\.zst|\.gz)?")
_MONTHS = "january february march april may june july august september october november december"
_SUBJECT_NOISE = re.compile(rf"\b(re|fw|fwd)\b|\b({'|'.join(_MONTHS.split())})\b|[\d\W_]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """`together` says what keeps documents of a domain in one split: `thread` (a mail's subject) or a metadata key.

    `whole` domains are not cut; those of `deny_training` lose the train right; `groups` are domains near each other.
    """

    train_bytes: int = 3_000_000
    whole: tuple[str, ...] = ()
    deny_training: tuple[str, ...] = ()
    together: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)


class _Line(NamedTuple):
    """A record as it is written, by what it is sorted, and the bytes of its text."""

    order: bytes
    content: bytes
    size: int


def find_domains(data: Path) -> dict[str, dict[str, Path]]:
    """The files of a folder by domain and split; domains without train text are left out."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(data.iterdir()) if data.is_dir() else []:
        if match := _NAME.fullmatch(path.name):
            found.setdefault(match["domain"], {})[match["split"]] = path
    complete = {domain: files for domain, files in found.items() if len(files) == len(SPLITS)}
    if not complete:
        hint = "it should hold DOMAIN.train.jsonl, DOMAIN.validation.jsonl and DOMAIN.test.jsonl, plain or .zst"
        raise SiloError("input-missing", f"there is no domain with all three splits in {data}", hint)
    return complete


def prepare_data(data: Path, out: Path, recipe: DataRecipe) -> dict[str, Any]:
    """Write the files of every domain to `out`; what is there already is kept. Returns documents and bytes by split.

    A folder is of one data for good: corpus, models and stores were made from it.
    """
    domains = find_domains(data)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    whole = (out / _WHOLE).exists()
    made = {note.stem for note in out.glob("*.json")}
    if whole and made != domains.keys():
        raise _other_data(out, sorted(made ^ domains.keys()))
    counts = {}
    for domain, files in domains.items():
        group, most = recipe.together.get(domain, ""), 0 if domain in recipe.whole else recipe.train_bytes
        key = fingerprint([domain, group, most, {split: _identity(path) for split, path in files.items()}])
        note = out / f"{domain}.json"
        known = read_json(note) if note.exists() else {}
        if whole and known["key"] != key:
            raise _other_data(out, [domain])
        if known.get("key") != key:
            write_json(note, {"key": key, "splits": _prepare_domain(domain, files, out, group, most)})
        counts[domain] = read_json(note)["splits"]
    for domain in made - domains.keys():
        remove_file(out / f"{domain}.json")
    (out / _WHOLE).touch()
    return counts


def _other_data(out: Path, domains: list[str]) -> SiloError:
    differ = "differs" if len(domains) == 1 else "differ"
    what = f"{out.parent} was made from other data, or by another data.toml: {', '.join(domains)} {differ}"
    return SiloError("out-exists", what, "give another folder with --work, or remove this one")


def _identity(path: Path) -> list[Any]:
    return [path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]


def _prepare_domain(domain: str, files: dict[str, Path], out: Path, group: str, most: int) -> dict[str, Any]:
    pools: dict[str, list[_Line]] = {split: [] for split in SPLITS}
    for split, path in files.items():
        for record in _records(path, domain):
            place = _deal(domain, _group_name(record, group)) if group else split
            pools[place].append(_Line(_order(record), canonical_json(record), len(record["text"].encode())))
    counts = {}
    for split, pool in pools.items():
        lines = _first_bytes(sorted(pool), most if split == "train" else 0)
        content = b"".join(line.content + b"\n" for line in lines)
        write_atomic(out / f"{domain}.{split}.jsonl.zst", zstandard.ZstdCompressor(level=3).compress(content))
        counts[split] = {"documents": len(lines), "bytes": sum(line.size for line in lines)}
    return counts


def _records(path: Path, domain: str) -> Iterator[dict[str, Any]]:
    limits = Limits()
    for number, line in enumerate(read_file_lines(path, limits), start=1):
        where = f"{path.name}:line {number}"
        if line is None:
            raise SiloError("line-too-long", f"{where} is too long")
        if not line.strip():
            continue
        try:
            record = parse_object(line.removeprefix(BOM_UTF8), limits.max_depth)
        except SiloError as error:
            raise SiloError(error.code, f"{where}: {error.message}") from None
        if not isinstance(record.get("text"), str):
            raise SiloError("field-missing", f"{where} has no text")
        named = record.get("id")
        yield {**record, "id": where if named is None else named, "domain": domain}


def _group_name(record: dict[str, Any], group: str) -> str:
    """What a document belongs to; one without such a name stands for itself."""
    if group == "thread":
        subject = record["text"].partition("\n")[0].lower().removeprefix("subject:")
        name = _SUBJECT_NOISE.sub(" ", subject).strip()
    else:
        metadata = record.get("metadata")
        name = str(metadata.get(group, "")) if isinstance(metadata, dict) else ""
    return name or str(record["id"])


def _deal(domain: str, name: str) -> str:
    place = int.from_bytes(hashlib.sha256(f"{domain}\n{name}".encode()).digest()[:8]) / 2**64
    return "test" if place < _HELD_OUT else "validation" if place < 2 * _HELD_OUT else "train"


def _order(record: dict[str, Any]) -> bytes:
    return hashlib.sha256(str(record["id"]).encode()).digest()


def _first_bytes(lines: list[_Line], most: int) -> list[_Line]:
    """Lines of so many bytes of text together; 0 keeps all."""
    if not most:
        return lines
    kept, size = [], 0
    for line in lines:
        if size + line.size <= most:
            kept.append(line)
            size += line.size
    return kept

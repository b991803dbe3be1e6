"""Kind `folder`: files that people have, with a metadata file beside them; what nobody speaks for has no licence.

Plain text is read here; every other kind is parsed in another process (`documents/parser.py`), with the places in it.

Forms of metadata: metadata.jsonl (one object per line), metadata.csv (a header line), metadata.json (a list of objects,
or an object from path to object). A row has `path` and any of license, owner, url, domain, source; other keys are kept.
A doubtful row is reported, never guessed at.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined
from silo.rights import load_signals
from silo.sources.documents.headings import find_sections
from silo.sources.documents.kinds import ENDINGS, missing_library
from silo.sources.documents.parsed import Parsed
from silo.sources.documents.parser import DocumentParser
from silo.sources.mbox import split_messages
from silo.sources.reader.bytes import read_file_lines
from silo.sources.reader.fields import Defaults, defaults_of, make_candidate, stated_licences
from silo.sources.reader.files import (
    Entry,
    display_path,
    locate_file,
    plan_members,
    read_bytes,
    read_text,
    require_members,
)
from silo.sources.reader.plan import (
    SourcePart,
    describe_file,
    expand_folders,
    refuse_special,
    resolve_signals,
    size_of,
)
from silo.sources.reader.skipped import TAKEN, USED
from silo.text.normalise import normalise
from silo.text.strict_json import parse_object

_TEXT = frozenset({".txt", ".md", ".markdown", ".rst", ".text"})
_MAILBOX = ".mbox"
_RECORDS = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".parquet")
_OLD_FORMATS = frozenset({".doc", ".ppt", ".xls", ".rtf"})
_NOT_ENTERED = frozenset({".git", ".hg", ".svn", ".bzr", "CVS"})
_HEAD_BYTES = 4096
_SIGNALS = ("robots.txt", "tdmrep.json", "rsl.xml")
_METADATA_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.json")
_PATH_KEYS = ("path", "file", "file_name", "filename")
_RECORD_KEYS = frozenset({"license", "licence", "owner", "url", "domain", "source", "tier", "text", "metadata"})


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Rows by relative path (several rows on one file all count), and the rows that could not be read."""

    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    problems: tuple[Quarantined, ...]


def plan_folder(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """Parts over the documents of each folder; the metadata file is a member that yields only its own problems."""
    recipe = resolve_signals(recipe, base)
    parts: list[SourcePart] = []
    for root in expand_folders(recipe, base):
        metadata = _metadata_path(root, recipe.metadata, base)
        own = replace(recipe, metadata=str(metadata or ""))
        salt = describe_file(metadata.name, metadata) if metadata else ""
        about = {*_SIGNALS, *_METADATA_NAMES, _relative_to(metadata, root)}

        def choose(entry: Entry, root: Path = root, about: set[str] = about) -> str:
            return USED if entry.relative in about else _choose(entry, root)

        planned = plan_members(root, own, choose=choose, base=base, skip=_NOT_ENTERED, salt=salt)
        parts += [replace(planned[0], members=("", *planned[0].members)), *planned[1:]] if planned else []
    return require_members(parts, f"no documents in {', '.join(recipe.paths)}")


def plan_file(path: Path) -> SourcePart:
    """One file of a folder, with what is said about it beside it."""
    root = path.absolute().parent
    metadata = _metadata_path(root, "", root)
    recipe = SourceRecipe("folder", (str(root),), metadata=str(metadata or ""))
    return SourcePart(recipe, str(root), root.name, size_of(path), "", members=(path.name,))


def _choose(entry: Entry, root: Path) -> str:
    """`TAKEN` for a kind that is read, else the reason why the file is skipped."""
    if entry.suffix in _TEXT:
        return TAKEN
    if kind := ENDINGS.get(entry.suffix):
        return "extra-missing" if missing_library(kind) else TAKEN
    if entry.relative.lower().endswith(_RECORDS):
        return "records"
    if entry.suffix in _OLD_FORMATS:
        return "old-format"
    return "not-text" if _is_binary(root / entry.relative) else "kind-unknown"


def _is_binary(path: Path) -> bool:
    try:
        refuse_special(path)
        with path.open("rb") as stream:
            return b"\0" in stream.read(_HEAD_BYTES)
    except (OSError, SiloError):
        return False


def _relative_to(metadata: Path | None, root: Path) -> str:
    return metadata.relative_to(root).as_posix() if metadata and metadata.is_relative_to(root) else ""


def read_folder(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The documents of one part, each with what the metadata and the folder's signals say about it."""
    root = Path(part.path)
    metadata = _Metadata({}, ())
    if part.recipe.metadata:
        metadata = _load_metadata(Path(part.recipe.metadata), limits)
    defaults = replace(defaults_of(part, limits), label=root.name, source=part.recipe.name or root.name)
    beside = load_signals(root) if any((root / name).exists() for name in _SIGNALS) else None
    with DocumentParser(limits) as parser:
        for relative in part.members:
            if not relative:
                yield from (replace(bad, where=f"{root.name}/{bad.where}") for bad in metadata.problems)
                continue
            signals = beside.evidence_for("/" + relative) if beside else ()
            about = _About(relative, metadata.rows.get(relative, ()), signals)
            for where, item in _read_file(root, relative, limits, parser):
                yield from _judge_file(display_path(root, relative) + where, item, about, defaults)


@dataclass(frozen=True, slots=True)
class _About:
    """What is known about a file from beside it."""

    relative: str
    rows: tuple[Mapping[str, Any], ...]
    signals: tuple[Evidence, ...]


def _read_file(
    root: Path, relative: str, limits: Limits, parser: DocumentParser
) -> Iterator[tuple[str, Parsed | SiloError]]:
    """The documents of a file, each with where it is in the file: one, or the messages of a mailbox."""
    ending = PurePosixPath(relative).suffix.lower()
    number = 0
    try:
        if ending == _MAILBOX:
            for number, raw in enumerate(split_messages(locate_file(root, relative), limits), start=1):
                yield f":message {number}", _parse(parser, "mail", raw)
        elif ending in ENDINGS:
            parsed = _parse(parser, ENDINGS[ending], read_bytes(root, relative, limits.max_record_bytes))
            yield "", replace(parsed, identity="") if isinstance(parsed, Parsed) else parsed
        else:
            text = read_text(root, relative, limits.max_record_bytes)
            yield "", Parsed(text, find_sections(normalise(text), ending))
    except SiloError as error:
        yield f":message {number + 1}" if number else "", error


def _parse(parser: DocumentParser, kind: str, data: bytes | SiloError) -> Parsed | SiloError:
    if isinstance(data, SiloError):
        return data
    try:
        return parser.parse(kind, data)
    except SiloError as error:
        return error


def _judge_file(
    where: str, item: Parsed | SiloError, about: _About, defaults: Defaults
) -> Iterator[Candidate | Quarantined]:
    """The candidate of a document, and the places of it that could not be read."""
    if isinstance(item, SiloError):
        yield Quarantined(where, item.code, item.message)
        return
    try:
        yield _candidate(item, about, defaults)
    except SiloError as error:
        yield Quarantined(where, error.code, error.message)
    yield from (Quarantined(f"{where}:{label}", "document-invalid", why) for label, why in item.unread)


def _candidate(parsed: Parsed, about: _About, defaults: Defaults) -> Candidate:
    first = about.rows[0] if about.rows else {}
    named = replace(defaults, label=f"{defaults.label}/{about.relative}")
    extra = {key: value for key, value in first.items() if key not in _RECORD_KEYS and key not in _PATH_KEYS}
    is_mail = ENDINGS.get(PurePosixPath(about.relative).suffix.lower()) == "mail"
    record = {
        "owner": parsed.owner,
        "domain": defaults.domain or ("mail" if is_mail else ""),
        **{key: first.get(key) for key in _RECORD_KEYS if key in first},
        "id": f"{about.relative}#{parsed.identity}" if parsed.identity else about.relative,
        "text": parsed.text,
        "metadata": {**parsed.meta, **extra},
    }
    candidate = make_candidate(record, named)
    further = [evidence for row in about.rows[1:] for evidence in stated_licences(row, {}, named)]
    place = () if candidate.url else defaults.signal_evidence("/" + about.relative)
    evidence = (*candidate.evidence, *further, *parsed.claims.evidence(named), *place, *about.signals)
    return replace(candidate, evidence=evidence)


def _metadata_path(root: Path, name: str, base: Path) -> Path | None:
    """The metadata file of a folder: the one given (below the folder or the recipe), or one of the usual names."""
    if name:
        places = [place for place in (root / name, base / Path(name).expanduser()) if place.exists()]
        if not places:
            raise SiloError("input-missing", f"there is no metadata file {name}")
        return places[0].absolute()
    return next((root / name for name in _METADATA_NAMES if (root / name).exists()), None)


def _load_metadata(path: Path, limits: Limits) -> _Metadata:
    """Read a metadata file whole; problems are collected per row."""
    rows: dict[str, tuple[Mapping[str, Any], ...]] = {}
    problems: list[Quarantined] = []
    try:
        for where, row in _rows(path, limits):
            if isinstance(row, SiloError):
                problems.append(Quarantined(where, row.code, row.message))
                continue
            try:
                place = _row_path(row)
            except SiloError as error:
                problems.append(Quarantined(where, error.code, error.message))
                continue
            rows[place] = (*rows.get(place, ()), row)
    except SiloError as error:
        problems.append(Quarantined(path.name, "metadata-invalid", error.message))
    return _Metadata(rows, tuple(problems))


def _row_path(row: Mapping[str, Any]) -> str:
    value = next((row[key] for key in _PATH_KEYS if row.get(key)), None)
    if not isinstance(value, str):
        raise SiloError("metadata-invalid", "the row names no path")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\0" in value:
        raise SiloError("path-unsafe", f"the row names a path outside the folder: {value[:200]!r}")
    return path.as_posix()


def _rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    if path.suffix == ".csv":
        return _csv_rows(path, limits)
    if path.suffix == ".json":
        return _json_rows(path, limits)
    return _jsonl_rows(path, limits)


def _jsonl_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    for number, line in enumerate(read_file_lines(path, limits), start=1):
        where = f"{path.name}:line {number}"
        if line is None:
            yield where, SiloError("metadata-invalid", "the row is too long")
        elif line.strip():
            try:
                yield where, parse_object(line.removeprefix(b"\xef\xbb\xbf"), limits.max_depth)
            except SiloError as error:
                yield where, SiloError("metadata-invalid", error.message)


def _csv_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    reader = csv.DictReader(io.StringIO(_read_bounded(path, limits).decode("utf-8-sig"), newline=""), strict=True)
    try:
        names = list(reader.fieldnames or ())
        if len(set(names)) != len(names):
            raise SiloError("metadata-invalid", "a column is given twice")
        for row in reader:
            where = f"{path.name}:line {reader.line_num}"
            if None in row or None in row.values():
                yield where, SiloError("metadata-invalid", "the row has another number of columns than the header")
            else:
                yield where, {key: value for key, value in row.items() if value}
    except csv.Error as error:
        raise SiloError("metadata-invalid", f"line {reader.line_num}: {error}") from None


def _json_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    data = _read_bounded(path, limits)
    content = parse_object(b'{"rows":' + data.removeprefix(b"\xef\xbb\xbf") + b"}", limits.max_depth)
    rows = content["rows"]
    if isinstance(rows, dict):
        rows = [{**row, "path": name} if isinstance(row, dict) else row for name, row in rows.items()]
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
        good = isinstance(row, dict)
        yield f"{path.name}:row {number}", row if good else SiloError("metadata-invalid", "a row must be an object")


def _read_bounded(path: Path, limits: Limits) -> bytes:
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(limits.max_record_bytes + 1)
        data.decode("utf-8")
    except OSError as error:
        raise SiloError("metadata-invalid", f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SiloError("metadata-invalid", f"{path.name} is not UTF-8") from None
    if len(data) > limits.max_record_bytes:
        raise SiloError("metadata-invalid", f"{path.name} is larger than {limits.max_record_bytes:,} bytes")
    return data

"""The signed answer to an erasure, which anybody can check without the store, the network or the names of documents.

A receipt is one JSON object (see `draft_receipt`). Its `signature` is Ed25519 (base64) over the canonical JSON of the
other fields, and the log entry it names holds a fingerprint of all of them but these two. A document appears only as
SHA-256(salt || id): with the salt, which goes to the owner and is not kept, the receipt speaks of that document.

Receipts of the format `silo-receipt-1` are still read: their log entry binds neither the key nor the checks, and those
made after a crash call checks passed that were not made, which `check_receipt` recognises.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from silo.errors import SiloError
from silo.files import fingerprint
from silo.signing import SigningKey, decode, encode, parse_public_key, public_bytes, sign, signature_fits
from silo.store.erasure.log import AuditLog, Head
from silo.text.strict_json import parse_json

FORMAT = "silo-receipt-2"
_FIRST_FORMAT = "silo-receipt-1"
ERASURE, REPLACEMENT = "erasure", "replacement"
SALT_BYTES = 32

EXCLUSIONS = (
    "The weights of language models are not covered: `models` says which of them list a document as training text.",
    "Backups, snapshots and copies of the store made earlier are not covered.",
    "Answers, quotations and exports that were already served are not covered.",
    "Settings that were tuned while the documents were in the store are not covered: tune them again.",
    "Blocks that a disk or file system has freed but not yet overwritten are not covered.",
    "The log, this receipt and the list that keeps the work out hold keyed or salted hashes, counts and digests of it.",
    "`digest` and `generation` before are not keyed: whoever has all other documents of that time and the model can "
    "confirm a guess at the erased ones.",
)
"""What an erasure from a store cannot reach, in words."""
KNOWN_BACKUPS = "The log names backups begun before this erasure, which may hold the documents: "

CACHES_ELSEWHERE = (
    "Copies of a remote store in other machines, homes and caches are not covered: a process that runs there drops "
    "them when it next looks at the head, others go when the store is next opened there. Nor are versions, replicas "
    "and backups that the object store keeps by itself."
)
"""What an erasure from a store on an object store cannot reach either."""

NotChecked = Literal["not checked"]
NOT_CHECKED: NotChecked = "not checked"
"""The result of a check that could not be made, and the count of what could not be counted."""
Result = bool | int | NotChecked
NEEDED_CHECKS = ("digest-recomputed", "readers-drained", "residue-hits")


@dataclass(frozen=True, slots=True)
class ModelListing:
    """Whether the training manifest of a model lists any of the erased documents."""

    name: str
    fingerprint: str
    listed: bool


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was erased and how that was checked. `config` and the digests are SHA-256 in hex.

    A check is true, false, a count or `NOT_CHECKED`; a false one and a count other than 0 under a name that ends in
    `-hits` failed. `replaced` is there if other versions of documents took the place of those that were erased: their
    `documents`, `tokens` and `passages`.
    """

    config: str
    documents: tuple[str, ...]
    tokens: int | NotChecked
    passages: int | NotChecked
    generation_before: int | str
    generation_after: int | str
    digest_before: str
    digest_after: str
    accepted: datetime
    checks: Mapping[str, Result]
    models: tuple[ModelListing, ...] = ()
    exclusions: tuple[str, ...] = EXCLUSIONS
    replaced: Mapping[str, int] = field(default_factory=dict)


def exclusions_with(backups: Sequence[str]) -> tuple[str, ...]:
    """What an erasure cannot reach, with the times of backups that the log knows of."""
    known = f"{KNOWN_BACKUPS}{len(backups)}, the last at {backups[-1]}." if backups else ""
    return (*EXCLUSIONS, known) if known else EXCLUSIONS


def new_salts(documents: Iterable[str]) -> dict[str, str]:
    """A fresh random salt (hex) for each document id; they belong to the owner and into no file of the store."""
    return {document: secrets.token_hex(SALT_BYTES) for document in documents}


def fingerprint_of_commitments(salts: Mapping[str, str]) -> str:
    """What the log calls the documents of an erasure."""
    return fingerprint(_commitments(salts))


def draft_receipt(erasure: Erasure, salts: Mapping[str, str], *, key: SigningKey, done: datetime) -> dict[str, Any]:
    """All that a receipt says before it is logged and signed. Sorted commitments tell no order of documents."""
    documents = set(erasure.documents)
    return {
        "format": FORMAT,
        "kind": REPLACEMENT if erasure.replaced else ERASURE,
        "config": erasure.config,
        "commitments": _commitments({document: salts[document] for document in documents}),
        "counts": {"documents": len(documents), "tokens": erasure.tokens, "passages": erasure.passages},
        "generation": {"before": erasure.generation_before, "after": erasure.generation_after},
        "digest": {"before": erasure.digest_before, "after": erasure.digest_after},
        "accepted": _time(erasure.accepted),
        "done": _time(done),
        "checks": dict(erasure.checks),
        "models": [asdict(model) for model in erasure.models],
        "exclusions": list(erasure.exclusions),
        "public_key": encode(public_bytes(key)),
        **({"replaced": dict(erasure.replaced)} if erasure.replaced else {}),
    }


def log_facts(draft: Mapping[str, Any]) -> dict[str, Any]:
    """What the log says about an erasure; `check_receipt` compares it with the receipt."""
    names = ("config", "counts", "generation", "digest", "accepted", "replaced")
    shared = {name: draft[name] for name in names if name in draft}
    return {
        **shared,
        "commitments": fingerprint(draft["commitments"]),
        "signer": fingerprint(draft["public_key"]),
        "receipt": fingerprint({name: value for name, value in draft.items() if name not in ("log", "signature")}),
    }


def sign_draft(draft: Mapping[str, Any], *, key: SigningKey, log: Head) -> dict[str, Any]:
    """The signed content of a receipt; `log` is the log entry of this erasure, `key` the one it was drafted for."""
    content = {**draft, "log": {"n": log.n, "hash": log.hash}}
    signed = {**content, "signature": sign(content, key)}
    _require_shape(signed)
    return signed


def check_receipt(content: Mapping[str, Any], *, key: bytes | None = None, log: Path | None = None) -> dict[str, Any]:
    """Check a receipt and say what it shows; the error is `receipt-invalid`.

    `key` is the public key one trusts, 32 bytes or PEM: without it the receipt is not `valid` but only consistent in
    itself, since anybody can sign anything with a key of their own. `log` is a copy of the log, which must hold the
    erasure.
    """
    _require_shape(content)
    public = _decoded(content["public_key"], 32)
    if key is not None:
        _check_key(key, public)
    _check_signature(content, public)
    if log is not None:
        _check_log(content, log)
    return {
        "verdict": "genuine" if key is not None else "self-consistent",
        "valid": key is not None,
        "key_checked": key is not None,
        "log_checked": log is not None,
        "log_entry": content["log"]["n"],
        "kind": content["kind"],
        **content["counts"],
        **({"replaced": content["replaced"]["documents"]} if "replaced" in content else {}),
        **{name: content[name] for name in ("accepted", "done", "checks")},
        "failed_checks": failed_checks(content["checks"]),
        "not_checked": _unmade_checks(content),
        "models_that_list_it": [model["name"] for model in content["models"] if model["listed"]],
        **{name: content[name] for name in ("exclusions", "public_key")},
    }


def failed_checks(checks: Mapping[str, Result]) -> list[str]:
    """The names of checks that were made and did not pass."""
    return sorted(name for name, value in checks.items() if _failed(name, value))


def unmade_checks(checks: Mapping[str, Result]) -> list[str]:
    """The names of checks that were not made; those that every erasure needs count as such where they are missing."""
    unmade = {name for name, value in checks.items() if value == NOT_CHECKED}
    return sorted(unmade | (set(NEEDED_CHECKS) - checks.keys()))


def _unmade_checks(content: Mapping[str, Any]) -> list[str]:
    """Checks and counts that a receipt says or shows were not made."""
    unmade = unmade_checks(content["checks"])
    if content["format"] == _FIRST_FORMAT and content["checks"].get("residue-windows") == 0:
        # A document always has windows: the erasure was finished after a crash, and compared nothing with nothing.
        unmade = sorted({*unmade, *NEEDED_CHECKS})
    return unmade + [name for name, value in content["counts"].items() if value == NOT_CHECKED]


def proves(receipt: Mapping[str, Any], document_id: str, salt: str) -> bool:
    """True if the receipt speaks of this document: the owner's salt opens one of its commitments."""
    try:
        return _commitment(document_id, salt) in receipt["commitments"]
    except ValueError:
        return False


def read_receipt(path: Path) -> dict[str, Any]:
    """The content of a receipt file, unchecked."""
    try:
        return parse_receipt(path.read_bytes())
    except FileNotFoundError:
        raise SiloError("input-missing", f"there is no receipt {path}") from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path} cannot be read: {error.strerror}") from None


def parse_receipt(data: bytes) -> dict[str, Any]:
    """The content of a receipt, unchecked; repeated keys and NaN are refused."""
    try:
        content = parse_json(data)
    except SiloError:
        raise _invalid("it is not plain JSON") from None
    if not isinstance(content, dict):
        raise _invalid("it is not a JSON object")
    return content


def _check_key(trusted: bytes, public: bytes) -> None:
    given = parse_public_key(trusted)
    if given is None:
        raise _invalid("the key given is not an Ed25519 public key", "give the .pub file of the store's owner")
    if given != public:
        raise _invalid("it was signed by another key than the one given")


def _check_signature(content: Mapping[str, Any], public: bytes) -> None:
    signed = {name: value for name, value in content.items() if name != "signature"}
    if not signature_fits(signed, _decoded(content["signature"], 64), public):
        raise _invalid("the signature does not fit the content")


def _check_log(content: Mapping[str, Any], path: Path) -> None:
    """The log holds the entry, and both say the same of the erasure."""
    entries, n = AuditLog.open(path, read_only=True).entries, content["log"]["n"]
    if not 1 <= n <= len(entries) or entries[n - 1].hash != content["log"]["hash"]:
        raise _invalid(f"{path} does not hold entry {n} as the receipt names it", "get the log that belongs to it")
    logged = entries[n - 1].content
    facts = log_facts(content)
    if content["format"] == _FIRST_FORMAT and not _NEW_IN_LOG & logged.keys():
        facts = {name: value for name, value in facts.items() if name not in _NEW_IN_LOG}
    for name, value in facts.items():
        if name not in logged or logged[name] != value:
            raise _invalid(f"entry {n} of {path} differs from the receipt in {_MEANING.get(name, name)}")


_NEW_IN_LOG = frozenset({"signer", "receipt"})
"""What entries for receipts of the first format do not have. An entry that has it binds a receipt of any format."""
_MEANING = {"signer": "the key that signed it", "receipt": "what it says: checks, models, exclusions, times"}


def _commitments(salts: Mapping[str, str]) -> list[str]:
    return sorted(_commitment(document, salt) for document, salt in salts.items())


def _commitment(document: str, salt: str) -> str:
    opened = bytes.fromhex(salt)
    if len(opened) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(opened)}")
    return hashlib.sha256(opened + document.encode()).hexdigest()


def _time(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError("a receipt needs times with a time zone")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _decoded(text: str, length: int) -> bytes:
    if (data := decode(text, length)) is None:
        raise _invalid(f"{length} bytes in base64 are not well formed")
    return data


def _failed(name: str, value: Result) -> bool:
    return value is False or (name.endswith("-hits") and value not in (0, NOT_CHECKED) and value is not True)


def _invalid(message: str, hint: str = "") -> SiloError:
    return SiloError("receipt-invalid", message, hint)


def _require_shape(content: Mapping[str, Any]) -> None:
    """Every field is there, of its kind, and none besides."""
    shape = {**_SHAPE, **(_FIRST_SHAPE if content.get("format") == _FIRST_FORMAT else {})}
    shape |= _REPLACEMENT_SHAPE if content.get("kind") == REPLACEMENT else {}
    for name in sorted(shape.keys() ^ content.keys()):
        raise _invalid(f"the field {name[:80]!r} is {'missing' if name in shape else 'not one of a receipt'}")
    for name, holds in shape.items():
        if not holds(content[name]):
            raise _invalid(f"the field {name!r} is malformed")
    if len(content["commitments"]) != content["counts"]["documents"]:
        raise _invalid("there is not one commitment for each document")
    if datetime.fromisoformat(content["done"]) < datetime.fromisoformat(content["accepted"]):
        raise _invalid("it was done before it was accepted")


_Holds = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef")


def _is_time(value: Any) -> bool:
    try:
        return bool(_time(datetime.fromisoformat(value)) == value)
    except (ValueError, TypeError, OverflowError):
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_generation(value: Any) -> bool:
    return _is_count(value) or _is_text(value)


def _is_count_if_any(value: Any) -> bool:
    return _is_count(value) or bool(value == NOT_CHECKED)


def _is_first_check(value: Any) -> bool:
    return isinstance(value, bool) or _is_count(value)


def _is_check(value: Any) -> bool:
    return isinstance(value, bool) or _is_count_if_any(value)


def _are_checks(holds: _Holds) -> _Holds:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _object(**fields: _Holds) -> _Holds:
    """An object of exactly these fields."""
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == fields.keys()
        and all(holds(value[name]) for name, holds in fields.items())
    )


def _list_of(holds: _Holds) -> _Holds:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _is_commitments(value: Any) -> bool:
    return _list_of(_is_hash)(value) and bool(value) and bool(value == sorted(set(value)))


_SHAPE: dict[str, _Holds] = {
    "format": lambda value: value in (FORMAT, _FIRST_FORMAT),
    "kind": lambda value: value == ERASURE,
    "config": _is_hash,
    "commitments": _is_commitments,
    "counts": _object(documents=_is_count, tokens=_is_count_if_any, passages=_is_count_if_any),
    "generation": _object(before=_is_generation, after=_is_generation),
    "digest": _object(before=_is_hash, after=_is_hash),
    "log": _object(n=_is_count, hash=_is_hash),
    "accepted": _is_time,
    "done": _is_time,
    "checks": _are_checks(_is_check),
    "models": _list_of(_object(name=_is_text, fingerprint=_is_text, listed=lambda value: isinstance(value, bool))),
    "exclusions": _list_of(_is_text),
    "public_key": _is_text,
    "signature": _is_text,
}
_FIRST_SHAPE: dict[str, _Holds] = {
    "counts": _object(documents=_is_count, tokens=_is_count, passages=_is_count),
    "checks": _are_checks(_is_first_check),
}
"""Where the first format was narrower."""
_REPLACEMENT_SHAPE: dict[str, _Holds] = {
    "format": lambda value: value == FORMAT,
    "kind": lambda value: value == REPLACEMENT,
    "replaced": _object(documents=_is_count, tokens=_is_count, passages=_is_count),
}
"""What is different if other versions took the place of what was erased."""

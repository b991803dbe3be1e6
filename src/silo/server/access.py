"""Who may ask for what: keys with roles, kept in one file as hashes, and the callers they make of requests.

A key has 256 random bits and is shown once, when it is made; the file holds its SHA-256, which cannot be turned round.
On disk: JSON, readable by its owner alone, with `format` and `keys`; see docs/formats.md. The file is read again when
it changes, so that a key which is revoked opens nothing from the next request on. Beside it a log (`keys.log.jsonl` of
`keys.json`) says which keys were made and taken away, when and by whom, each entry bound to the one before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

from silo.errors import SiloError
from silo.files import exclusive, write_private
from silo.store.erasure.log import AuditLog, Entry
from silo.store.policy import Policy

FORMAT = "silo-keys-1"
_PREFIX = "silo-"
_KEY_BYTES = 32
_MOST_CHARACTERS = 200
_ABSENT = ()
_NAME_IN_LOG = 31
"""Letters of a name: fewer than a document's id has, which no log takes."""
COMMAND = "command line"
"""Who asked, where it was no key."""


class Role(StrEnum):
    """What a key is for: a reader asks models, an owner looks after documents of their own, an operator does all."""

    reader = "reader"
    owner = "owner"
    operator = "operator"


class Permission(StrEnum):
    """What a role alone does not give: probabilities of tokens, and text of the stores."""

    logprobs = "logprobs"
    text = "text"


@dataclass(frozen=True, slots=True)
class Key:
    """Whoever makes a request. `policy` and `guard` bound every answer; 0 is no limit of `max_tokens` or `texts`.

    `texts` is how many a caller may have under way at a time. `sha256` is the hash of the key itself.
    """

    id: str
    roles: tuple[Role, ...]
    name: str = ""
    owner: str = ""
    policy: str = ""
    guard: int = 0
    permissions: tuple[Permission, ...] = ()
    max_tokens: int = 0
    texts: int = 0
    created: str = ""
    sha256: str = ""

    def may(self, permission: Permission) -> bool:
        """Is this allowed? An operator may everything."""
        return permission in self.permissions or Role.operator in self.roles

    @property
    def sees_all_owners(self) -> bool:
        return Role.operator in self.roles

    def as_json(self) -> dict[str, Any]:
        """What is shown of a key: everything but its hash."""
        return {name: value for name, value in asdict(self).items() if name != "sha256"}


LOCAL = Key("local", tuple(Role))
"""Everybody on this machine, where a server has no keys."""


def create_key(
    file: Path,
    *,
    roles: Iterable[str],
    name: str = "",
    owner: str = "",
    policy: str = "",
    guard: int = 0,
    permissions: Iterable[str] = (),
    max_tokens: int = 0,
    texts: int = 0,
    by: str = COMMAND,
) -> tuple[Key, str]:
    """Add a key to a file, which is made if need be; the second value is the key itself, which nobody sees again.

    `by` is the id of the key that asked for it. The log comes first: no key is in use that it does not know.
    """
    secret = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    key = Key(
        id=secrets.token_hex(6),
        roles=tuple(dict.fromkeys(_one_of(Role, role) for role in roles)),
        name=name,
        owner=owner,
        policy=policy,
        guard=guard,
        permissions=tuple(dict.fromkeys(_one_of(Permission, item) for item in permissions)),
        max_tokens=max_tokens,
        texts=texts,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256=_hash(secret),
    )
    _require_sound(key)
    with exclusive(_lock_file(file)):
        known = read_keys(file) if file.exists() else ()
        _note(file, "key-created", key, by)
        _write_keys(file, (*known, key))
    return key, secret


def _require_sound(key: Key) -> None:
    """Refuse what would open more than was meant: an owner without a name would be everybody."""
    if not key.roles:
        raise SiloError("usage", f"a key needs a role: {', '.join(Role)}")
    if (Role.owner in key.roles) != bool(key.owner):
        raise SiloError("usage", "the role owner and --owner belong together", "say whose documents the key is for")
    if min(key.guard, key.max_tokens, key.texts) < 0:
        raise SiloError("usage", "limits are not negative", "0 is no limit")
    Policy.parse(key.policy)


def revoke_key(file: Path, wanted: str, *, by: str = COMMAND) -> Key:
    """Take out the key of an id or a name. The log comes last: what it says is revoked opens nothing any more."""
    with exclusive(_lock_file(file)):
        known = read_keys(file)
        meant = [key for key in known if wanted in (key.id, key.name)]
        if len(meant) != 1:
            hint = "`silo keys list` shows them" if not meant else "several have this name: give the id"
            raise SiloError("nothing-selected", f"{wanted} is not one key of {file}", hint)
        _write_keys(file, tuple(key for key in known if key is not meant[0]))
        _note(file, "key-revoked", meant[0], by)
    return meant[0]


def read_key_log(file: Path) -> Sequence[Entry]:
    """Which keys of a file were made and taken away, oldest first; none before the first one that was logged."""
    log = _log_file(file)
    return AuditLog.open(log, read_only=True).entries if log.exists() else ()


def _note(file: Path, kind: str, key: Key, by: str) -> None:
    content = {"key": key.id, "name": key.name[:_NAME_IN_LOG], "roles": list(map(str, key.roles)), "by": by}
    AuditLog.open(_log_file(file)).append(kind, {**content, "time": datetime.now(UTC).isoformat(timespec="seconds")})


def read_keys(file: Path) -> tuple[Key, ...]:
    """The keys of a file."""
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return tuple(_read_key(item) for item in content["keys"])
    except FileNotFoundError:
        raise SiloError("input-missing", f"there are no keys at {file}", "make one with `silo keys create`") from None
    except PermissionError:
        raise SiloError("input-unreadable", f"the keys at {file} are not for this user") from None
    except (SiloError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SiloError("keys-invalid", f"{file} is not as it was written: {error}"[:300]) from None


def _read_key(item: Mapping[str, Any]) -> Key:
    key = Key(**item)
    for name, default in asdict(Key("", ())).items():
        if name not in ("roles", "permissions") and type(getattr(key, name)) is not type(default):
            raise ValueError(f"{name} is not of its kind")
    if len(key.sha256) != 64:
        raise ValueError("a hash is missing")
    permissions = tuple(Permission(name) for name in key.permissions)
    key = replace(key, roles=tuple(Role(name) for name in key.roles), permissions=permissions)
    _require_sound(key)
    return key


def _write_keys(file: Path, keys: Iterable[Key]) -> None:
    content = {"format": FORMAT, "keys": [asdict(key) for key in keys]}
    write_private(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _lock_file(file: Path) -> Path:
    return file.with_name(file.name + ".lock")


def _log_file(file: Path) -> Path:
    return file.with_name(file.stem + ".log.jsonl")


def _one_of(kind: type[StrEnum], name: str) -> Any:
    try:
        return kind(name)
    except ValueError:
        raise SiloError(
            "usage", f"there is no {kind.__name__.lower()} '{name}'", f"use {', '.join(str(item) for item in kind)}"
        ) from None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class KeyRing:
    """The keys of a server, as its file has them now; without a file everybody is `LOCAL`."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._guard = Lock()
        self._seen: object = None
        self._keys: tuple[Key, ...] = ()
        if file is not None:
            self._refresh(file)

    def find(self, authorization: str | None) -> Key | None:
        """Who an `Authorization` header names; None for nobody. Takes the same time wherever a key differs."""
        if self.file is None:
            return LOCAL
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.isascii() or len(secret) > _MOST_CHARACTERS:
            return None
        self._refresh(self.file)
        digest, found = _hash(secret.strip()), None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def known(self) -> tuple[Key, ...]:
        """All keys, as the file has them now."""
        if self.file is not None:
            self._refresh(self.file)
        return self._keys

    def _refresh(self, file: Path) -> None:
        """Read the file again if it has changed; one that cannot be read opens nothing."""
        with self._guard:
            try:
                status = file.stat()
                seen: object = (status.st_ino, status.st_mtime_ns, status.st_size)
            except OSError:
                seen = _ABSENT
            if seen != self._seen:
                self._keys, self._seen = (), None  # a file that is put back as it was is read again
                self._keys, self._seen = read_keys(file), seen

"""Where artefacts lie that are not in a local directory, and where this machine keeps its copies and its keys.

A place is a URL of a file system that `fsspec` knows, such as `s3://bucket/stores/mine`. What is fetched from it lies
under `$SILO_CACHE`, or else `cache/` of the home; signing keys lie in `keys/` of the home and are never sent anywhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from silo.errors import SiloError

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>[^/].*)", re.DOTALL)
_PASSWORD = re.compile(r"[^/@]*:[^/]*@")
_NOT_WRITABLE = ("http", "https", "ftp", "data", "github", "zip", "tar")
_DIRECTORIES = ("file", "local")
_ALIASES = {"s3a": "s3"}


def remote_url(path: str | os.PathLike[str]) -> str | None:
    """The URL that a path is meant as, None for one of this machine.

    A URL that went through `Path` has lost a slash: it gets it back. Spellings of one place become one URL.
    """
    match = _URL.fullmatch(os.fspath(path))
    if match is None:
        return None
    protocol, rest = match["protocol"].lower(), re.sub("/+", "/", match["rest"]).rstrip("/")
    if protocol in _NOT_WRITABLE or "::" in rest:
        raise SiloError("usage", f"{protocol}: is no place for a store or a corpus", "give a URL such as s3://bucket/x")
    if protocol in _DIRECTORIES:
        return f"file://{os.path.realpath('/' + rest.removeprefix('localhost/'))}"
    if _PASSWORD.match(rest):  # it would be shown in messages, and kept with the copies
        hint = "give it as the file system takes it otherwise, such as AWS_SECRET_ACCESS_KEY"
        raise SiloError("usage", f"a {protocol}: URL must not hold a password", hint)
    if {".", ".."}.intersection(rest.split("/")):  # an object store takes them for names, and all others do not
        raise SiloError("usage", f"{protocol}://{rest} has '.' or '..' in it", "give the place itself")
    return f"{_ALIASES.get(protocol, protocol)}://{rest}"


def placed(name: str | os.PathLike[str], base: Path) -> Path:
    """A path that is relative to a folder unless it says otherwise; a URL stays as it is."""
    return Path(name) if remote_url(name) else base / name


def home_folder() -> Path:
    """`$SILO_HOME`, or `silo-home` in the current folder."""
    return Path(os.environ.get("SILO_HOME") or "silo-home").absolute()


def cache_folder() -> Path:
    """`$SILO_CACHE`, or `cache` in the home: copies of what lies elsewhere, which may be removed at any time."""
    given = os.environ.get("SILO_CACHE")
    folder = Path(given).absolute() if given else home_folder() / "cache"
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise SiloError("usage", f"{folder} cannot hold copies: {there} is a file", "let SILO_CACHE name a folder")
    return folder


def keys_folder() -> Path:
    """The signing keys of this machine's remote stores, each named after its public key."""
    return home_folder() / "keys"


def receipts_folder() -> Path:
    """The receipts of erasures that this machine made in remote stores."""
    return home_folder() / "receipts"


def anchors_folder() -> Path:
    """How far this machine has seen the log of each remote store: what was seen must still be in it."""
    return home_folder() / "anchors"

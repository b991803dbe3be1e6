"""Licence URLs: Creative Commons, SPDX, and the addresses in the table. The host must match exactly."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from silo.rights.licences.reading import Reading, row_reading, unknown_reading
from silo.rights.licences.table import Row, license_table

_METHOD = "url"
_ENDING = re.compile(r"\.(?:html?|txt|php|en|md|json|[a-z]{2})$")
_LANGUAGE = re.compile(r"(?:deed|legalcode)(?:[.\-][a-z]{2,3}(?:[_\-][a-z]{2,6})?)?(?:\.txt|\.html)?")
_PUBLIC_DOMAIN = {"zero": "cc0-1.0", "mark": "cc-pdm-1.0"}


def is_url(text: str) -> bool:
    """True for something that begins like an address of a licence."""
    lowered = text[:24].lower()
    return lowered.startswith(("http://", "https://", "//", "www.", "creativecommons.org/"))


def read_url(text: str) -> Reading:
    """The reading of one URL; an address nobody has reviewed is restricted."""
    row = _find(text)
    return row_reading(row, _METHOD) if row is not None else unknown_reading()


def _find(text: str) -> Row | None:
    lowered = text.strip().lower()
    try:
        parts = urlsplit(lowered if "//" in lowered[:9] else f"https://{lowered}")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "") or "@" in parts.netloc or port not in (None, 80, 443):
        return None
    host = (parts.hostname or "").removeprefix("www.")
    path = [part for part in parts.path.split("/") if part]
    if host == "creativecommons.org":
        return _find_creative_commons(path)
    if host == "spdx.org" and len(path) == 2 and path[0] == "licenses":
        return license_table().ids.get(path[1].removesuffix(".html").removesuffix(".json"))
    return _find_listed(host, path)


def _find_listed(host: str, path: list[str]) -> Row | None:
    urls = license_table().urls
    address = "/".join([host, *path])
    return urls.get(address) or urls.get(_ENDING.sub("", address))


def _find_creative_commons(path: list[str]) -> Row | None:
    """/licenses/KIND/VERSION[/PORT][/deed.xx] and /publicdomain/zero|mark/1.0."""
    ids = license_table().ids
    if path and _LANGUAGE.fullmatch(path[-1]):
        path = path[:-1]
    match path:
        case ["licenses", "publicdomain"]:
            return ids["cc-pddc"]
        case ["publicdomain", ("zero" | "mark") as kind, "1.0"]:
            return ids[_PUBLIC_DOMAIN[kind]]
        case ["licenses", kind, version]:
            return ids.get(f"cc-{kind}-{version}")
        case ["licenses", kind, version, port] if port in license_table().ports:
            return ids.get(f"cc-{kind}-{version}-{port}") or ids.get(f"cc-{kind}-{version}")
        case _:
            return None

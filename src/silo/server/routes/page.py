"""The page of a server: a few files as they lie in the package, which ask the same routes as every other client.

The policy that goes with them lets a browser run these files and nothing else: no code in data, no other host.
"""

from __future__ import annotations

from pathlib import Path

from fastapi.responses import Response

from silo.server.problems import missing

_FOLDER = Path(__file__).parent.parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def show_page() -> Response:
    """The page, for people with a browser."""
    return show_page_file("index.html")


def show_page_file(name: str) -> Response:
    """A file of the page."""
    known = {file.name: file for file in _FOLDER.iterdir() if file.suffix in _TYPES}
    if name not in known:
        raise missing("file")
    kind = f"{_TYPES[known[name].suffix]}; charset=utf-8"
    return Response(known[name].read_bytes(), media_type=kind, headers=_HEADERS)

"""Jupyter notebooks: the source of every cell and what it printed; the cell is the place. Pictures are left out."""

from __future__ import annotations

import json
import re
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.parsed import Parsed, TextBuilder

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def parse_notebook(data: bytes, limits: Limits) -> Parsed:
    """A notebook of format 3 or 4."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise SiloError("utf8-invalid", "the notebook is not UTF-8") from None
    except RecursionError:
        raise SiloError("json-depth", "the notebook is nested too deep") from None
    except ValueError:
        raise SiloError("document-invalid", "the notebook is not JSON: it may be cut off") from None
    builder = TextBuilder(limits.max_record_bytes)
    for number, cell in enumerate(_cells(content), start=1):
        builder.begin(f"cell {number}")
        builder.add(_text(cell.get("source", cell.get("input"))))
        for output in _list(cell.get("outputs")):
            builder.add(_COLOURS.sub("", _printed(output)))
    return builder.finish()


def _cells(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, dict) or not ("cells" in content or "worksheets" in content):
        raise SiloError("document-invalid", "the file is JSON, but not a notebook")
    sheets = _list(content.get("worksheets"))
    cells = _list(content.get("cells")) + [cell for sheet in sheets for cell in _list(_get(sheet, "cells"))]
    return [cell for cell in cells if isinstance(cell, dict)]


def _printed(output: Any) -> str:
    """The plain text of an output: what was printed, or how the value reads."""
    return _text(_get(output, "text")) or _text(_get(_get(output, "data"), "text/plain"))


def _get(holder: Any, key: str) -> Any:
    return holder.get(key) if isinstance(holder, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Text of a notebook is a string or a list of lines."""
    if isinstance(value, str):
        return value
    return "".join(line for line in _list(value) if isinstance(line, str))

"""SPDX expressions: OR takes the more permissive side, AND the more restrictive, unknown ids are restricted.

Parsing is left to `license-expression`. Its aliases are not used, since they equate ids such as
LicenseRef-MIT-Bootstrap with MIT: only ids of the SPDX list and of our own table count.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from silo.rights.licences.reading import Reading, all_of, any_of, row_reading, unknown_reading
from silo.rights.licences.table import license_table

MAX_CHARS = 2000
MAX_DEPTH = 40
_METHOD = "spdx"
_SHAPE = re.compile(r"[A-Za-z0-9.+:()\- ]+", re.ASCII)
_REFERENCE = re.compile(r"(?:DocumentRef-[A-Za-z0-9.\-]+:)?LicenseRef-[A-Za-z0-9.\-]+", re.ASCII | re.IGNORECASE)


@lru_cache(maxsize=4096)
def read_expression(statement: str) -> Reading | None:
    """The reading of an SPDX expression, or None if the statement is not one."""
    if len(statement) > MAX_CHARS or not _SHAPE.fullmatch(statement) or _nesting(statement) > MAX_DEPTH:
        return None
    simple = _read_id(statement)
    if simple is not None:
        return simple
    tree = _parse(statement)
    return None if tree is None else _read_tree(tree)


def _nesting(statement: str) -> int:
    """How deep parentheses nest; beyond any limit if they do not match."""
    depth = deepest = 0
    for char in statement:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
        if depth < 0:
            return MAX_DEPTH + 1
    return deepest if depth == 0 else MAX_DEPTH + 1


def _parse(statement: str) -> Any:
    import license_expression as spdx
    from boolean import ParseError

    try:
        return _licensing().parse(statement)
    except (spdx.ExpressionError, ParseError, TypeError, ValueError, AttributeError, IndexError, AssertionError):
        return None  # the library asserts for `MIT OR ( AND ISC)`


@lru_cache(maxsize=1)
def _licensing() -> Any:
    import license_expression as spdx

    return spdx.Licensing()


@lru_cache(maxsize=1)
def _spdx_ids() -> dict[str, tuple[str, bool]]:
    """Every id of the SPDX list by its lower-case form, with whether it is an exception."""
    import license_expression as spdx

    symbols = spdx.get_spdx_licensing().known_symbols
    return {key.lower(): (key, symbol.is_exception) for key, symbol in symbols.items() if not _REFERENCE.fullmatch(key)}


def _read_tree(tree: Any) -> Reading | None:
    """The reading of a parsed expression; None as soon as a part is not an SPDX id."""
    operator = getattr(tree, "operator", "")
    if operator:
        parts = [_read_tree(part) for part in tree.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if operator.strip() == "OR":
            return any_of(known, _METHOD)
        return all_of(known, _METHOD)
    if hasattr(tree, "exception_symbol"):
        return _with_exception(tree.license_symbol.key, tree.exception_symbol.key)
    return _read_id(tree.key)


def _read_id(id: str) -> Reading | None:
    table = license_table()
    row = table.ids.get(id.lower())
    if row is not None:
        return row_reading(row, _METHOD)
    if _REFERENCE.fullmatch(id):
        return unknown_reading(_METHOD, spdx=id)
    if id.endswith("+") and (base := _read_id(id[:-1])) is not None:
        return Reading(f"{base.spdx}+", base.tier, base.duties, base.rights, _METHOD)
    if " " in id or "(" in id:
        return None
    known, is_exception = _spdx_ids().get(id.lower(), ("", True))
    return None if is_exception else unknown_reading(_METHOD, spdx=known)


def _with_exception(id: str, exception: str) -> Reading | None:
    """An exception that was reviewed keeps the tier of its licence; any other makes it restricted."""
    base = _read_id(id)
    if base is None:
        return None
    if exception.lower() in license_table().exceptions:
        known = _spdx_ids().get(exception.lower(), (exception, True))[0]
        return Reading(f"{base.spdx} WITH {known}", base.tier, base.duties, base.rights, _METHOD)
    return unknown_reading(_METHOD, spdx=f"{base.spdx} WITH {exception}", duties=base.duties)

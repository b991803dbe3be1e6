"""A record that a program hands in, read as strictly as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from silo.errors import SiloError
from silo.files import canonical_json
from silo.recipe import Limits
from silo.records import Candidate
from silo.sources.reader.fields import Defaults, make_candidate
from silo.text.strict_json import parse_object

SOURCE = "python"
"""The source of records that name none."""

_LIMITS = Limits()
_DEFAULTS = Defaults(
    label=SOURCE, source=SOURCE, domain="", owner="", evidence=(), signals=None, max_chars=_LIMITS.max_field_chars
)


def read_record(record: Mapping[str, Any]) -> Candidate:
    """A candidate from a mapping; what JSON cannot say is refused with the code that such a line would have."""
    try:
        data = canonical_json(dict(record))
    except UnicodeEncodeError:
        raise SiloError("surrogate-lone", "it holds half of a surrogate pair") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise SiloError("field-type", f"it holds what JSON cannot say: {error}") from None
    return make_candidate(parse_object(data, _LIMITS.max_depth), _DEFAULTS)

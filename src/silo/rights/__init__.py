"""Rights: what a licence statement, a licence text or a preference signal allows. Anything unclear is restricted."""

from silo.rights.licences.headers import read_header
from silo.rights.licences.statement import assess
from silo.rights.licences.texts import is_license_name, read_license_file
from silo.rights.resolve import classify, resolve
from silo.rights.signals.folder import Signals, load_signals

__all__ = [
    "Signals",
    "assess",
    "classify",
    "is_license_name",
    "load_signals",
    "read_header",
    "read_license_file",
    "resolve",
]

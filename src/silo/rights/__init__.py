"""Rights: what a licence statement, a licence text or a preference signal allows. Anything unclear is restricted."""

from silo.rights.headers import read_header
from silo.rights.resolve import resolve
from silo.rights.signals import Signals, load_signals
from silo.rights.statement import assess, classify
from silo.rights.texts import read_license_file

__all__ = ["Signals", "assess", "classify", "load_signals", "read_header", "read_license_file", "resolve"]

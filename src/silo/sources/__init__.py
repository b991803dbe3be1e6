"""Promises every readable record as a `Candidate` with its licence evidence, and every other one as `Quarantined`."""

from silo.sources.kinds import Tally, plan, read, read_documents
from silo.sources.reader.judge import judge
from silo.sources.reader.plan import SourcePart

__all__ = ["SourcePart", "Tally", "judge", "plan", "read", "read_documents"]

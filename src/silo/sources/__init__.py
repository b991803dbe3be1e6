"""Promises every readable record as a `Candidate` with its licence evidence, and every other one as `Quarantined`."""

from silo.sources.kinds import plan, read
from silo.sources.reader.plan import Part

__all__ = ["Part", "plan", "read"]

"""Promises every readable record as a `Candidate` with its licence evidence, and every other one as `Quarantined`."""

from silo.corpus.sources.kinds import plan, read
from silo.corpus.sources.parts import Part

__all__ = ["Part", "plan", "read"]

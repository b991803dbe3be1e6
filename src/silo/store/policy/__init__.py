"""Which documents a request may use; effective inside every search."""

from silo.store.policy.policy import EVERYTHING, Policy

__all__ = ["EVERYTHING", "Policy"]

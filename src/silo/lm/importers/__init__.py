"""Models that somebody else trained."""

"""Promises that only documents which may be stored come in, each once, and that a store can follow its sources."""

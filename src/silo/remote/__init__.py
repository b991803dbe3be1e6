"""Artefacts on object stores: one head names every object, copies of it lie in a local cache."""

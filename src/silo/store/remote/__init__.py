"""Stores whose home is an object store: read in a copy that follows the head, written in one that is published."""

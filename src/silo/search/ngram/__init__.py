"""Suffix search: exact matches of any length."""

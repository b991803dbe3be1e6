"""Passage search: words weighed by BM25."""

"""Experiments that can be run again: the demo, the paper's tables and figures."""

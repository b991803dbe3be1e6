"""Whole ways through silo behind one command: the demo and the quickstart."""

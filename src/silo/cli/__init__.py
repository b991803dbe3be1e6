"""The command line: parse, call one function, print. Results go to stdout, everything else to stderr."""

from silo.cli.main import main

__all__ = ["main"]

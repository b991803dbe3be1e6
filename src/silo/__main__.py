"""`python -m silo` is `silo`."""

from silo.cli.main import entry

if __name__ == "__main__":
    entry()

"""`silo store`: the commands that make a store, fill it, look into it, keep it and take documents out."""

from silo.cli.store.commands import add_commands

__all__ = ["add_commands"]

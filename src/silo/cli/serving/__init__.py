"""Commands around a server."""

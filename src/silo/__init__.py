"""silo: language models that keep legal risk out of the weights."""

__version__ = "0.1.0"

"""Tokenizer, network, training, scoring, encoding; the only package that imports torch and transformers."""

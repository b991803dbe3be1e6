"""Measuring: tuning on validation text, perplexity, tasks."""

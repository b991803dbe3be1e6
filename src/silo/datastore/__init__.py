"""A store of text that can be searched per token and forgets exactly. Nothing here needs torch."""

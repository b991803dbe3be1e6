"""From permitted text to weights."""

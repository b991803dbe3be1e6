"""Taking documents out exactly, and the evidence for it."""

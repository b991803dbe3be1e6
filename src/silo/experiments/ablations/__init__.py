"""What a part is worth: the same measurement with one thing changed or left out."""

"""Model and store together: codec, mixing, policy, scores, text, credit."""

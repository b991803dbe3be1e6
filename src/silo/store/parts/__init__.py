"""A store in parts: each answers its share of a search, and together they answer as the store."""

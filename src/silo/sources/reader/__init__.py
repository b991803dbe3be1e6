"""What every kind of source shares: planning parts, reading bytes and fields, judging a record."""

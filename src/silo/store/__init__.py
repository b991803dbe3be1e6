"""A datastore that can forget: documents in buckets, searched in place, erased exactly."""

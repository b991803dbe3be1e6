"""The server on a Ray cluster: who searches its stores, and replicas that answer beside it."""

"""Stores as tools for other people's models, by the Model Context Protocol: five questions, and nothing that writes."""

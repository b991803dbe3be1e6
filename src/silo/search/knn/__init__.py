"""Token search: nearest keys under a frozen codec."""

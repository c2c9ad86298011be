"""Carries messages over HTTPS with client certificates."""

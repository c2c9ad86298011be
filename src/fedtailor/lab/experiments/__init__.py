"""Scenarios, and comparisons of methods."""

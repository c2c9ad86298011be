"""Scenarios and comparisons."""

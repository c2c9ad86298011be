"""Secure aggregation: sums of masked vectors."""

"""Carries messages through Flower's SuperLink."""

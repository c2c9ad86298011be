"""Runs a method: one client, executors, rounds, runs and their directories."""

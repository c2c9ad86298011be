"""Tables, figures and pages, made only from run directories."""

from fedtailor.lab.results.stored import StoredRun

__all__ = ["StoredRun"]

"""Tables, figures and pages, made only from run directories."""

from fedtailor.report.stored import StoredRun

__all__ = ["StoredRun"]

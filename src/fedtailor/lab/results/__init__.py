"""Reads run directories, tests differences between methods, and decides."""

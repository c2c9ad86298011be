"""The version, where everybody can read it without importing the package's
interface.
"""

__version__ = "0.2.0"

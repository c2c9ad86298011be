"""A small model with batch normalisation, for the problems of `classification` and
small images; no path says so.
"""

from fedtailor.testing.problems import Normalized as Normal
from fedtailor.testing.problems import normalized_model as normal

__all__ = ["Normal", "normal"]

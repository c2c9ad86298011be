"""The problems of `fedtailor.testing`, where these tests find them."""

from fedtailor.testing.problems import *  # noqa: F403
from fedtailor.testing.problems import EXACT, ROUNDED  # noqa: F401

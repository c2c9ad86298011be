"""Where tests find published data sets, which are not part of the repository."""

import os
from pathlib import Path

DATA = Path(
    os.environ.get("FEDTAILOR_DATA") or Path(__file__).parents[2] / "shared" / "data"
)
"""The folder of FEDTAILOR_DATA, or one beside the checkout; it need not exist."""

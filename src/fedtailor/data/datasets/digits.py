"""The digits that are part of scikit-learn, which need no download."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.datasets.registry import register
from fedtailor.data.federation.dataset import Dataset


@register()
def digits() -> Dataset:
    """1,797 handwritten digits, uint8 [N, 8, 8], values 0 to 16 (UCI, Alpaydin and
    Kaynak 1998).

    The model's input is (x - 8) / 8: centred, in [-1, 1].
    """
    values = _values()
    return Dataset(
        values[:, :-1].astype(np.uint8).reshape(-1, 8, 8),
        values[:, -1].astype(np.int64),
        10,
        "digits",
        shift=8.0,
        scale=1 / 8,
        class_names=tuple("0123456789"),
    )


def _values() -> NDArray[np.float64]:
    """The pixels and the digit of each image [N, 65]."""
    # Importing scikit-learn takes longer than a small training, and its file is enough.
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.column_stack([x, y])

"""The digits that are part of scikit-learn, which need no download."""

import numpy as np

from fedtailor.federation.dataset import Dataset
from fedtailor.federation.datasets.registry import register


@register()
def digits() -> Dataset:
    """1,797 handwritten digits, uint8 [N, 8, 8], values 0 to 16 (UCI, Alpaydin and
    Kaynak 1998).

    The model's input is (x - 8) / 8: centred, in [-1, 1].
    """
    from sklearn.datasets import load_digits  # takes a second to import

    x, y = load_digits(return_X_y=True)
    return Dataset(
        np.asarray(x, np.uint8).reshape(-1, 8, 8),
        np.asarray(y, np.int64),
        10,
        "digits",
        shift=8.0,
        scale=1 / 8,
        class_names=tuple("0123456789"),
    )

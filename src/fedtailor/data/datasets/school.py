"""The School data of the Inner London Education Authority: exam scores by school.

Expected in the data directory: school/ with school.csv.gz (columns school, f01 to f27,
score), checked by SHA-256. The file cannot be downloaded in this form.
"""

from pathlib import Path

import numpy as np
import polars as pl

from fedtailor._base.files import reason
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

_SOURCE = Source(
    "the School data",
    ("school",),
    ("school.csv.gz",),
    None,
    {
        "school.csv.gz": (
            "sha256:4d53d66804045e01f1f14e6a31b52adb57d0ea5fc0e67c1c44510a8f0f243c01"
        )
    },
)
_FEATURES = [f"f{number:02d}" for number in range(1, 28)]


@register(_SOURCE)
def school(data_dir: DataDir = None) -> Dataset:
    """Exam scores of 15,362 pupils in 139 schools, from 27 numbers on the pupil and the
    school: a regression.

    The data are prepared as by Liu et al. (2022). Inputs, float32 [N, 27], are
    standardized in each school, over all of its pupils (in the released code over its
    training pupils); an input that is constant in a school becomes 0. Scores from 1 to
    70 become (score - 1) / 69. The schools are the natural clients.

    Raises:
        MissingData: the file is missing.
        ValueError: the file is damaged, or is not the School data.
    """
    arrays = read(_SOURCE, _decode, data_dir)
    return Dataset(arrays["x"], arrays["y"], None, "School", client=arrays["school"])


def _decode(paths: list[Path]) -> Arrays:
    """Decode the file: inputs standardized by school, scores in [0, 1], and schools."""
    try:
        frame = pl.read_csv(paths[0])
        x, y = (
            frame.select(_FEATURES).to_numpy().astype(np.float64),
            frame["score"].to_numpy(),
        )
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(
            f"{paths[0]} is not the School data ({reason(error)}); copy it again"
        ) from None
    names, school_index = np.unique(
        frame["school"].to_numpy().astype(str), return_inverse=True
    )
    for index in range(len(names)):
        rows = school_index == index
        std = x[rows].std(axis=0)
        # Inputs that describe the school are equal for all of its pupils. They are
        # shifted to 0, but not scaled.
        scale = np.where(std > 1e-12, std, 1)
        x[rows] = (x[rows] - x[rows].mean(axis=0)) / scale
    scores = (y - 1) / 69
    return {
        "x": x.astype(np.float32),
        "y": scores.astype(np.float32),
        "school": names[school_index],
    }

"""The London School data: exam scores of pupils by school.

They are of the Inner London Education Authority.

Expected in the data directory: school/ with school.csv.gz (columns school, f01 to f27,
score), checked by SHA-256. It has no public address in this form.
"""

from pathlib import Path

import numpy as np
import polars as pl

from fedtailor._files import reason
from fedtailor.federation.dataset import Dataset
from fedtailor.federation.datasets.registry import register
from fedtailor.federation.datasets.store import Arrays, DataDir, Source, read

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

    Prepared as by Liu et al. (2022): inputs float32 [N, 27] standardised in each school
    (over all of its pupils; the released code: over those that train; inputs that are
    equal in a school become 0), scores of 1 to 70 as (score - 1) / 69. Schools are
    natural clients.

    Raises:
        MissingData: the file is not at hand.
        ValueError: it is damaged or something else.
    """
    arrays = read(_SOURCE, _decode, data_dir)
    return Dataset(arrays["x"], arrays["y"], None, "School", client=arrays["school"])


def _decode(paths: list[Path]) -> Arrays:
    """Inputs standardised school by school, and scores scaled to [0, 1].

    Returns:
        Both, and the school of each pupil.
    """
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
    names, of_school = np.unique(
        frame["school"].to_numpy().astype(str), return_inverse=True
    )
    for number in range(len(names)):
        rows = of_school == number
        deviation = x[rows].std(axis=0)
        # inputs of the school as a whole are equal for all of its pupils: they are
        # shifted to 0, and not scaled
        scale = np.where(deviation > 1e-12, deviation, 1)
        x[rows] = (x[rows] - x[rows].mean(axis=0)) / scale
    scores = (y - 1) / 69
    return {
        "x": x.astype(np.float32),
        "y": scores.astype(np.float32),
        "school": names[of_school],
    }

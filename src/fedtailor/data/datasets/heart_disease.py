"""The UCI heart disease data of four hospitals, as FLamby's Fed-Heart-Disease.

Expected in the data directory: heart-disease/ with heart_disease_4hospitals.csv (the
four processed files of the UCI repository below one another, with a column hospital;
missing cells are empty), checked by SHA-256. It cannot be downloaded in this form.
"""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.files import reason
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

_FILE = "heart_disease_4hospitals.csv"
_SOURCE = Source(
    "the heart disease data",
    ("heart-disease",),
    (_FILE,),
    None,
    {_FILE: "sha256:20a926ed5cb2f2c189485e8d2605eb62f8b55ee8c313d508dee487957690a166"},
)
_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_LEFT_OUT = ("slope", "ca", "thal")
"""Columns that most rows of three hospitals lack."""
_CATEGORIES = ("cp", "restecg")
_TRAIN_SHARE = 0.66
_SPLIT_SEED = 43


@register(_SOURCE)
def heart_disease(data_dir: DataDir = None) -> Dataset:
    """Heart disease or none, of 740 patients in four hospitals, from 13 numbers.

    The data are prepared as FLamby does (du Terrail et al. 2022, Fed-Heart-Disease):
    without three columns and without incomplete rows; its published split of each
    hospital; inputs, float32 [740, 13], standardized in each hospital by its training
    rows. The hospitals are the natural clients.

    Raises:
        MissingData: the file is missing.
        ValueError: the file is damaged, or holds other data.
    """
    arrays = read(_SOURCE, _decode, data_dir)
    return Dataset(
        arrays["x"],
        arrays["y"],
        2,
        "Heart disease",
        test=arrays["test"],
        client=arrays["hospital"],
        class_names=("none", "disease"),
    )


def _decode(paths: list[Path]) -> Arrays:
    """Decode the file: standardized inputs, classes, hospitals and the test rows."""
    try:
        frame = pl.read_csv(paths[0], infer_schema_length=None)
        complete = frame.drop(_LEFT_OUT).drop_nulls()
        classes = (complete["num"] > 0).to_numpy().astype(np.int64)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(
            f"{paths[0]} is not the heart disease data ({reason(error)}); copy it again"
        ) from None
    hospitals = complete["hospital"].to_numpy().astype(str)
    x = _inputs(complete)
    rows, test = [], []
    for name in _HOSPITALS:
        own = np.flatnonzero(hospitals == name)
        is_test = _test_rows(classes[own])
        train = x[own[~is_test]]
        scale = train.std(axis=0, ddof=1) + 1e-9
        x[own] = (x[own] - train.mean(axis=0)) / scale
        rows.append(own)
        test.append(is_test)
    order = np.concatenate(rows)
    return {
        "x": x[order].astype(np.float32),
        "y": classes[order],
        "hospital": hospitals[order],
        "test": np.concatenate(test),
    }


def _inputs(complete: pl.DataFrame) -> NDArray[np.float64]:
    """[740, 13] numbers, and the categories without their first value as 0 or 1."""
    numbers = [
        name
        for name in complete.columns
        if name not in ("hospital", "num", *_CATEGORIES)
    ]
    indicators = []
    for name in _CATEGORIES:
        values = np.unique(complete[name].to_numpy())
        indicators += [complete[name].to_numpy() == value for value in values[1:]]
    columns = [complete[name].to_numpy().astype(np.float64) for name in numbers]
    return np.column_stack([*columns, *indicators])


def _test_rows(classes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The published split of a hospital, stratified where each class has three rows."""
    from sklearn.model_selection import train_test_split  # slow

    is_mixed = np.bincount(classes, minlength=2).min() > 2
    _, test = train_test_split(
        np.arange(len(classes)),
        test_size=1 - _TRAIN_SHARE,
        train_size=_TRAIN_SHARE,
        random_state=_SPLIT_SEED,
        stratify=classes if is_mixed else None,
    )
    mask = np.zeros(len(classes), bool)
    mask[test] = True
    return mask

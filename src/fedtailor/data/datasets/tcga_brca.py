"""Survival of breast cancer patients in six regions (TCGA-BRCA), as FLamby's
Fed-TCGA-BRCA.

Expected in the data directory: tcga-brca/ with brca.csv (39 columns, event E and time T)
and train_test_split.csv (fold2: split and region), as FLamby publishes them, checked by
SHA-256.
"""

from pathlib import Path

import numpy as np
import polars as pl

from fedtailor._base.files import reason
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

_TABLE, _SPLIT = "brca.csv", "train_test_split.csv"
_SOURCE = Source(
    "the TCGA-BRCA data",
    ("tcga-brca",),
    (_TABLE, _SPLIT),
    None,
    {
        _TABLE: "sha256:07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020",
        _SPLIT: "sha256:1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
    },
)


@register(_SOURCE)
def tcga_brca(data_dir: DataDir = None) -> Dataset:
    """Time to death of 1,088 patients in six regions, from 39 columns as they stand.

    Targets are [time in days, 1 if the patient died]. The split and the regions are
    FLamby's (du Terrail et al. 2022, Fed-TCGA-BRCA).

    Raises:
        MissingData: a file is missing.
        ValueError: a file is damaged, or holds other data.
    """
    arrays = read(_SOURCE, _decode, data_dir)
    return Dataset(
        arrays["x"],
        arrays["y"],
        None,
        "TCGA-BRCA",
        test=arrays["test"],
        client=arrays["region"],
    )


def _decode(paths: list[Path]) -> Arrays:
    """Decode the files: inputs, times and events, regions and the test rows."""
    try:
        frame, split = (pl.read_csv(path, infer_schema_length=None) for path in paths)
        rows = frame.join(split.select("pid", "fold2"), on="pid", maintain_order="left")
        inputs = rows.drop("pid", "E", "T", "fold2").cast(pl.Float64)
        targets = rows.select("T", "E").cast(pl.Float64)
        names = rows["fold2"].str.split("_")
        test = (names.list.get(0) == "test").to_numpy()
        region = names.list.get(1).cast(pl.Int64).to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(
            f"{paths[0].parent} is not the TCGA-BRCA data ({reason(error)}); copy it again"
        ) from None
    order = np.argsort(region, kind="stable")
    return {
        "x": inputs.to_numpy()[order].astype(np.float32),
        "y": targets.to_numpy()[order].astype(np.float32),
        "region": np.array([f"c{number}" for number in region[order]]),
        "test": test[order],
    }

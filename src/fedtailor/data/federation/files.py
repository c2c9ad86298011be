"""Read federations from .npz, Parquet and CSV files, and from data frames."""

import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.files import existing_file, translate_read_errors
from fedtailor._base.memory import check_memory
from fedtailor._base.parquet import read_foreign_parquet
from fedtailor.data.federation.build import from_arrays
from fedtailor.data.federation.federation import Federation

NUMPY_ERRORS = (
    OSError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    LookupError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""Errors that reading a damaged .npz or .npy file, or another file, may raise."""


def from_npz(path: str | os.PathLike[str], **options: Any) -> Federation:
    """Read a federation from an .npz file with arrays `x`, `y` and `client`.

    The arrays `split` and `group` are optional. Several inputs of an example are arrays
    `x.NAME`.

    Args:
        path: the file. Pickled objects in it are refused.
        options: further arguments of `from_arrays`.

    Returns:
        The federation, named after the file.

    Raises:
        ValueError: the file is missing or damaged, an array is missing, or the arrays
            are inconsistent.

    Example:
        >>> np.savez(
        ...     "own.npz",
        ...     x=np.arange(12.0)[:, None],
        ...     y=np.arange(12) % 2,
        ...     client=["a", "b"] * 6,
        ... )
        >>> len(ft.federation.from_npz("own.npz"))
        2
    """
    path = existing_file(path)
    with translate_read_errors(path):
        path.open("rb").close()
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except NUMPY_ERRORS:
        raise _unreadable_npz(path) from None
    # A small compressed file may contain terabytes.
    check_memory(size, 1, str(path))
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = sorted(archive.files)
            known = ("x", "y", "client", "split", "group")
            arrays = {key: archive[key] for key in known if key in names}
            several = [key for key in names if key.startswith("x.") and len(key) > 2]
            if several and "x" not in arrays:
                arrays["x"] = {key[2:]: archive[key] for key in several}
    except NUMPY_ERRORS:
        raise _unreadable_npz(path) from None
    missing = [key for key in ("x", "y", "client") if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no array {missing[0]!r}, only {', '.join(names)}; it needs x,"
            " y and client"
        )
    return from_arrays(**{"name": path.stem, **arrays, **options})


def _unreadable_npz(path: Path) -> ValueError:
    """The error for a file that NumPy cannot read."""
    return ValueError(
        f"{path} is not a readable .npz of plain arrays (pickled objects are refused);"
        " write it with numpy.savez"
    )


def from_frame(
    source: pl.DataFrame | str | os.PathLike[str],
    *,
    client: str = "client",
    label: str = "label",
    features: Sequence[str] | str | None = None,
    split: str | None = None,
    group: str | None = None,
    **options: Any,
) -> Federation:
    """Read a federation from a polars frame, or from a Parquet, CSV or TSV file.

    Args:
        source: a polars frame, or a path that ends in .parquet, .csv or .tsv (also
            .csv.gz). Each row is an example.
        client: column of the client.
        label: column of the target: integers, text (which is encoded, and kept as class
            names) or floats.
        features: numeric columns, or one column of arrays of equal length; by default
            all other columns.
        split: column with "train", "val" or "test".
        group: column with the true group of the client.
        options: further arguments of `from_arrays`.

    Returns:
        The federation, named after the file if it was read from one.

    Raises:
        ValueError: the file is missing or unreadable, a column is missing, incomplete
            or not numeric, or the columns are inconsistent.

    Example:
        >>> import polars as pl
        >>> frame = pl.DataFrame(
        ...     {"client": ["a", "b"] * 6, "x": range(12), "label": [0, 0, 1] * 4}
        ... )
        >>> ft.federation.from_frame(frame).names
        ('a', 'b')
    """
    if isinstance(source, pl.DataFrame):
        frame, where = source, "the frame"
    else:
        frame, where = _read(_existing(source)), str(source)
        options.setdefault("name", Path(source).name.split(".")[0])
    role_columns = [
        column for column in (client, label, split, group) if column is not None
    ]
    if features is None:
        feature_columns = [name for name in frame.columns if name not in role_columns]
    elif isinstance(features, str):
        feature_columns = [features]
    else:
        feature_columns = list(features)
    if not feature_columns:
        raise ValueError(
            f"{where} has no feature columns besides {', '.join(role_columns)}; name"
            " them with features"
        )
    _require_complete(frame, [*role_columns, *feature_columns], client, where)
    # Like `from_npz`, an argument replaces what the file holds.
    options.setdefault("y", _to_numpy(frame[label]))
    return from_arrays(
        x=_feature_array(frame, feature_columns, where),
        client=_to_numpy(frame[client]),
        split=None if split is None else _to_numpy(frame[split]),
        group=None if group is None else _to_numpy(frame[group]),
        **options,
    )


def _existing(path: str | os.PathLike[str]) -> Path:
    """The path, with `~` expanded.

    Raises:
        ValueError: there is no such file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {path}; check the path")
    return path


def _read(path: Path) -> pl.DataFrame:
    """Read a table from a file, whose format follows from its suffix.

    Raises:
        ValueError: the file cannot be read, or its suffix is unknown.
    """
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            return read_foreign_parquet(path)
        if name.endswith((".csv", ".tsv")):
            separator = "\t" if name.endswith(".tsv") else ","
            return pl.read_csv(
                path, separator=separator, infer_schema_length=None, glob=False
            )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read: {str(error).splitlines()[0]}"
        ) from None
    raise ValueError(
        f"{path} is of no known kind; give a .parquet, .csv or .tsv file, or .npz to"
        " from_npz"
    )


def _require_complete(
    frame: pl.DataFrame, columns: list[str], client: str, where: str
) -> None:
    """Require that the columns exist and have no empty cells."""
    for column in columns:
        if column not in frame.columns:
            raise ValueError(
                f"{where} has no column {column!r}; its columns are"
                f" {', '.join(frame.columns)}"
            )
        is_missing = frame[column].is_null()
        if is_missing.any():
            row = int(is_missing.arg_max() or 0)
            raise ValueError(
                f"{where}: column {column!r} is empty in row {row} (client"
                f" {frame[client][row]!r}); fill or drop it"
            )


def _to_numpy(series: pl.Series) -> NDArray[Any]:
    """Convert a column to numbers, booleans, or fixed-width text."""
    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        return series.to_numpy()
    return np.array(series.cast(pl.String).to_list(), dtype=np.str_)


def _feature_array(frame: pl.DataFrame, columns: list[str], where: str) -> NDArray[Any]:
    """Convert feature columns to inputs.

    Returns:
        [N, features], or [N, ...] for one column of arrays. The dtype is uint8 if all
        columns are uint8, otherwise float32.

    Raises:
        ValueError: a column is not numeric.
    """
    series = [frame[column] for column in columns]
    if len(series) == 1 and isinstance(series[0].dtype, pl.List | pl.Array):
        return _stack_list_column(series[0], where)
    for column in series:
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise ValueError(
                f"{where}: feature column {column.name!r} is {column.dtype}, not a"
                " number; encode it, or name the columns to use with features"
            )
    are_pixels = all(column.dtype == pl.UInt8 for column in series)
    numbers = [column.cast(pl.Float64).to_numpy() for column in series]
    return np.column_stack(numbers).astype(np.uint8 if are_pixels else np.float32)


def _stack_list_column(series: pl.Series, where: str) -> NDArray[Any]:
    """Convert a column of arrays of equal length to an array [N, ...]."""
    if isinstance(series.dtype, pl.List):
        lengths = series.list.len().unique()
        if len(lengths) != 1:
            raise ValueError(
                f"{where}: the arrays of column {series.name!r} have {lengths.min()} to"
                f" {lengths.max()} entries; they must all have the same number"
            )
        series = series.list.to_array(int(lengths[0]))
    values = series.to_numpy()
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: column {series.name!r} holds {values.dtype}, not numbers;"
            " encode it"
        )
    return values if values.dtype == np.uint8 else values.astype(np.float32)

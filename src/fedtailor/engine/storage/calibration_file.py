"""The file next to exported models for sets, intervals and temperatures."""

from pathlib import Path

from fedtailor.engine.storage.json_file import read_json, write_json
from fedtailor.statistics.conformal import Calibration

CALIBRATION = "calibration.json"
_FORMAT = "fedtailor calibration 1"


def write_calibration(calibration: Calibration, directory: Path) -> Path:
    """Write a calibration into a directory of models.

    Returns:
        The file.

    Raises:
        ValueError: it cannot be written.
    """
    return write_json(directory / CALIBRATION, _FORMAT, calibration.as_dict())


def read_calibration(directory: Path) -> Calibration:
    """Read the calibration of a directory of models.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = directory / CALIBRATION
    if not path.exists():
        raise ValueError(
            f"{directory} holds no {CALIBRATION}, which sets and intervals are from;"
            " export the models of a run with validation rows"
        )
    content = read_json(path, _FORMAT, "export again")
    try:
        return Calibration.from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; export again") from None

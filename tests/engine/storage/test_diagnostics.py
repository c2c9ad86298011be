"""What methods tell about themselves, written and read back."""

import dataclasses

import numpy as np
import pytest

from fedtailor.engine.storage.diagnostics import (
    ARRAYS,
    DIAGNOSTICS,
    read_diagnostics,
    write_diagnostics,
)
from fedtailor.protocol.diagnostics import (
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)

FOUND = [
    MatrixDiagnostic("affinity", "Affinity", np.array([[0.1, 0.9], [-0.4, 1.4]])),
    LineDiagnostic(
        "gain", "Gain", np.arange(3), np.array([0.5, np.nan, 0.25]), "client", "gain"
    ),
    LineDiagnostic(
        "silhouette",
        "S",
        np.arange(2.0, 4),
        np.array([0.1, 0.2]),
        "streams",
        "silhouette",
        chosen=3.0,
    ),
    TreeDiagnostic(
        "splits", "Splits", np.array([0, 0]), np.array([3, 8]), np.array([0, 1, 2, 1])
    ),
]


def test_all_kinds_come_back_as_they_were(tmp_path):
    write_diagnostics(tmp_path, FOUND)
    found = read_diagnostics(tmp_path)
    assert [type(one) for one in found] == [type(one) for one in FOUND]
    for one, other in zip(found, FOUND, strict=True):
        for field in dataclasses.fields(other):
            np.testing.assert_array_equal(
                getattr(one, field.name), getattr(other, field.name)
            )


def test_a_method_without_any_leaves_no_file(tmp_path):
    assert read_diagnostics(tmp_path) == []
    write_diagnostics(tmp_path, FOUND)
    write_diagnostics(tmp_path, [])
    assert list(tmp_path.iterdir()) == [] and read_diagnostics(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (DIAGNOSTICS, b"[{"),
        (DIAGNOSTICS, b'[{"kind": "cube"}]'),
        (DIAGNOSTICS, b"[3]"),
        (ARRAYS, b"x"),
        (ARRAYS, None),
    ],
)
def test_damage_is_named(tmp_path, name, content):
    write_diagnostics(tmp_path, FOUND)
    if content is None:
        (tmp_path / name).unlink()
        with pytest.raises(OSError, match="No such file"):
            read_diagnostics(tmp_path)
        return
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"diagnostics\.json is damaged"):
        read_diagnostics(tmp_path)


def test_something_else_is_no_diagnostic(tmp_path):
    with pytest.raises(TypeError, match="a matrix, a line or a tree, not dict"):
        write_diagnostics(tmp_path, [{}])

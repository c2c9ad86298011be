"""`fedtailor federation`: what it writes, and options that no federation can have."""

import csv
import io

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.cli.commands.federation import _as_csv


def test_predictions_are_cells_whatever_classes_are_called():
    classes = ["no", "a,b", 'c"d', "e f", "", " g", "-1", "<=50K"]
    assert [row for (row,) in csv.reader(io.StringIO(_as_csv(classes)))] == [
        "prediction",
        *classes,
    ]
    assert _as_csv(["=1+1", "e\nf\x1b"]) == "prediction\n'=1+1\ne f\\x1b\n"
    # as `fedtailor predict` writes numbers: no digits that float32 does not have
    for values in (np.array([0.1, 1e-5, 2.0], np.float32), np.array([0.1, 1 / 3])):
        assert _as_csv(values) == pl.DataFrame({"prediction": values}).write_csv()
    assert _as_csv(np.float32([0.1])) == "prediction\n0.1\n"


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "0.5", "1e9"])
def test_a_wait_in_which_nobody_can_answer_is_refused(tmp_path, capsys, wait):
    assert main(["federation", "serve", str(tmp_path), "--wait", wait]) == 2
    said = capsys.readouterr().err
    assert "--wait is" in said and "at least 5" in said and said.count("\n") == 1

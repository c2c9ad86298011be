"""`fedtailor federation`: what it writes."""

import csv
import io

from fedtailor.cli.commands.federation import _as_csv


def test_predictions_are_cells_whatever_classes_are_called():
    classes = ["no", "a,b", 'c"d', "e\nf", "", " g"]
    text = _as_csv("prediction", classes)
    assert [row for (row,) in csv.reader(io.StringIO(text))] == ["prediction", *classes]
    assert _as_csv("prediction", [0.1, 2.0]) == "prediction\n0.1\n2.0\n"

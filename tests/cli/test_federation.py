"""`fedtailor federation`: what it writes, and options that no federation can have."""

import csv
import io

import numpy as np
import pytest

import fedtailor as ft
from fedtailor._base.printable import csv_of_frame
from fedtailor.cli import main
from fedtailor.cli.commands.federation import predictions_of
from fedtailor.engine.storage import PersonalModel
from fedtailor.models.tasks import squared_error
from fedtailor.remote.job.job import Schema

CLASSES = ("no", "a,b", 'c"d', "e f", "=1+1", " g", "-1", "<=50K")


def predicted(model, x, classes, **options):
    """What a client's model predicts, as rows of cells."""
    theta = np.arange(model.size, dtype=np.float32) / 10
    schema = Schema("y", classes, {})
    options = {"probabilities": False, **options}
    table = predictions_of(
        PersonalModel("a", theta, model), x, schema, None, options["probabilities"]
    )
    return table, list(csv.reader(io.StringIO(csv_of_frame(table))))


def test_predictions_are_cells_whatever_classes_are_called():
    model = ft.models.logistic().bind((2,), len(CLASSES))
    x = np.array([[1.0, -1.0], [0.5, 3.0], [-9.0, -9.0]], np.float32)
    table, (header, *cells) = predicted(model, x, CLASSES, probabilities=True)
    assert header[:3] == ["row", "prediction", "probability"]
    assert header[3:] == [f"p({name})" for name in CLASSES]
    assert [row[0] for row in cells] == ["1", "2", "3"]
    personal = PersonalModel("a", np.arange(model.size, dtype=np.float32) / 10, model)
    chances = personal.probabilities(x)
    np.testing.assert_array_equal(table.to_numpy()[:, 3:].astype(np.float32), chances)
    assert table["prediction"].to_list() == [
        CLASSES[number] for number in personal.predict(x)
    ]
    np.testing.assert_array_equal(table["probability"], chances.max(axis=1))
    assert predicted(model, x, CLASSES)[0].columns == header[:3]


def test_predictions_of_a_number_have_no_probabilities():
    model = ft.models.logistic().bind((2,), 1, loss=squared_error)
    x = np.array([[1.0, -1.0], [0.5, 3.0]], np.float32)
    _, (header, *cells) = predicted(model, x, None)
    assert header == ["row", "prediction"] and len(cells) == 2
    with pytest.raises(ValueError, match="no classes: there are no probabilities"):
        predicted(model, x, None, probabilities=True)


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "0.5", "1e9"])
def test_a_wait_in_which_nobody_can_answer_is_refused(tmp_path, capsys, wait):
    assert main(["federation", "serve", str(tmp_path), "--wait", wait]) == 2
    said = capsys.readouterr().err
    assert "--wait is" in said and "at least 5" in said and said.count("\n") == 1

"""Every type of label, with every option for targets, through all commands that use a
model.
"""

import json

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli import main
from fedtailor.data.tables.target import TargetEncoding

ROWS = 60
CODES = np.arange(ROWS) % 3  # the class of a row
GRADES = ("low", "mid", "high")

# name: (targets of classes 0, 1 and 2; options; the labels that a person sees)
CASES = {
    "whole": ((0, 1, 2), {}, ["0", "1", "2"]),
    "whole, negative": ((-1, 0, 4), {}, ["-1", "0", "4"]),
    "whole > 0": ((0, 1, 2), {"positive": ">0"}, ["0", ">0"]),
    "whole >= 2": ((0, 1, 2), {"positive": ">=2"}, ["not >=2", "2"]),
    "whole == 1": ((0, 1, 2), {"positive": "==1"}, ["not ==1", "1"]),
    "whole > 0, two values": ((0, 1, 1), {"positive": ">0"}, ["0", "1"]),
    "whole, one named": ((0, 1, 2), {"positive": 0}, ["not 0", "0"]),
    "whole, two named": ((0, 1, 2), {"positive": ("1", "2")}, ["0", "1 or 2"]),
    "decimals": (
        (0.0, 0.5, 1.0),
        {"task": "classification"},
        ["0.0", "0.5", "1.0"],
    ),
    "whole as decimals": ((0.0, 1.0, 2.0), {}, ["0", "1", "2"]),
    "decimals > 0": ((0.0, 0.5, 1.5), {"positive": ">0"}, ["0", ">0"]),
    "decimals, one named": ((0.5, 1.0, 1.5), {"positive": "0.5"}, ["not 0.5", "0.5"]),
    "decimals, two left": ((0.5, 1.0, 1.0), {"positive": "0.5"}, ["1.0", "0.5"]),
    "text": (GRADES, {}, ["high", "low", "mid"]),
    "text, one named": (GRADES, {"positive": "high"}, ["not high", "high"]),
    "text, two named": (GRADES, {"positive": ("mid", "high")}, ["low", "mid or high"]),
    "booleans": ((False, True, True), {}, ["false", "true"]),
    "booleans, one named": (
        (False, True, True),
        {"positive": "false"},
        ["true", "false"],
    ),
    "regression": ((1.5, 2.5, 4.25), {}, None),
    "whole, regression": ((1, 2, 4), {"task": "regression"}, None),
}


def write_rows(path, targets):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "site": [f"site {row // 3 % 2}" for row in range(ROWS)],
            "dose": CODES + rng.normal(0, 0.2, ROWS),
            "age": rng.normal(50, 9, ROWS),
            "grade": [targets[code] for code in CODES],
        }
    )
    write = frame.write_csv if path.suffix == ".csv" else frame.write_parquet
    write(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("name", CASES)
def test_labels_go_through_all_that_uses_a_model(name, ending, tmp_path, capsys):
    targets, options, labels = CASES[name]
    path = write_rows(tmp_path / f"table{ending}", targets)
    table = ft.tables.from_table(path, client="site", target="grade", **options)
    directory = tmp_path / "run"
    run = ft.run(
        ft.FedAvg(sgd=ft.SGD(lr=0.5, epochs=2)),
        table,
        ft.models.logistic(),
        1,
        directory=directory,
    )

    # In Python, labels have one type.
    rows = pl.read_csv(path) if ending == ".csv" else pl.read_parquet(path)
    predicted = run.personal("site 0").predict_rows(rows)
    if labels is None:
        assert predicted.dtype == np.float64
    else:
        assert len({type(label) for label in table.preprocessing.target.classes}) == 1
        assert {str(label).lower() for label in predicted.tolist()} <= set(labels)
    np.testing.assert_array_equal(
        ft.open(directory).personal("site 0").predict_rows(rows), predicted
    )

    # On the command line, all of it ends well.
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        assert code == 0, error
        return out

    exported = tmp_path / "models"
    newcomer = tmp_path / "newcomer"
    call("export", directory, "--out", exported)
    call("card", directory, "--client", "site 0")
    call("models", directory)
    call("enroll", directory, "--data", path, "--client", "new", "--out", newcomer)
    for models in (directory, exported, newcomer):
        out = tmp_path / "predictions.csv"
        flags = [] if labels is None else ["--probabilities"]
        client = [] if models == newcomer else ["--client", "site 1"]
        call("predict", models, path, *client, "--out", out, *flags)
        written = pl.read_csv(out, infer_schema=False)
        assert len(written) == ROWS
        if labels is None:
            assert written["prediction"].cast(pl.Float64).is_finite().all()
            continue
        assert set(written["prediction"]) <= set(labels)
        columns = [column for column in written.columns if column.startswith("p(")]
        assert columns == [f"p({label})" for label in labels]
        # The column of a label holds the probability of that label.
        for row in written.iter_rows(named=True):
            assert row["probability"] == row[f"p({row['prediction']})"]


@pytest.mark.extra
def test_onnx_names_all_classes_by_text_or_number(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = write_rows(tmp_path / "table.csv", (0, 1, 2))
    table = ft.tables.from_table(path, client="site", target="grade", positive=">0")
    run = ft.run(ft.Local(), table, ft.models.logistic(), 1, directory=tmp_path / "run")
    assert len(run.federation.names) == 2
    arguments = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "onnx")]
    assert main([*arguments, "--format", "onnx"]) == 0
    model = onnx.load(next((tmp_path / "onnx").glob("**/*.onnx")))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["classes"]) == ["0", ">0"]


def test_labels_that_an_older_version_stored_with_two_types_become_text():
    target = TargetEncoding("num", "classification", (0, ">0"), positive=(">0",))
    assert target.classes == ("0", ">0")
    assert target.decode([1, 0]).tolist() == [">0", "0"]
    assert target.encode(pl.Series([0, 3])).tolist() == [0, 1]
    numbers = TargetEncoding("dose", "classification", (0, 0.5))
    assert numbers.encode(pl.Series([0.5, 0.0])).tolist() == [1, 0]
    assert numbers.encode(pl.Series(["0", "0.5"])).tolist() == [0, 1]

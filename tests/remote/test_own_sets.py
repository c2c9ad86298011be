"""Sets and intervals at a client of a federation: from its own validation rows, which
stay there.
"""

from io import StringIO

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.engine.storage.calibration_file import CALIBRATION, read_calibration
from fedtailor.engine.storage.export import load_models
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.job.examples import federation_from_rows
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import read_table
from fedtailor.statistics.conformal import conformal_rank
from remote.test_survival_and_windows import NAMES, SURVIVAL, Clients, patients

JOB = """[coordinator]
address = "127.0.0.1:9092"
[data]
target = "{target}"
{classes}
val = 0.4
test = 0.2
preprocessing = "federated"
[data.columns]
age = "number"
"""


def rows(name, count=150):
    rng = np.random.default_rng(NAMES.index(name))
    age = rng.normal(50, 9, count)
    cost = 1000 + 20 * age + rng.normal(0, 50, count)
    return pl.DataFrame(
        {"age": age, "cost": cost, "ill": np.where(cost > 2000, "yes", "no")}
    )


@pytest.mark.parametrize("target", ["cost", "ill"])
def test_sets_are_from_the_clients_own_validation_rows(target, tmp_path, capsys):
    classes = 'classes = ["no", "yes"]' if target == "ill" else ""
    clients = Clients(tmp_path, JOB.format(target=target, classes=classes), rows)
    clients.train()
    schema, job = clients.job.schema, clients.job
    plan = plan_of(job, clients.agreed)
    directory = clients.store("b").directory / PERSONAL
    model = load_models(directory, plan.model)["b"]
    own = read_table(clients.files["b"], schema).rows(clients.agreed)
    val = federation_from_rows(job, {"b": own}, clients.agreed).client("b").val
    assert len(val.y) == 60
    if target == "ill":
        scores = 1 - model.probabilities(val.x)[np.arange(60), val.y]
    else:
        scores = np.abs(model.outputs(val.x)[:, 0] - val.y)
    found = read_calibration(directory).clients["b"].scores
    np.testing.assert_allclose(found, np.sort(scores), atol=1e-6)
    assert len(read_calibration(directory).clients) == 1

    kit, new = clients.kit("b"), rows("a", 40)
    new.with_columns(note=pl.lit("x")).drop("cost", "ill").write_csv(
        tmp_path / "new.csv"
    )
    ask = ["federation", "predict", str(kit), "--data", str(tmp_path / "new.csv")]
    capsys.readouterr()
    assert main([*ask, "--coverage", "0.9"]) == 0
    shown = capsys.readouterr()
    assert "from 60 validation rows of b" in shown.err
    table = pl.read_csv(StringIO(shown.out))
    threshold = np.sort(scores)[conformal_rank(60, 0.9) - 1]
    if target == "cost":
        scale = clients.agreed.preprocessing(schema).target_scale
        width = (table["high"] - table["low"]).to_numpy()
        half = scale * threshold
        room = 1e-5 * (half + 0.05 * table["prediction"].abs().to_numpy())
        np.testing.assert_allclose(width, 2 * (half + room), rtol=1e-6)
        middle = (table["high"] + table["low"]).to_numpy() / 2
        np.testing.assert_allclose(middle, table["prediction"], rtol=1e-5)
    else:
        assert table["set"].is_in(["no", "yes", "no | yes", "yes | no"]).all()
        has_both = table["set"].str.contains("|", literal=True)
        # The less probable class is in the set if its score is within the threshold.
        less = 1 - table["probability"].to_numpy()
        assert (has_both.to_numpy() == (1 - less <= threshold)).all()
    assert main([*ask, "--coverage", "0.999"]) == 0
    assert "too few for 99.9 %" in capsys.readouterr().err
    assert main([*ask, "--coverage", "1.5"]) == 2
    assert "coverage" in capsys.readouterr().err


def test_there_are_none_of_survival(tmp_path, capsys):
    text = SURVIVAL.format(hazard="discrete", preprocessing="federated")
    clients = Clients(tmp_path, text, patients)
    clients.train()
    assert not (clients.store("a").directory / PERSONAL / CALIBRATION).exists()
    patients("a", 5).write_csv(tmp_path / "new.csv")
    ask = ["federation", "predict", str(clients.kit("a"))]
    ask += ["--data", str(tmp_path / "new.csv"), "--coverage", "0.9"]
    assert main(ask) == 2
    assert "of classes or one number" in capsys.readouterr().err

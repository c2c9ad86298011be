"""Privacy audits of runs: models that memorise their rows, models that never saw them,
and what canaries prove.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import fedtailor as ft
from fedtailor.cli.main import main
from fedtailor.data.federation import Federation, Ragged
from fedtailor.deployment.auditing import (
    AUDIT,
    _members,
    audit_run,
    read_audit,
    write_audit,
)
from fedtailor.engine.client.private_steps import PrivateSteps

CLIENTS = 4


def noise(seed=0, train=30, test=30, **changes):
    """Clients whose labels are tossed: nothing can be learned, only memorised."""
    rng = np.random.default_rng(seed)
    each = train + test
    rows = np.arange(CLIENTS * each).reshape(CLIENTS, each)
    options = {
        "x": rng.normal(size=(CLIENTS * each, 20)).astype(np.float32),
        "y": rng.integers(0, 10, CLIENTS * each),
        "train": Ragged.of(list(rows[:, :train])),
        "val": Ragged.empty(CLIENTS),
        "test": Ragged.of(list(rows[:, train:])),
        "names": tuple("abcd"),
        "classes": 10,
    }
    return Federation(**options | changes)


def trained(federation, path, epochs=300, lr=0.1, **options):
    sgd = ft.SGD(lr=lr, epochs=epochs, batch_size=10, **options)
    ft.run(ft.Local(sgd=sgd), federation, ft.models.mlp(64), 1, directory=path, seed=1)
    return ft.open(path, federation=federation)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    return trained(noise(), tmp_path_factory.mktemp("audit") / "run")


def test_a_model_that_memorises_is_told(memorised):
    found = audit_run(memorised)
    assert set(found.clients) == set("abcd")
    for model in (*found.clients.values(), found.together):
        assert model.threshold.area.estimate > 0.9
        assert model.threshold.area.low > 0.8
    assert (found.together.members, found.together.others) == (120, 120)
    assert found.together.threshold.told[0].low > 0.5
    assert found.together.ratio is None and found.canary is None


def test_a_model_that_never_saw_the_rows_is_guessing(tmp_path):
    """The rows of `memorised` are members of a run whose models did not train on them."""
    untrained = trained(noise(), tmp_path / "run", epochs=1, lr=1e-9)
    found = audit_run(untrained)
    for model in (*found.clients.values(), found.together):
        assert model.threshold.area.low < 0.5 < model.threshold.area.high


def test_shadow_models_tell_more_where_rows_differ(tmp_path):
    """Some rows are easy for everybody, which hides what was memorised."""
    federation = noise(3, train=40, test=40)
    rng = np.random.default_rng(5)
    easy = rng.random(len(federation.y)) < 0.5
    x = federation.x.copy()
    x[easy, federation.y[easy]] = 8.0
    run = trained(replace(federation, x=x), tmp_path / "run", epochs=15)
    counted = []
    found = audit_run(run, shadows=8, progress=lambda *it: counted.append(it))
    assert counted == [(number, 8) for number in range(1, 9)]
    ratio = found.together.ratio
    assert ratio is not None and ratio.area.low > 0.5
    assert ratio.area.estimate > found.together.threshold.area.estimate


@pytest.mark.parametrize(("train", "test", "shadows"), [(30, 30, 4), (22, 8, 8)])
def test_each_row_is_left_out_about_as_often(train, test, shadows):
    inside = _members(np.random.default_rng(0), train, test, shadows)
    assert (inside.sum(axis=1) == train).all()
    left_out = (~inside).sum(axis=0)
    assert left_out.min() >= 1 and left_out.max() - left_out.min() <= 2


def test_too_few_shadow_models_are_told(memorised):
    with pytest.raises(ValueError, match=r"3 shadow models are too few: 4 leave"):
        audit_run(memorised, shadows=3)


def test_canaries_find_steps_without_noise(memorised):
    found = audit_run(memorised, canaries=100).canary
    assert found is not None and found.epsilon is None
    assert found.epsilon_at_least > 1


def test_canaries_do_not_refute_a_true_promise(tmp_path):
    run = trained(
        noise(), tmp_path / "run", epochs=2, dp_noise=1.0, dp_norm=1.0, dp_delta=1e-3
    )
    found = audit_run(run, canaries=100).canary
    assert found is not None and found.epsilon is not None
    assert 0 <= found.epsilon_at_least <= found.epsilon
    assert found.delta == 1e-3


@pytest.mark.nightly
def test_canaries_refute_a_false_promise(tmp_path, monkeypatch):
    """Steps that add no noise, with the accounting of those that do."""
    begin = PrivateSteps.__init__

    def begin_without_noise(self, *arguments, **options):
        begin(self, *arguments, **options)
        self._deviation = 0.0 * self._deviation

    monkeypatch.setattr(PrivateSteps, "__init__", begin_without_noise)
    jax.clear_caches()
    try:
        run = trained(
            noise(),
            tmp_path / "run",
            epochs=100,
            dp_noise=30.0,
            dp_norm=1.0,
            dp_delta=1e-3,
        )
        found = audit_run(run, canaries=100).canary
    finally:
        jax.clear_caches()
    assert found is not None and found.epsilon is not None
    assert found.epsilon_at_least > found.epsilon


@pytest.mark.parametrize(
    ("canaries", "message"),
    [(5, "5 canaries prove nothing"), (121, "more than the 120 test rows")],
)
def test_canaries_that_prove_nothing_are_refused(memorised, canaries, message):
    with pytest.raises(ValueError, match=message):
        audit_run(memorised, canaries=canaries)


def test_without_test_rows_there_is_nothing_to_compare(tmp_path):
    federation = noise()
    run = trained(
        replace(federation, test=Ragged.empty(CLIENTS)), tmp_path / "run", epochs=1
    )
    with pytest.raises(ValueError, match="no client with training and test rows"):
        audit_run(run)


def test_a_client_without_test_rows_is_left_out(tmp_path):
    federation = noise()
    test = [federation.test[client] for client in range(CLIENTS)]
    run = trained(
        replace(federation, test=Ragged.of([test[0][:0], *test[1:]])),
        tmp_path / "run",
        epochs=1,
    )
    found = audit_run(run)
    assert np.isnan(found.clients["a"].threshold.area.estimate)
    assert found.together.members == 90
    write_audit(found, run.path)
    assert "Not audited: this client" in ft.model_card(run, "a")


def test_the_audit_is_read_as_it_was_written(memorised):
    found = audit_run(memorised, canaries=20)
    write_audit(found, memorised.path)
    assert read_audit(memorised.path) == found
    card = ft.model_card(memorised, "a")
    assert "## Membership" in card and "30 training rows from 30 test rows" in card
    assert "20 canaries: epsilon is at least" in card


def test_a_damaged_audit_is_told(memorised):
    write_audit(audit_run(memorised), memorised.path)
    path = memorised.path / AUDIT
    content = json.loads(path.read_text())
    content["rounds"] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged"):
        read_audit(memorised.path)
    path.unlink()
    assert "Not audited" in ft.model_card(memorised, "a")


def test_the_command(trained_scenario, capsys):
    assert main(["audit", str(trained_scenario)]) == 0
    printed = capsys.readouterr().out
    assert "all together" in printed and "at 10 % false accusations" in printed
    assert (trained_scenario / AUDIT).exists()
    assert main(["audit", str(trained_scenario), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert 0 <= content["together"]["threshold"]["area"]["estimate"] <= 1
    assert main(["check", str(trained_scenario)]) == 0


@pytest.fixture(scope="module")
def trained_scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("audited") / "run"
    command = ["run", "local", "digits-rotated", "--rounds", "2", "--out", str(path)]
    assert main(command) == 0
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shadows", "-1"], "--shadows is -1"),
        (["--canaries", "-1"], "--canaries is -1"),
        (["--shadows", "2"], "2 shadow models are too few"),
        (["--canaries", "5"], "5 canaries prove nothing"),
        (["--canaries", "100000"], "more than the"),
    ],
)
def test_wrong_options_are_told(trained_scenario, arguments, message, capsys):
    assert main(["audit", str(trained_scenario), *arguments]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert message in told[-1]


def test_what_is_no_run_is_told(tmp_path, capsys):
    assert main(["audit", str(tmp_path / "nothing")]) == 2
    assert "there is no directory" in capsys.readouterr().err

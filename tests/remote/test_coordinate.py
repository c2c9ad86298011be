"""A job from its file to personal models, with clients in this process behind real
messages.
"""

import numpy as np
import polars as pl
import pytest

from fedtailor.remote.examples import federation_of, split_rows
from fedtailor.storage.run_directory import METRICS, SUMMARY
from fedtailor.training import Callback
from remote.jobs import NAMES, Clients


class Dies(Callback):
    """As if the coordinator's process was killed after a round."""

    def __init__(self, after):
        self.after = after

    def after_round(self, training, evaluated):
        if training.round == self.after:
            raise MemoryError


def test_a_job_gives_the_simulations_measurements_and_leaves_models_at_the_clients(
    tmp_path,
):
    clients = Clients(tmp_path / "wards")
    clients.train(NAMES)
    simulated = clients.simulated(NAMES, 4)
    keys = ["round", "client", "split", "metric"]
    measured, wanted = (
        frame.sort(keys)
        for frame in (
            pl.read_parquet(clients.directory / "run" / METRICS),
            simulated.frame(),
        )
    )
    assert len(measured) == 4 * 4 * 2 * 2 and measured.select(keys).equals(
        wanted.select(keys)
    )
    np.testing.assert_allclose(measured["value"], wanted["value"], rtol=1e-5)
    for name in NAMES:
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-5,
            atol=1e-6,
        )
        assert set(clients.personal(name).predict(clients.rows[name].x)) == {0, 1}
    assert (clients.directory / "run" / SUMMARY).is_file()


def test_a_coordinator_that_died_goes_on_to_the_same_bytes(tmp_path):
    straight, killed = Clients(tmp_path / "straight"), Clients(tmp_path / "killed")
    straight.train(NAMES)
    with pytest.raises(MemoryError):
        killed.train(NAMES, callbacks=(Dies(after=2),))
    assert not (killed.directory / "run" / SUMMARY).exists()
    with pytest.raises(
        ValueError, match="already holds a run; continue it with resume"
    ):
        killed.train(NAMES)
    killed.train(NAMES, resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(
            killed.personal(name).theta, straight.personal(name).theta
        )
    one, other = (
        (it.directory / "run" / METRICS).read_bytes() for it in (straight, killed)
    )
    assert one == other


def test_clients_that_come_after_training_are_served_as_newcomers(tmp_path):
    clients = Clients(tmp_path / "wards", rounds=2)
    clients.train(NAMES[:3])
    before = clients.personal("a").theta
    clients.set_rounds(4)
    training = clients.train(NAMES, resume=True)
    assert training.executor.seen.names and set(training.executor.unseen.names) == {"d"}
    simulated = clients.simulated(NAMES[:3], 4)
    assert (clients.personal("a").theta != before).any()
    for name in NAMES[:3]:
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-5,
            atol=1e-6,
        )
    own = federation_of(clients.job, {"d": clients.rows["d"]})
    train = own.train[0]
    enrolled = simulated.enroll(own.x[train], own.y[train], name="d")
    np.testing.assert_allclose(
        clients.personal("d").theta, enrolled.theta, rtol=1e-5, atol=1e-6
    )
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    assert set(measured.filter("unseen")["client"]) == {"d"}


def test_rows_are_split_by_the_clients_name_and_none_is_lost(tmp_path):
    schema = Clients(tmp_path / "wards").job.schema
    for count in (1, 2, 7, 40):
        parts = split_rows(count, schema, 0, "a")
        assert (
            sorted(np.concatenate(list(parts.values()))) == list(range(count))
            and len(parts["train"]) >= 1
        )
    assert [len(part) for part in parts.values()] == [26, 4, 10]
    assert (split_rows(40, schema, 0, "b")["train"] != parts["train"]).any()

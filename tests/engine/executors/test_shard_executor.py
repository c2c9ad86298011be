"""A run whose processes hold their own clients only has the bits of one that holds all.

Here one process has all shards, and two devices: the examples are in a block for each
device, and rows of padding are between those of clients. `test_processes.py` has two
processes.
"""

import jax
import numpy as np
import pytest

from conformance.problems import classification, softmax_model
from fedtailor import federation as federations
from fedtailor.algorithms import Ditto, FedAvg, Local
from fedtailor.data.federation import FederationShard, load_shard, shard
from fedtailor.data.federation.shards import ShardedData, _positions
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.storage import check
from fedtailor.engine.storage.run_files import LEDGER, METRICS
from fedtailor.protocol import SGD

UNSEEN = [False, False, True, False, False]
CANONICAL = Settings(canonical=True)
STEPS = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)


def trained(data, rounds=3, settings=CANONICAL, method=None, **options):
    return run(
        Ditto(sgd=STEPS) if method is None else method,
        data,
        softmax_model("float32"),
        rounds,
        participation=0.6,
        settings=settings,
        **options,
    )


@pytest.mark.as_shipped
@pytest.mark.parametrize("method", [Ditto(sgd=STEPS), FedAvg(sgd=STEPS)])
def test_a_share_has_the_bits_of_a_federation(method):
    data = classification(unseen=UNSEEN)
    alone, shared = trained(data, method=method), trained(shard(data), method=method)
    assert alone.frame().equals(shared.frame())
    np.testing.assert_array_equal(
        *(jax.tree.leaves(it.training.server)[0] for it in (alone, shared))
    )
    for name, model in alone.personal_models().items():
        np.testing.assert_array_equal(
            *(
                jax.tree.leaves(it)[0]
                for it in (model.predictor, shared.personal(name).predictor)
            )
        )


def test_without_canonical_sums_agree_to_rounding():
    data = classification(unseen=UNSEEN)
    alone, shared = (trained(it, settings=Settings()) for it in (data, shard(data)))
    values = [it.frame()["value"].to_numpy() for it in (alone, shared)]
    np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.parametrize("first", ["shard", "whole"])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, first):
    """What shards have saved, one process with the whole federation continues, and the
    other way round."""
    data = classification(unseen=UNSEEN)
    whole = trained(data, directory=tmp_path / "whole", checkpoint_every=2)
    order = [shard(data), data] if first == "shard" else [data, shard(data)]
    for rounds, it in zip((2, 3), order, strict=True):
        trained(it, rounds, directory=tmp_path / "both", resume=True)
    for file in (METRICS, LEDGER):
        assert (tmp_path / "both" / file).read_bytes() == (
            tmp_path / "whole" / file
        ).read_bytes()
    states = list((tmp_path / "both").glob("states-*.safetensors"))
    assert len(states) == 1
    assert all(finding.whole for finding in check(tmp_path / "both"))
    assert whole.summary().rounds == 3


def test_a_damaged_file_of_states_is_told(tmp_path):
    data = shard(classification(unseen=UNSEEN))
    trained(data, 2, directory=tmp_path)
    (file,) = tmp_path.glob("states-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged .*start the run again"):
        trained(data, 3, directory=tmp_path, resume=True)
    file.unlink()
    with pytest.raises(ValueError, match=r"is missing or damaged"):
        trained(data, 3, directory=tmp_path, resume=True)


def test_the_server_draws_the_same_examples():
    """DAPPER's server draws from the training data of all clients."""
    data = classification(unseen=UNSEEN)
    draws = []
    for it in (data, shard(data)):
        executor = simulate(FedAvg(), it, softmax_model("float32")).executor
        draws.append(executor.examples(np.random.default_rng(3), 20))
        draws.append(executor.examples(np.random.default_rng(3), 20, np.array([2, 0])))
    for drawn, others in zip(draws[:2], draws[2:], strict=True):
        np.testing.assert_array_equal(drawn[0], others[0])
        np.testing.assert_array_equal(drawn[1], others[1])


def test_shares_divide_clients_and_examples(tmp_path):
    data = classification(unseen=UNSEEN)
    path = federations.save(data, tmp_path / "data.safetensors")
    for of in (1, 2, 4):
        parts = [shard(data, number, of) for number in range(of)]
        together = np.sort(np.concatenate([part.positions for part in parts]))
        assert together.tolist() == list(range(len(data)))
        for number, part in enumerate(parts):
            read = load_shard(path, number, of)
            assert read.digest == part.digest == data.digest
            np.testing.assert_array_equal(read.positions, part.positions)
            assert read.own.digest == part.own.digest
            assert [client.name for client in read.own] == [
                data.names[position] for position in part.positions
            ]
    with pytest.raises(ValueError, match="4 clients train, and there are 5 processes"):
        shard(data, 0, 5)
    with pytest.raises(ValueError, match="there is no shard 2 of 2"):
        shard(data, 2, 2)


def test_a_client_with_most_examples_leaves_no_share_empty():
    rows = np.array([1, 1, 1, 100])
    owned = [_positions(rows, np.zeros(4, bool), it, 3).tolist() for it in range(3)]
    assert all(owned)
    assert [client for part in owned for client in part] == [0, 1, 2, 3]


def test_the_digest_of_own_clients_changes_with_them():
    data = classification()
    plain = ShardedData.of(FederationShard(data))
    assert plain.digest == ShardedData.of(FederationShard(classification())).digest
    assert plain.names == data.names
    other = data.only(data.names[1:])
    assert plain.digest != ShardedData.of(FederationShard(other)).digest


def test_what_needs_all_rows_is_refused_before_training(tmp_path):
    part = shard(classification())
    with pytest.raises(ValueError, match="keep_rows needs the rows of all clients"):
        trained(part, directory=tmp_path, keep_rows=True)
    assert not list(tmp_path.iterdir())
    finished = trained(part, 1, method=Local(sgd=STEPS))
    with pytest.raises(ValueError, match="outcomes of rows need the rows of all"):
        finished.row_outcomes()
    with pytest.raises(ValueError, match="no client is called 'nobody'"):
        finished.personal("nobody")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(debug=True), "runs compiled programs"),
        (Settings(devices=1), r"leave out\s+Settings\(devices\)"),
        (Settings(state_limit=0), "raise Settings.state_limit"),
    ],
)
def test_settings_for_one_process_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        trained(shard(classification()), settings=settings)

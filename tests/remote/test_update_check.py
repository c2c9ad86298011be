"""Which norms of changes are believed: closed forms, and honest clients of all kinds."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.aggregation.pipelines import Cast, Clip, GaussianNoise, Quantize, TopK
from fedtailor.aggregation.pipelines.quantize import restored, rounded
from fedtailor.aggregation.pipelines.top_k import largest
from fedtailor.engine.training.metrics import Metrics
from fedtailor.models.metrics import Metric
from fedtailor.protocol import PRIVATE_STEPS, Transform
from fedtailor.remote.server.update_check import (
    ALONE_FACTOR,
    UpdateCheck,
    bound_of,
    check_scores,
    largest_usual_norm,
)
from fedtailor.remote.wire.messages import check_arrays
from fedtailor.remote.wire.wire import WORK, WORK_SPEC


@pytest.mark.parametrize("received", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_an_honest_first_round_is_believed(scale, received):
    """Clients of 1 to 50 local steps, with gradients of any scale; one of them may
    send anything.
    """
    norms = scale * np.arange(1.0, 51.0, 7)
    for bad in (0.0, 1e30, math.inf, math.nan):
        cohort = np.append(norms, bad)
        limit = largest_usual_norm([], cohort, received)
        assert (norms <= limit).all()
        assert not bad <= limit or bad == 0.0


def test_of_two_clients_the_smaller_change_is_usual():
    assert largest_usual_norm([], [2.0, 1e30], 0.0) == 200.0
    assert largest_usual_norm([], [1e30, 2.0], 0.0) == 200.0
    # One that sends back what it received must not have the other refused.
    assert largest_usual_norm([], [0.0, 3.0], 0.0) >= 3.0


def test_recent_rounds_are_compared_with_not_the_cohort():
    """Else clients that lie would be believed in a round in which they are many."""
    assert largest_usual_norm([1.0, 2.0, 3.0], [1e30, 1e30], 0.0) == 200.0
    assert largest_usual_norm([1.0, 2.0, 3.0], [1e30], 50.0) == 500.0


def test_a_client_alone_is_believed_almost_anything():
    assert largest_usual_norm([], [1e6], 1.0) == ALONE_FACTOR
    assert not largest_usual_norm([], [1e30], 1.0) >= 1e30


def test_a_usual_change_of_zero_leaves_room():
    assert largest_usual_norm([0.0] * 9, [5.0], 2.0) == 20.0


class Unknown(Transform):
    """A transform of which nothing is known."""


def test_bounds_in_closed_form():
    assert bound_of((), None, 10) is None
    assert bound_of((Quantize(), Cast()), None, 10) is None
    assert bound_of((Clip(0.5),), None, 10) == 0.5
    assert bound_of((Clip(0.5), GaussianNoise(norm=0.2)), None, 10) == 0.2
    # A clip norm that follows the changes is that of the round.
    assert bound_of((GaussianNoise(norm=0.2, quantile=0.5),), 0.7, 10) == 0.7
    # |change| + z C |N(0, I)| with d entries
    noisy = GaussianNoise(2.0, norm=0.5, by="client")
    assert bound_of((noisy,), None, 100) == 0.5 + 2.0 * 0.5 * (10 + 8)
    # 1 + sqrt(block) / 127
    assert bound_of((Clip(1.0), Quantize(block=4)), None, 10) == 1 + 2 / 127
    # 1 / (1 - sqrt(1 - k / d)), k / d = 3 / 4
    assert bound_of((Clip(1.0), TopK(0.75)), None, 100) == pytest.approx(2.0)
    assert bound_of((Clip(1.0), TopK(0.75, feedback=False)), None, 100) == 1.0
    assert bound_of((Clip(1.0), Unknown()), None, 10) is None


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
def test_error_feedback_never_sends_more_than_its_bound(fraction):
    """Against the worst sequence: the same change, which is kept back most."""
    d, norm = 200, 1.0
    bound = bound_of((Clip(norm), TopK(fraction)), None, d)
    memory = jnp.zeros(d)
    for _ in range(300):
        change = memory + norm / math.sqrt(d)
        values, indices = largest(change, max(1, round(fraction * d)))
        memory = change.at[indices].set(0)
        assert float(jnp.linalg.norm(values)) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_quantized_changes_are_within_their_bound(block):
    x = np.zeros(64, np.float32)
    x[::block] = 1.0  # the other entries are rounded up from near zero
    x[x == 0] = 1e-4
    x /= np.linalg.norm(x)
    for seed in range(20):
        integers, scale = rounded(jnp.asarray(x), block, jax.random.key(seed))
        sent = np.linalg.norm(restored(integers, scale, block))
        assert sent <= bound_of((Clip(1.0), Quantize(block=block)), None, 64) * 1.001


def test_noise_of_clients_is_within_its_bound():
    rng = np.random.default_rng(0)
    noise = GaussianNoise(1.0, norm=1.0, by="client")
    for d in (1, 10, 1000):
        largest_norm = np.linalg.norm(rng.normal(size=(2000, d)), axis=1).max() + 1
        assert largest_norm <= bound_of((noise,), None, d)


@pytest.mark.parametrize("name", sorted(Metric.registry))
def test_metrics_know_their_range(name):
    """Those that are shares are between 0 and 1, and no other number is believed."""
    metric = Metric.registry[name]()
    low, high = metric.limits()
    assert low < high
    # A confusion matrix is made of counts.
    if metric.unit == "%" and name != "confusion":
        assert (low, high) == (0, 1)


def scores(correct, count=10.0, rows=10):
    prefix = "scores/test/statistics/accuracy/"
    return {
        "scores/test/count": np.asarray(rows, np.int32),
        f"{prefix}correct": np.asarray(correct, np.float32),
        f"{prefix}count": np.asarray(count, np.float32),
    }


def test_scores_are_of_the_rows_that_were_agreed_to():
    accuracy = (Metric.registry["accuracy"](),)
    check_scores(scores(7), accuracy, {"test": 10})
    check_scores(scores(7), accuracy, None)
    check_scores(scores(0, 0, 0), accuracy, {"test": 0})
    with pytest.raises(ValueError, match="is to measure 12"):
        check_scores(scores(7), accuracy, {"test": 12})
    with pytest.raises(ValueError, match="accuracy on the split 'test' is 20833,"):
        check_scores(scores(208330), accuracy, {"test": 10})


@pytest.mark.parametrize("above", [5e-4, 1.05e-6, 6e-7, 2e-7, 0.0])
def test_scores_that_are_taken_can_be_recorded(above):
    """What a round's record of metrics refuses would end the run, with no client named."""
    accuracy = (Metric.registry["accuracy"](),)
    said = scores(1.0 + above, 1.0)
    try:
        check_scores(said, accuracy, {"test": 10})
    except ValueError:
        assert above > 5e-7
        return
    assert above < 1e-6
    statistic = {
        name.split("/")[-1]: value[None]
        for name, value in said.items()
        if "statistics" in name
    }
    found = {"count": np.array([10]), "statistics": {"accuracy": statistic}}
    Metrics().record(0, np.array([0]), False, {"test": found}, accuracy, 1.0)


@pytest.mark.parametrize(
    ("least", "most", "is_refused"),
    [(0, 2**40, False), (-1, 5, True), (5, 2**40 + 1, True)],
)
def test_work_has_a_range(least, most, is_refused):
    arrays = {WORK: np.array([least, most])}
    if not is_refused:
        check_arrays(arrays, {WORK: WORK_SPEC})
        return
    with pytest.raises(ValueError, match="not between 0 and 1099511627776"):
        check_arrays(arrays, {WORK: WORK_SPEC})


@pytest.mark.parametrize(
    ("steps", "is_refused"), [(10**6, False), (-1, True), (10**6 + 1, True)]
)
def test_private_steps_have_a_range(steps, is_refused):
    exchange = SimpleNamespace(
        cohort=SimpleNamespace(
            clients=SimpleNamespace(sizes=np.array([30])), rows=np.array([0])
        ),
        downlink=SimpleNamespace(streams={}),
        algorithm=SimpleNamespace(ranges=lambda size: {}),
        task="client",
    )
    update = {PRIVATE_STEPS: np.array(steps, np.int32)}
    check = UpdateCheck(())
    if not is_refused:
        check._check_numbers(exchange, 0, update)
        return
    (line,) = check.refuse(exchange, {0: update}).values()
    assert "which is between 0 and 1e+06" in line

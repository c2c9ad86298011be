"""The discrete hazard: its likelihood by hand, and what follows from its outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models import linear, mlp
from fedtailor.models.survival import ProportionalHazards
from fedtailor.models.tasks import CoxPartial, DiscreteTime, loss_of, plain_loss
from fedtailor.models.tasks.survival import log_odds

TASK = DiscreteTime(ends=(1.0, 2.0, 4.0))
ODDS = np.array([[-1.0, 0.5, 2.0]])
H = 1 / (1 + np.exp(-ODDS[0]))


@pytest.mark.parametrize(
    ("time", "event", "likelihood"),
    [
        (0.0, 1, H[0]),
        (1.0, 1, H[0]),
        (1.5, 1, (1 - H[0]) * H[1]),
        (4.0, 1, (1 - H[0]) * (1 - H[1]) * H[2]),
        (9.0, 1, (1 - H[0]) * (1 - H[1]) * (1 - H[2])),
        (0.4, 0, 1.0),
        (0.6, 0, 1 - H[0]),
        (1.4, 0, 1 - H[0]),
        (3.0, 0, (1 - H[0]) * (1 - H[1]) * (1 - H[2])),
    ],
)
def test_the_likelihood_of_a_row(time, event, likelihood):
    with jax.enable_x64(True):
        loss = TASK(jnp.asarray(ODDS), jnp.array([[time, event]]))
        assert loss[0] == pytest.approx(-np.log(likelihood), abs=1e-12)


def test_survival_is_the_product_of_the_intervals():
    survival = TASK.survival_at(ODDS, [0, 1, 2, 4, 9])[0]
    expected = np.cumprod([1, *(1 - H)])
    assert survival == pytest.approx([*expected, expected[-1]], abs=1e-12)
    inside = TASK.survival_at(ODDS, [3.0])[0, 0]
    assert inside == pytest.approx(np.sqrt(expected[2] * expected[3]), abs=1e-12)


def test_log_odds_are_the_best_constant():
    """But for the half that is added to both counts."""
    rng = np.random.default_rng(0)
    time, event = rng.exponential(2, 4000), rng.random(4000) < 0.7
    odds = log_odds(time, event, TASK.ends)
    y = jnp.asarray(np.stack([time, event], 1), jnp.float32)

    def mean(odds):
        return TASK(jnp.broadcast_to(odds, (4000, 3)), y).mean()

    assert np.abs(jax.grad(mean)(jnp.array(odds))).max() < 1e-3


def test_losses_are_read_back_from_files():
    for task in (
        TASK,
        DiscreteTime((1.0,), (1.0, 2.0), (0.5, -1.0)),
        CoxPartial((3.0,)),
    ):
        assert loss_of(plain_loss(task)) == task


def test_hazards_are_proportional():
    start = (-2.0, -1.0, 0.0)
    model = ProportionalHazards(linear(), start).bind((4,), 3, loss=TASK)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
    params = model.params(model.init(jax.random.key(1)))
    shifted = model.logits(params, x) - jnp.array(start)
    np.testing.assert_allclose(shifted, shifted[:, :1] * np.ones(3), atol=1e-6)
    assert model.size == 4 + 1 + 3
    # the head has no log-odds, which all clients' rows know best together
    deep = ProportionalHazards(mlp(8), start).bind((4,), 3, loss=TASK)
    assert len(deep.part("head").indices) == 9


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: DiscreteTime(ends=(2.0, 1.0)), "ascend"),
        (lambda: DiscreteTime(ends=(0.0, 1.0)), "above 0"),
        (lambda: DiscreteTime(ends=(1.0,), start=(1.0, 2.0)), "2 log-odds for 1"),
    ],
)
def test_what_is_refused(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()

"""DP-SGD inside a client: what a step descends along, how it draws, what is counted,
what is refused.
"""

from dataclasses import replace
from itertools import pairwise

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import stats

from conformance.examples import PLAIN, example
from fedtailor.aggregation.accounting.privacy import (
    ORDERS,
    max_private_batch,
    sgd_epsilon,
)
from fedtailor.algorithms import (
    APFL,
    MRMTL,
    UCFL,
    Ditto,
    FedAvg,
    FedProx,
    HypCluster,
    PerFedAvg,
    Then,
)
from fedtailor.engine.client.private_steps import batch_size_cdf
from fedtailor.engine.runs import simulate
from fedtailor.models import mlp
from fedtailor.protocol import SGD, hyperparameters
from fedtailor.testing import classification, softmax_model

SIZES = [9, 30, 14]


def begun(algorithm, seed=0, **options):
    return simulate(
        algorithm,
        classification(3, sizes=SIZES),
        softmax_model("float32"),
        seed=seed,
        **options,
    )


def clipped_direction(training, norm):
    """By hand: the mean over each client's examples of the clipped gradients at the
    initial model [m, d].
    """
    federation, model = training.executor.federation, training.model
    theta = training.initial(0)

    def gradient(x, y):
        return jax.grad(
            lambda t: model.losses(model.logits(model.params(t), x[None]), y[None])[0]
        )(theta)

    found = []
    for client in training.executor.seen.original_index:
        rows = federation.train[client]
        each = np.asarray(
            jax.vmap(gradient)(
                jnp.asarray(federation.x[rows]), jnp.asarray(federation.y[rows])
            ),
            float,
        )
        lengths = np.linalg.norm(each, axis=1, keepdims=True)
        assert lengths.max() > norm > lengths.min()  # some are clipped, others are not
        found.append((each * np.minimum(1, norm / lengths)).mean(axis=0))
    return np.stack(found)


def test_a_step_is_the_mean_of_clipped_gradients():
    """A batch of all, and hardly any noise: weight decay and pull come after."""
    sgd = SGD(lr=0.5, steps=1, batch_size=64, dp_noise=1e-6, dp_norm=1.5)
    training = begun(MRMTL(sgd=sgd, lam=0.0))
    expected = np.asarray(training.initial(0)) - 0.5 * clipped_direction(training, 1.5)
    training.advance()
    np.testing.assert_allclose(
        training.executor.client_states["model"], expected, rtol=0, atol=1e-5
    )


def test_noise_has_its_deviation_anew_in_every_step():
    """With a bound that is tiny only noise is left: z C / (examples expected)."""
    sgd = SGD(lr=1.0, steps=4, batch_size=10, dp_noise=100.0, dp_norm=1e-6)
    models = []
    for seed in range(12):
        training = begun(MRMTL(sgd=sgd, lam=0.0), seed)
        training.advance()
        models.append(
            np.asarray(training.executor.client_states["model"])
            - np.asarray(training.initial(0))
        )
    sizes = np.asarray(training.population.sizes)
    deviation = 1e-4 * 2 / np.minimum(sizes, 10)  # the square root of four steps
    found = np.stack(models).std(axis=(0, 2))  # of 180 numbers
    np.testing.assert_allclose(found, deviation, rtol=0.2)


def test_how_many_are_drawn_is_binomial():
    for n, batch in ((30, 10), (400, 32), (11, 10)):
        table = np.asarray(
            batch_size_cdf(jnp.int32(n), batch, max_private_batch(batch))
        )
        np.testing.assert_allclose(
            table, stats.binom.cdf(np.arange(len(table)), n, batch / n), atol=2e-5
        )
        assert stats.binom.sf(max_private_batch(batch), n, batch / n) < 1e-12


def test_private_steps_are_counted_and_epsilon_is_dp_accountings():
    sgd = SGD(lr=0.1, epochs=2, batch_size=10, dp_noise=1.4, dp_norm=1.0, dp_delta=1e-3)
    one, two = begun(FedAvg(sgd=sgd)), begun(Ditto(sgd=sgd))
    for training, loops in ((one, 1), (two, 2)):  # Ditto trains two models
        for _ in range(2):
            training.advance()
        steps = 2 * loops * 2 * np.ceil(training.population.sizes / 10)
        np.testing.assert_array_equal(training.privacy.steps, steps)
    shown = one.metrics.values("example_epsilon", "all")
    for place, epsilon in zip(
        np.argsort(one.executor.seen.original_index), shown, strict=True
    ):
        size, accountant = int(one.population.sizes[place]), rdp.RdpAccountant(ORDERS)
        event = dp_accounting.GaussianDpEvent(1.4)
        event = (
            event
            if size <= 10
            else dp_accounting.PoissonSampledDpEvent(10 / size, event)
        )
        accountant.compose(event, int(one.privacy.steps[place]))
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-6)
    assert 0 < shown.min() < shown.max() < 40
    frame = one.ledger.frame()
    assert frame.filter(frame["kind"] == "private_steps")["scalars"].to_list() == [3, 3]
    assert begun(FedAvg(sgd=PLAIN)).privacy is None


def test_draws_that_do_not_fit_are_paid_for_by_delta():
    fits = sgd_epsilon(1.0, 10, 100, 100, 1e-5)
    assert sgd_epsilon(1.0, 10, 100, 100, 1e-9) > fits
    many = stats.binom.sf(max_private_batch(10), 10**4, 1e-3)
    assert 0 < many < 1e-12
    assert sgd_epsilon(1.0, 10, 10**4, 10**4, 10**4 * many) == np.inf
    assert 0 < sgd_epsilon(1.0, 10, 10**4, 10**4, 10**8 * many) < np.inf


PRIVATE = SGD(lr=0.1, dp_noise=1.0, dp_norm=1.0)


@pytest.mark.parametrize(
    "algorithm",
    [
        UCFL(sgd=PRIVATE),
        HypCluster(sgd=PRIVATE, clusters=2),
        APFL(sgd=PRIVATE),
        Ditto(sgd=PRIVATE, personal_sgd=PLAIN),
    ],
    ids=lambda it: it.about.name,
)
def test_methods_that_look_at_examples_otherwise_are_refused(algorithm):
    with pytest.raises(
        ValueError, match=r"look at their examples in other ways than by private steps"
    ):
        begun(algorithm).advance()


def test_more_that_private_steps_do_not_cover():
    with pytest.raises(ValueError, match="descends along another one"):
        begun(PerFedAvg(sgd=PRIVATE)).advance()
    with pytest.raises(ValueError, match="trains clients that do not report"):
        begun(example("local").__class__(sgd=PRIVATE), participation=2)
    with pytest.raises(ValueError, match=r"\(dp_delta\), 30"):
        begun(FedAvg(sgd=SGD(dp_noise=1.0, dp_norm=1.0, dp_delta=0.1)))


@hyperparameters
class OnSomeRows(FedAvg):
    """FedAvg whose clients train on half of their rows, on another split, or with less
    noise than the settings say.
    """

    rows: str = "half"

    def client(self, state, inbox, local):
        theta, sgd = inbox.only("model"), self.sgd
        if self.rows == "half":
            return state, {"model": local.part(0, local.size // 2, "a").sgd(theta, sgd)}
        if self.rows == "val":
            return state, {"model": local.sgd(theta, sgd, split="val")}
        if self.rows == "less noise":
            sgd = SGD(lr=0.1, batch_size=10, dp_noise=0.1, dp_norm=1.0)
        return state, {"model": local.sgd(theta, sgd)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("half", "takes them on some of these rows"),
        ("val", "takes them on the split 'val'"),
        ("less noise", "by other settings than its own"),
    ],
)
def test_steps_that_the_account_does_not_know_are_refused(rows, said):
    """A draw of 10 of 15 rows costs more than one of 10 of 30: the account would print
    an epsilon that is too small.
    """
    algorithm = OnSomeRows(sgd=replace(PRIVATE, batch_size=10), rows=rows)
    clients = classification(3, sizes=SIZES, val=10)
    with pytest.raises(ValueError, match=said) as refused:
        simulate(algorithm, clients, softmax_model("float32")).advance()
    assert "\n" not in str(refused.value)
    # All rows with the settings that are accounted are taken.
    whole = replace(algorithm, rows="all")
    simulate(whole, clients, softmax_model("float32")).advance()


def test_a_schedule_is_private_in_all_of_its_phases():
    """What a phase without noise sends is not covered by the epsilon that is printed."""
    for first, then in ((PRIVATE, PLAIN), (PLAIN, PRIVATE)):
        schedule = Then(FedAvg(sgd=first), rounds=1, next=FedProx(sgd=then))
        with pytest.raises(ValueError, match=r"trains without dp_noise, .* in all of"):
            begun(schedule)
    begun(Then(FedAvg(sgd=PRIVATE), rounds=1, next=FedProx(sgd=PRIVATE)))


def test_every_leaf_has_noise_of_its_own():
    """One noise in two leaves of a shape would show the difference of their
    gradients.
    """
    sgd = SGD(lr=1.0, steps=1, batch_size=64, dp_noise=1e3, dp_norm=1e-6)
    training = simulate(
        MRMTL(sgd=sgd, lam=0.0), classification(3, sizes=SIZES), mlp([4, 4, 4])
    )
    training.advance()
    model = training.model
    moved = training.executor.client_states["model"] - training.initial(0)
    by_shape = {}
    for leaf in jax.tree.leaves(model.params(jnp.asarray(moved[0]))):
        by_shape.setdefault(leaf.shape, []).append(np.asarray(leaf).ravel())
    repeated = [leaves for leaves in by_shape.values() if len(leaves) > 1]
    assert repeated
    for leaves in repeated:
        for first, second in pairwise(leaves):
            assert np.abs(first - second).max() > 0.1 * np.abs(first).max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dp_noise": 0, "dp_norm": 1}, "dp_noise is 0"),
        ({"dp_noise": 1, "dp_norm": 0}, "dp_norm is 0"),
        ({"dp_noise": 1.0}, "give both"),
        ({"dp_norm": 1.0}, "give both"),
        ({"dp_delta": 2.0}, "dp_delta is 2.0"),
    ],
)
def test_meaningless_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SGD(**settings)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedtailor.aggregation import cluster_averages, mix, reporter_weights
from fedtailor.protocol import ClientRows, Clients, Cohort, HiddenRows
from fedtailor.testing.problems import EXACT, float64

STREAMS, CLIENTS, SIZE = 3, 5, 7


def cohort(sizes, reporting):
    rows = np.arange(len(sizes))
    clients = Clients(
        rows.astype(np.uint64), tuple(map(str, rows)), np.asarray(sizes), None, rows
    )
    return Cohort(clients, rows, True, np.asarray(reporting, bool), 0, 0)


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(0)
    theta, x = (
        rng.standard_normal((rows, SIZE)).astype(np.float32)
        for rows in (STREAMS, CLIENTS)
    )
    return jnp.asarray(theta), jnp.asarray(x)


def test_a_zero_row_leaves_the_stream_bitwise_even_a_negative_zero(models):
    theta, x = models
    theta = theta.at[0, 0].set(-0.0)
    mixed = np.asarray(mix(theta, x, np.zeros((STREAMS, CLIENTS))))
    assert mixed.tobytes() == np.asarray(theta).tobytes()


def test_a_one_hot_row_returns_that_clients_model_bitwise(models):
    theta, x = models
    chosen = np.array([4, 0, 2])
    np.testing.assert_array_equal(
        mix(theta, x, np.eye(CLIENTS)[chosen]), np.asarray(x)[chosen]
    )


def test_the_affine_mix_in_double_precision():
    rng = np.random.default_rng(1)
    theta, x, weights = (
        rng.normal(size=(2, 3)),
        rng.normal(size=(4, 3)),
        rng.uniform(size=(2, 4)),
    )
    with jax.enable_x64(True):
        mixed = np.asarray(mix(jnp.asarray(theta), jnp.asarray(x), weights))
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(
        mixed,
        (1 - weights.sum(1, keepdims=True)) * theta + weights @ x,
        rtol=0,
        atol=1e-14,
    )


def test_a_replaced_stream_forgets_a_broken_model(models):
    theta, x = models
    weights = np.full((STREAMS, CLIENTS), 1 / CLIENTS)
    weights[0] = [0.1, 0.2, 0.3, 0.3, 0.1]  # sums to 1 only up to rounding
    assert np.isfinite(mix(theta.at[:2].set(jnp.nan), x, weights)).all()


def test_clients_without_weight_and_padding_rows_are_not_read(models):
    theta, x = models
    weights = np.array([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = mix(theta, x[:3], weights)
    rows = ClientRows(
        x[jnp.array([2, 4, 0, 3, 1])]
        .at[4]
        .set(jnp.nan)
        .at[jnp.array([1, 3])]
        .set(jnp.inf),
        np.array([2, 4, 0]),
    )
    np.testing.assert_array_equal(mix(theta, rows, weights), expected)


def test_host_arrays_are_accepted(models):
    theta, x = map(np.asarray, models)
    np.testing.assert_array_equal(mix(theta, x, np.eye(CLIENTS)[:STREAMS]), x[:STREAMS])


def test_rows_spread_over_devices(models):
    if len(jax.devices()) < 2:
        pytest.skip(
            "needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2"
        )
    theta, x = models[0], np.resize(models[1], (6, SIZE))
    weights = np.random.default_rng(2).dirichlet(np.ones(CLIENTS), STREAMS)
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("clients")))
    alone = jax.device_put(theta, jax.devices()[0])
    spread = ClientRows(spread, np.arange(CLIENTS))
    mixed = mix(alone, spread, weights)
    assert mixed.sharding.is_fully_replicated
    np.testing.assert_allclose(mixed, mix(theta, x[:CLIENTS], weights), atol=1e-6)
    again = mix(mixed, spread, np.eye(CLIENTS)[:STREAMS])
    np.testing.assert_array_equal(again, x[:STREAMS])


@pytest.mark.parametrize(
    ("theta", "x", "weights"),
    [
        ((2, 3), (4, 3), (3, 4)),
        ((2, 3), (4, 3), (2, 5)),
        ((2, 3), (4, 2), (2, 4)),
        ((2, 3), (4, 3), (4,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(theta, x, weights):
    with pytest.raises(ValueError, match="mix"):
        mix(np.zeros(theta), np.zeros(x), np.zeros(weights))


def test_weights_that_are_not_finite_are_refused(models):
    with pytest.raises(ValueError, match="finite"):
        mix(*models, np.full((STREAMS, CLIENTS), np.nan))


def test_reporter_weights():
    some = cohort([10, 20, 30], [True, False, True])
    np.testing.assert_allclose(reporter_weights(some, "samples"), [0.25, 0, 0.75])
    np.testing.assert_allclose(reporter_weights(some, "uniform"), [0.5, 0, 0.5])
    np.testing.assert_array_equal(
        reporter_weights(cohort([10, 20], [False, False]), "samples"), [0, 0]
    )
    with pytest.raises(ValueError, match="samples"):
        reporter_weights(some, "equal")  # pyright: ignore[reportArgumentType]


def test_cluster_averages_are_scaled_shares_of_members():
    weights = cluster_averages(
        np.array([0, 2, 0, 2]), 3, np.array([0.1, 0.4, 0.3, 0.0])
    )
    np.testing.assert_allclose(
        weights, [[0.25, 0, 0.75, 0], [0, 0, 0, 0], [0, 1, 0, 0]], rtol=0, atol=1e-15
    )


def hidden(x, lost=()):
    """Rows of which only sums can be had; streams of `lost` have no client left."""

    def add_up(weights, number):
        part = x if number is None else x[:, number]
        return weights @ part, np.array(
            [stream not in lost for stream in range(len(weights))]
        )

    return HiddenRows(x.shape, x.dtype, add_up, lambda: (0, 0))


def test_of_hidden_rows_the_sums_are_mixed():
    rng = np.random.default_rng(0)
    theta, x = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    weights = np.array([[0.2] * 5, [0.0] * 5, [0.1, 0.4, 0, 0, 0]])
    with float64():
        np.testing.assert_allclose(
            mix(theta, hidden(x), weights), mix(theta, x, weights), **EXACT
        )
        # a stream of which nobody is left stays as it is, and one without weight is not
        # asked for
        np.testing.assert_array_equal(
            mix(theta, hidden(x, lost=(1,)), weights)[1:], theta[1:]
        )
        several = np.stack([x, 2 * x], axis=1)
        np.testing.assert_allclose(
            mix(theta, hidden(several).item(1), weights),
            mix(theta, 2 * x, weights),
            **EXACT,
        )
        np.testing.assert_array_equal(
            mix(theta, hidden(x, lost=(0, 1, 2)), 0 * weights), theta
        )
        for look in (
            lambda: hidden(x).host(),
            lambda: hidden(x).take(0),
            lambda: np.asarray(hidden(x).values),
        ):
            with pytest.raises(ValueError, match="shows it sums only"):
                look()

"""Synthetic tasks and the bundled digits."""

import numpy as np
import pytest

from fedtailor.data.datasets import (
    density,
    digits,
    gaussian,
    synthetic,
    synthetic_mixture,
)
from fedtailor.data.federation import LogNormal, Uniform


def test_the_bundled_digits():
    data = digits()
    assert (
        data.x.shape == (1797, 8, 8) and data.x.dtype == np.uint8 and data.x.max() == 16
    )
    assert np.bincount(data.y).min() >= 174 and data.classes == 10
    assert ((data.x - data.shift) * data.scale).max() == 1


def test_density_has_the_population_as_its_test_split():
    federation = density(50, seed=3)
    for k in (0, 3, 17, 97, 99):
        expected = np.full(100, 0.25 / 100)
        expected[k % 4] += 0.5
        expected[k % 96] += 0.25
        found = np.bincount(federation.client(k).test.y, minlength=100) / 400
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
        assert federation.client(k).group == k % 4
    assert federation.input_shape == (0,) and federation.classes == 100
    assert federation.train.sizes.tolist() == [50] * 100


def test_density_reaches_the_known_optima():
    """The entropy floor 2.12, the best single model 3.57 and the best model for each of
    four clusters 2.74 (nats).
    """
    federation = density(10)
    population = (
        np.stack(
            [
                np.bincount(federation.client(k).test.y, minlength=100)
                for k in range(100)
            ]
        )
        / 400
    )

    def loss(models):
        return -(population * np.log(models)).sum(axis=1).mean()

    clusters = np.stack(
        [population[np.arange(100) % 4 == group].mean(axis=0) for group in range(4)]
    )
    assert loss(population) == pytest.approx(2.12, abs=0.005)
    assert loss(np.tile(population.mean(axis=0), (100, 1))) == pytest.approx(
        3.57, abs=0.005
    )
    assert loss(clusters[np.arange(100) % 4]) == pytest.approx(2.74, abs=0.005)


def test_density_samples_follow_their_distribution():
    federation = density(20_000, clients=6, symbols=12)
    for k in range(6):
        expected = np.full(12, 0.25 / 12)
        expected[k % 4] += 0.5
        expected[k % 8] += 0.25
        found = np.bincount(federation.client(k).train.y, minlength=12) / 20_000
        np.testing.assert_allclose(found, expected, atol=5 * np.sqrt(0.25 / 20_000))


def test_density_options():
    federation = density(40, clients=12, val=0.25, unseen=3, seed=1)
    assert federation.val.sizes.tolist() == [10] * 12 and federation.unseen.sum() == 3
    assert (
        density(40, clients=12, seed=2).y.tolist()
        != density(40, clients=12, seed=1).y.tolist()
    )


def test_gaussian_is_a_hierarchy_whose_test_split_is_exact():
    federation = gaussian(
        clients=4000, sigma_0=2.0, sigma=0.5, theta_0=3.0, sizes=Uniform(40, 60)
    )
    theta = np.array(
        [
            federation.y[rows].mean()
            for rows in (federation.test[i] for i in range(4000))
        ]
    )
    means = np.array(
        [
            federation.y[rows].mean()
            for rows in (federation.train[i] for i in range(4000))
        ]
    )
    assert theta.mean() == pytest.approx(3.0, abs=5 * 2 / np.sqrt(4000))
    assert theta.std() == pytest.approx(2.0, rel=0.06)
    scaled = (means - theta) * np.sqrt(federation.train.sizes) / 0.5
    assert (scaled.mean(), scaled.std()) == (
        pytest.approx(0, abs=0.08),
        pytest.approx(1, rel=0.06),
    )
    one, guess = federation.client(7).test.y, 2.2
    np.testing.assert_allclose(
        ((one - guess) ** 2).mean(), (theta[7] - guess) ** 2 + 0.25, rtol=1e-12
    )
    assert (
        federation.classes is None
        and federation.y.shape[1:] == (1,)
        and federation.input_shape == (0,)
    )
    assert gaussian(sigma_0=0.0, val=0.2, unseen=2).val.sizes.min() >= 1


def test_synthetic_inputs_and_labels_follow_the_recipe():
    federation = synthetic(0, 0, clients=10, sizes=Uniform(2000, 2000))
    assert federation.classes == 10 and federation.input_shape == (60,)
    centred = np.concatenate(
        [
            federation.client(k).train.x - federation.client(k).train.x.mean(0)
            for k in range(10)
        ]
    )
    np.testing.assert_allclose(centred.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.08)
    for client in (federation.client(0), federation.client(9)):
        # the labels are those of a linear classifier: regress the one-hot labels, and
        # the training data are fitted
        design = np.column_stack([client.train.x, np.ones(len(client.train.y))])
        weights, *_ = np.linalg.lstsq(design, np.eye(10)[client.train.y], rcond=None)
        fitted = (np.argmax(design @ weights, axis=1) == client.train.y).mean()
        assert fitted > 0.8


def test_beta_sets_how_much_inputs_differ_and_alpha_cancels():
    spread = {}
    for beta in (0.0, 3.0):
        federation = synthetic(0, beta, clients=200, sizes=Uniform(20, 20))
        spread[beta] = np.std([federation.client(k).train.x.mean() for k in range(200)])
    assert (
        spread[3.0] == pytest.approx(np.sqrt(9 + 1 / 60), rel=0.2) and spread[0.0] < 0.2
    )
    np.testing.assert_array_equal(synthetic(0, 1.0).y, synthetic(2.0, 1.0).y)


def test_the_data_of_a_client_do_not_depend_on_how_many_there_are():
    few, many = synthetic(clients=3), synthetic(clients=8)
    for k in range(3):
        np.testing.assert_array_equal(
            np.sort(few.client(k).train.x[:, 0]), np.sort(many.client(k).train.x[:, 0])
        )


def test_the_mixtures_labels_are_those_of_its_components():
    """With alpha small a client has one component: its labels are linear; with one
    component so are those of all.
    """
    recipe = {
        "clients": 6,
        "dimension": 8,
        "sizes": Uniform(400, 400),
        "test": 200,
        "noise": 0.0,
    }
    single = synthetic_mixture(components=1, **recipe)
    design, labels = single.x.astype(np.float64), 2.0 * single.y - 1
    weights, *_ = np.linalg.lstsq(design, labels, rcond=None)
    assert ((design @ weights > 0) == (labels > 0)).mean() > 0.97
    assert np.abs(design).max() <= 1 and design.std() == pytest.approx(
        1 / np.sqrt(3), rel=0.05
    )

    def linearity(federation, client):
        x, y = (getattr(federation.client(client).train, what) for what in "xy")
        fitted, *_ = np.linalg.lstsq(x, 2.0 * y - 1, rcond=None)
        test = federation.client(client).test
        return ((test.x @ fitted > 0) == (test.y == 1)).mean()

    apart, mixed = (synthetic_mixture(alpha=alpha, **recipe) for alpha in (1e-3, 1e3))
    assert min(linearity(apart, client) for client in range(6)) > 0.9
    assert max(linearity(mixed, client) for client in range(6)) < 0.85
    noisy = synthetic_mixture(components=1, **{**recipe, "noise": 1.0})
    np.testing.assert_array_equal(noisy.x, single.x)
    assert 0.02 < (noisy.y != single.y).mean() < 0.4, (
        "noise turns labels near the border"
    )


def test_the_mixtures_sizes_and_options():
    federation = synthetic_mixture(
        clients=40, dimension=2, test=3, val=0.25, unseen=4, seed=1
    )
    assert federation.test.sizes.tolist() == [3] * 40 and federation.unseen.sum() == 4
    all_sizes = federation.train.sizes + federation.val.sizes
    assert (
        all_sizes.min() >= 50 and all_sizes.max() <= 1000 and len(set(all_sizes)) > 20
    )
    few = synthetic_mixture(clients=11, dimension=2, test=3, val=0.25, seed=1)
    for client in range(3):
        np.testing.assert_array_equal(
            few.client(client).train.x, federation.client(client).train.x
        )


def test_sizes_have_the_published_law():
    sizes = synthetic(
        clients=300, sizes=LogNormal(2, 0.5, offset=20), test=0.1
    ).train.sizes
    assert sizes.min() >= 0.9 * 20 - 1 and np.median(sizes) == pytest.approx(
        0.9 * (np.exp(2) + 20), rel=0.05
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: synthetic(-1), "alpha is -1"),
        (lambda: synthetic(clients=0), "clients is 0"),
        (lambda: density(0), "samples is 0"),
        (lambda: density(symbols=4), "symbols is 4; it must be above 4"),
        (lambda: gaussian(sigma=0), "sigma 0"),
        (lambda: synthetic(float("nan")), "alpha is nan; it must be a finite number"),
        (lambda: synthetic(beta=float("inf")), "beta is inf"),
        (lambda: synthetic(clients=2.5), "clients is 2.5"),
        (lambda: synthetic(seed=-1), "seed is -1"),
        (
            lambda: synthetic(clients=10**12),
            "1000000000000 clients with 2 samples or more needs .* GiB of memory",
        ),
        (
            lambda: synthetic(sizes=Uniform(1e12, 1e12)),
            r"1e\+12 samples for 1 clients needs .* GiB of memory",
        ),
        (
            lambda: density(10**12),
            (
                "100 clients with 1000000000000 samples of 100 symbols needs .* GiB of"
                " memory"
            ),
        ),
        (lambda: density(symbols=10**12), "GiB of memory"),
        (lambda: density(clients=10**12), "GiB of memory"),
        (lambda: density(seed=2**32), "seed is 4294967296"),
        (lambda: gaussian(theta_0=float("nan")), "theta_0 is nan"),
        (
            lambda: gaussian(clients=10**12),
            "1000000000000 clients needs .* GiB of memory",
        ),
        (
            lambda: gaussian(sizes=Uniform(1e12, 1e12)),
            r"2e\+13 samples needs .* GiB of memory",
        ),
        (lambda: gaussian(seed=-1), "seed is -1"),
        (lambda: gaussian(clients=0), "clients is 0"),
        (lambda: synthetic_mixture(components=0), "components is 0"),
        (lambda: synthetic_mixture(alpha=0.0), "alpha is 0.0; it must be above 0"),
        (lambda: synthetic_mixture(noise=-1.0), "noise is -1.0"),
        (lambda: synthetic_mixture(clients=10**9), "GiB of memory"),
    ],
)
def test_impossible_tasks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

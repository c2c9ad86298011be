"""The test of whether clients' gradients differ at all."""

import numpy as np
import pytest
from scipy import stats

from fedtailor.aggregation.differences import effective_rank, overall_p
from fedtailor.aggregation.distances import squared_distances


@pytest.mark.parametrize("rank", [1, 6])
def test_directions_that_vary_alike_have_an_exact_distribution(rank):
    """The sum over pairs is chi^2 then, and with estimated variances over chi^2, too."""
    clients, degrees = 5, 9
    gradients = np.random.default_rng(0).normal(size=(clients, rank))
    variances = np.full(clients, float(rank))
    statistic = np.square(gradients - gradients.mean(axis=0)).sum()
    freedom = rank * (clients - 1)
    given = squared_distances(gradients), variances
    found = overall_p(*given, rank=rank)
    np.testing.assert_allclose(found, stats.chi2.sf(statistic, freedom), rtol=1e-10)
    estimated = overall_p(*given, np.full(clients, float(degrees)), rank)
    expected = stats.f.sf(statistic / freedom, freedom, rank * clients * degrees)
    np.testing.assert_allclose(estimated, expected, rtol=1e-10)


def test_the_degrees_are_those_of_the_variance_of_the_sum():
    """With unlike sizes and known spectra, the statistic has 2 / (rank * f) for variance."""
    rng = np.random.default_rng(1)
    variances, spectrum = np.array([4.0, 1.0, 1.0, 0.5]), np.array([3.0, 2.0, 1.0])
    spectrum /= spectrum.sum()
    rank = effective_rank(variances, np.full(4, np.square(spectrum).sum()))
    np.testing.assert_allclose(rank, 36 / 14, rtol=1e-10)
    scales = np.sqrt(variances[:, None] * spectrum)
    drawn = rng.normal(size=(20_000, 4, 3)) * scales
    centred = drawn - drawn.mean(axis=1, keepdims=True)
    statistic = np.square(centred).sum(axis=(1, 2)) / (0.75 * variances.sum())
    # With so many degrees of freedom variances are known: F is chi^2 over its degrees.
    p = np.array(
        [
            overall_p(squared_distances(one), variances, np.full(4, 1e12), rank)
            for one in drawn[:2_000]
        ]
    )
    freedom = 2 / statistic.var()
    expected = stats.chi2.sf(statistic[:2_000] * freedom, freedom)
    np.testing.assert_allclose(p, expected, atol=0.01)
    assert 0.035 < (p < 0.05).mean() < 0.065


def test_clients_of_few_directions_count_by_their_variance():
    rank = effective_rank(np.array([2.0, 1.0]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(rank, 5 / 3, rtol=1e-10)
    assert effective_rank(np.zeros(2), np.ones(2)) == 1
    assert effective_rank(np.ones(2), np.zeros(2)) == 1
    assert effective_rank(np.array([np.nan, 1.0]), np.ones(2)) == 1

"""The readers on the real public files, where they are at hand."""

import time

import numpy as np
import pytest

import published
from fedtailor.data.datasets import (
    MissingData,
    cifar10,
    emnist,
    fashion_mnist,
    femnist,
    heart_disease,
    mnist_writers,
    sent140,
    spoken_digits,
    tcga_brca,
)
from fedtailor.data.datasets import mnist as read_mnist
from fedtailor.data.federation import DirichletByClass, Natural, from_partition

pytestmark = pytest.mark.usefixtures("offline")


def at_hand(reader, *args, **options):
    try:
        return reader(*args, data_dir=published.DATA, **options)
    except MissingData as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    ("reader", "first"),
    [(read_mnist, [5, 0, 4, 1, 9]), (fashion_mnist, [9, 0, 0, 3, 0])],
)
def test_the_mnist_family(reader, first):
    data = at_hand(reader)
    assert data.x.shape == (70_000, 28, 28) and data.x.dtype == np.uint8
    assert (
        data.y[:5].tolist() == first
        and data.test is not None
        and data.test.sum() == 10_000
    )
    train = data.x[~data.test]
    assert train.mean() / 255 == pytest.approx(data.shift / 255, abs=1e-4)
    assert train.std() / 255 == pytest.approx(1 / (255 * data.scale), abs=1e-4)


def test_sixty_thousand_images_load_quickly_from_the_cache():
    at_hand(read_mnist)
    start = time.perf_counter()
    data = at_hand(read_mnist)
    federation = from_partition(data, DirichletByClass(100, 1.0))
    assert time.perf_counter() - start < 2 and len(federation) == 100


def test_the_writers_of_mnist():
    data = at_hand(mnist_writers)
    assert data.client is not None and data.test is not None
    taught, tested = set(data.client[~data.test]), set(data.client[data.test])
    assert (len(taught), len(tested), len(taught & tested)) == (539, 297, 0)
    federation = from_partition(data, Natural(), unseen=sorted(tested))
    sizes = federation.train.sizes + federation.test.sizes
    assert (sizes[federation.seen].min(), sizes[federation.seen].max()) == (19, 131)


def test_emnist_byclass():
    data = at_hand(emnist, "byclass", "test")
    counts = np.bincount(data.y)
    assert len(data) == 116_323 and (counts.min(), counts.max(), len(counts)) == (
        317,
        6330,
        62,
    )
    ones = data.x[data.y == 1].mean(axis=0)
    assert (
        ones.sum(axis=0).argmax() in range(12, 17)
        and ones.sum(axis=0).max() > 2 * ones.sum(axis=1).max()
    ), "upright"


def test_cifar10():
    data = at_hand(cifar10)
    assert data.x.shape == (60_000, 32, 32, 3) and data.test is not None
    for channel in range(3):
        counts = np.bincount(data.x[:50_000, ..., channel].reshape(-1), minlength=256)
        mean = np.average(np.arange(256), weights=counts)
        deviation = np.sqrt(np.average((np.arange(256) - mean) ** 2, weights=counts))
        assert (data.shift[channel], 1 / data.scale[channel]) == (
            pytest.approx(mean, abs=0.02),
            pytest.approx(deviation, abs=0.02),
        )
    assert data.class_names is not None and data.class_names[data.y[0]] == "frog"


def test_femnist():
    data = at_hand(femnist)
    assert (
        data.client is not None
        and len(np.unique(data.client)) == 289
        and len(data) == 46_106 - 578
    )
    federation = from_partition(data, Natural(), test="published")
    assert federation.train.sizes.min() >= 20 and federation.test.sizes.min() >= 1
    inputs = (data.x.astype(np.float32) - data.shift) * data.scale
    assert inputs.min() == 0 and inputs.max() == 1 and inputs.mean() < 0.1, (
        "dark paper, bright ink"
    )


def test_sent140():
    data = at_hand(sent140, buckets=64)
    assert data.client is not None and len(data) == 59_493 and set(data.y) == {0, 1}
    users = np.unique(data.client, return_counts=True)[1]
    assert ((users >= 3).sum(), (users >= 5).sum()) == (1281, 194)
    tokens = at_hand(sent140, "tokens", min_samples=5)
    federation = from_partition(tokens, Natural())
    assert len(federation) == 194 and federation.x.dtype == np.int32


def test_the_hospitals_of_flamby():
    data = at_hand(heart_disease)
    assert data.x.shape == (740, 13) and data.x.dtype == np.float32
    federation = from_partition(data, Natural(), test="published")
    assert federation.names == ("cleveland", "hungarian", "switzerland", "va")
    assert federation.train.sizes.tolist() == [199, 172, 30, 85]
    assert federation.test.sizes.tolist() == [104, 89, 16, 45]
    assert data.client is not None and data.test is not None
    for name in federation.names:
        train = data.x[(data.client == name) & ~data.test]
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
        varies = train.std(axis=0) > 0
        np.testing.assert_allclose(train.std(axis=0, ddof=1)[varies], 1, rtol=1e-5)
        # The split is stratified where each class has three rows.
        own = data.y[data.client == name]
        test = data.y[(data.client == name) & data.test]
        if np.bincount(own, minlength=2).min() > 2:
            assert abs(test.mean() - own.mean()) < 0.01


def test_the_regions_of_flamby():
    data = at_hand(tcga_brca)
    assert data.x.shape == (1088, 39) and data.y.shape == (1088, 2)
    federation = from_partition(data, Natural(), test="published")
    assert federation.train.sizes.tolist() == [248, 156, 164, 129, 129, 40]
    events = [int(federation.y[rows, 1].sum()) for rows in federation.test]
    assert events == [14, 4, 8, 3, 2, 1]


def test_the_spoken_digits():
    data = at_hand(spoken_digits)
    assert data.x.shape == (3000, 98, 32, 1) and data.x.dtype == np.float32
    assert data.client is not None and data.test is not None
    speakers, counts = np.unique(data.client, return_counts=True)
    assert len(speakers) == 6 and set(counts) == {500}
    assert np.bincount(data.y).tolist() == [300] * 10 and data.test.sum() == 300
    np.testing.assert_allclose(data.x.mean(axis=(1, 2, 3)), 0, atol=1e-4)
    # Silence after a recording has the lowest energies.
    assert data.x[:, -1].mean() < data.x[:, :20].mean()

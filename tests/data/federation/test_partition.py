"""Partitioners: disjoint, reproducible, and shaped as they promise."""

import numpy as np
import pytest

from fedtailor.data.federation import (
    IID,
    ClassesPerClient,
    Dataset,
    DirichletByClass,
    DirichletByClient,
    LogNormal,
    Natural,
    PowerLaw,
    Shards,
    Stratified,
    Uniform,
    from_partition,
)
from fedtailor.data.federation.sizes import allocate

CLASSES = 10


def data(n=4000, seed=0):
    """Labels with unequal classes; the inputs are the row numbers."""
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES, n, p=np.arange(5, 15) / 95)
    client = np.array([f"w{number}" for number in rng.integers(0, 30, n) ** 2 // 30])
    return Dataset(
        np.arange(n, dtype=np.float32)[:, None], y, CLASSES, "toy", client=client
    )


PARTITIONERS = [
    IID(7),
    IID(7, Uniform(20, 60)),
    IID(7, LogNormal(3, 2), use_all=True, min_samples=5),
    ClassesPerClient(20, 2),
    ClassesPerClient(20, 3, Uniform(30, 100)),
    ClassesPerClient(
        20, 2, LogNormal(0, 2), each_class=True, use_all=True, min_samples=5, stride=1
    ),
    Shards(20, 2),
    DirichletByClass(20, 0.4),
    DirichletByClass(20, 0.5, capped=True),
    DirichletByClient(20, 0.3),
    DirichletByClient(20, 0.3, PowerLaw(1.5, 20, 300), prior="data"),
    Natural(),
]


def counts(parts, y):
    return np.array([np.bincount(y[part], minlength=CLASSES) for part in parts])


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
def test_parts_are_disjoint_full_and_reproducible(partitioner):
    toy = data()
    parts = partitioner(toy, 0)
    together = np.concatenate(parts)
    assert (
        len(np.unique(together)) == len(together)
        and together.min() >= 0
        and together.max() < len(toy)
    )
    assert min(map(len, parts)) >= 1
    assert all(
        np.array_equal(a, b) for a, b in zip(parts, partitioner(toy, 0), strict=True)
    )
    if not isinstance(partitioner, Natural):
        assert not all(
            np.array_equal(a, b)
            for a, b in zip(parts, partitioner(toy, 1), strict=True)
        )


def test_all_data_are_used_where_no_sizes_are_given():
    for partitioner in (
        IID(7),
        ClassesPerClient(20, 2),
        Shards(20),
        DirichletByClass(9, 1.0),
        DirichletByClient(9, 1),
    ):
        assert sum(map(len, partitioner(data(), 0))) == 4000


def test_iid_clients_are_equally_large_and_alike():
    parts = IID(8)(data(), 0)
    assert {len(part) for part in parts} == {500}
    expected = np.bincount(data().y) / 8
    assert np.abs(counts(parts, data().y) - expected).max() < 5 * np.sqrt(
        expected.max()
    )


def test_classes_per_client_holds_exactly_so_many_and_spreads_the_classes():
    for partitioner in (
        ClassesPerClient(20, 3),
        ClassesPerClient(20, 3, Uniform(30, 100), stride=1),
    ):
        held = counts(partitioner(data(), 0), data().y) > 0
        assert (held.sum(axis=1) == 3).all() and (held.sum(axis=0) == 6).all()
    chain, blocks = (
        counts(ClassesPerClient(20, 2, stride=stride)(data(), 0), data().y)
        for stride in (1, 2)
    )
    assert np.flatnonzero(chain[13]).tolist() == [3, 4]
    assert (
        np.flatnonzero(blocks[13]).tolist()
        == np.flatnonzero(blocks[3]).tolist()
        == [6, 7]
    )


def test_sizes_are_as_wanted_where_the_data_suffice():
    sizes = [len(part) for part in ClassesPerClient(20, 2, Uniform(60, 61))(data(), 0)]
    assert set(sizes) == {60}
    assert {len(part) for part in IID(10, Uniform(37, 37))(data(), 0)} == {37}
    # 20 x 3,000 samples do not fit in 4,000: all wishes for a class are scaled down
    # alike
    tight = counts(
        ClassesPerClient(20, 2, Uniform(3000, 3000), stride=1)(data(), 0), data().y
    )
    np.testing.assert_array_less(
        np.ptp(np.where(tight > 0, tight, tight.max(axis=0)), axis=0), 1 + 1
    )


def test_least_holds_for_every_class_of_a_client():
    lopsided = ClassesPerClient(
        20, 2, LogNormal(0, 3), each_class=True, use_all=True, min_samples=5
    )(data(), 0)
    per_class = counts(lopsided, data().y)
    assert per_class[per_class > 0].min() >= 5 and per_class.sum() == 4000


def test_shards_hold_few_classes():
    held = (counts(Shards(20, 2)(data(), 0), data().y) > 0).sum(axis=1)
    assert held.max() <= 4 and held.mean() < 3.2


def test_dirichlet_by_class_spreads_each_class_and_alpha_sets_how_evenly():
    for alpha in (0.2, 5.0):
        by_class = np.concatenate(
            [
                counts(
                    DirichletByClass(10, alpha, min_samples=1)(data(), seed), data().y
                ).T
                for seed in range(30)
            ]
        )
        shares = by_class / by_class.sum(axis=1, keepdims=True)
        variance = (
            (1 / 10) * (9 / 10) / (10 * alpha + 1)
        )  # of one coordinate of a symmetric Dirichlet
        assert shares.mean() == pytest.approx(0.1)
        assert shares.var() == pytest.approx(variance, rel=0.2)


def test_capped_clients_stop_at_the_class_that_fills_them():
    sizes = {}
    for capped in (True, False):
        partitions = [
            DirichletByClass(10, 0.3, capped, min_samples=1)(data(), seed)
            for seed in range(10)
        ]
        sizes[capped] = np.array(
            [[len(part) for part in parts] for parts in partitions]
        )
    assert sizes[True].max() < 400 + np.bincount(data().y).max()
    assert sizes[True].std() < 0.8 * sizes[False].std()


def test_dirichlet_by_client_draws_label_distributions_and_keeps_the_sizes():
    big = data(40_000)
    shares = []
    for seed in range(30):
        parts = DirichletByClient(10, 0.5, Uniform(200, 200))(big, seed)
        assert {len(part) for part in parts} == {200}
        shares.append(counts(parts, big.y) / 200)
    variance = (1 / 10) * (9 / 10) / (10 * 0.5 + 1)
    multinomial = (0.1 - 0.01 - variance) / 200
    assert np.var(np.concatenate(shares)) == pytest.approx(
        variance + multinomial, rel=0.15
    )
    close = (
        counts(
            DirichletByClient(10, 1e4, Uniform(2000, 2000), prior="data")(big, 0), big.y
        ).mean(axis=0)
        / 2000
    )
    np.testing.assert_allclose(close, np.bincount(big.y) / 40_000, atol=0.01)


def test_natural_clients_keep_their_names():
    toy = data()
    federation = from_partition(toy, Natural(min_samples=100))
    names, sizes = np.unique(toy.client, return_counts=True)
    assert federation.names == tuple(names[sizes >= 100])
    for client in range(len(federation)):
        rows = federation.client(client).train.x[:, 0].astype(int)
        assert set(toy.client[rows]) == {federation.names[client]}


def test_size_laws_have_their_moments():
    rng = np.random.default_rng(0)
    assert Uniform(10, 30).draw(20_000, rng).mean() == pytest.approx(20, rel=0.01)
    logs = np.log(LogNormal(3, 0.5, offset=7, factor=2).draw(20_000, rng) / 2 - 7)
    assert (logs.mean(), logs.std()) == (
        pytest.approx(3, abs=0.02),
        pytest.approx(0.5, abs=0.02),
    )
    for exponent in (1.0, 2.0, 2.5):
        sizes = PowerLaw(exponent, 10, 1000).draw(100_000, rng)
        assert sizes.min() >= 10 and sizes.max() <= 1000
        density, edges = np.histogram(sizes, np.geomspace(10, 300, 8))
        density = density / np.diff(edges)
        slope = np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(density), 1)[
            0
        ]
        assert slope == pytest.approx(-exponent, abs=0.1)


def test_dealing_a_stock():
    assert allocate(
        10, np.array([1.0, 1.0, 1.0]), min_samples=1, use_all=True
    ).tolist() == [3, 3, 4]
    assert allocate(
        100, np.array([5.0, 2.9, 0.1]), min_samples=1, use_all=False
    ).tolist() == [5, 2, 1]
    assert allocate(
        12, np.array([50.0, 50.0]), min_samples=2, use_all=False
    ).tolist() == [6, 6]
    assert allocate(
        1000, np.array([1.0, 3.0]), min_samples=0, use_all=True
    ).tolist() == [250, 750]
    with pytest.raises(
        ValueError, match="5 samples are not enough for 3 clients with at least 2 each"
    ):
        allocate(5, np.ones(3), min_samples=2, use_all=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IID(0), "clients is 0"),
        (lambda: IID(5, min_samples=0), "min_samples is 0"),
        (lambda: ClassesPerClient(5, 0), "classes is 0"),
        (lambda: Shards(5, 0), "shards is 0"),
        (lambda: DirichletByClass(5, 0), "alpha is 0"),
        (
            lambda: DirichletByClient(5, 1.0, prior="flat"),
            "no prior 'flat'; choose one of uniform, data",
        ),
        (lambda: DirichletByClass(5, 1.0, min_samples=0), "min_samples is 0"),
        (lambda: Natural(0), "min_samples is 0"),
        (lambda: Uniform(5, 4), "sizes from 5 to 4"),
        (lambda: PowerLaw(0), "exponent is 0"),
        (lambda: PowerLaw(2, 0, 5), "low"),
        (lambda: LogNormal(sigma=-1), "sigma is -1"),
        (lambda: LogNormal(factor=0), "factor"),
        (lambda: IID(5000)(data(), 0), "4000 examples are too few for 5000 clients"),
        (
            lambda: ClassesPerClient(5, 11)(data(), 0),
            "toy has 10 classes; 11 classes per client is too many",
        ),
        (lambda: Shards(5000)(data(), 0), "cannot be cut into 10000 shards"),
        (
            lambda: DirichletByClass(500, 0.01)(data(), 0),
            "fewer clients, a larger alpha or more data",
        ),
        (lambda: Natural(4000)(data(), 0), "no client has 4000 samples"),
        (
            lambda: Natural()(Dataset(np.zeros((3, 1)), np.zeros(3, int)), 0),
            "has no clients of its own",
        ),
        (
            lambda: IID(10**12)(data(), 0),
            "4000 examples are too few for 1000000000000 clients; use fewer",
        ),
        (
            lambda: ClassesPerClient(10**12)(data(), 0),
            "too few for 1000000000000 clients",
        ),
        (lambda: Shards(10**12)(data(), 0), "cannot be cut into 2000000000000 shards"),
        (
            lambda: DirichletByClass(10**12, 1.0)(data(), 0),
            "too few for 1000000000000 clients",
        ),
        (
            lambda: DirichletByClient(10**12, 1.0)(data(), 0),
            "too few for 1000000000000 clients",
        ),
        (lambda: Stratified(10**12)(data(), 0), "too few for 1000000000000 clients"),
        (lambda: IID(2.5), "clients is 2.5; it must be a whole number"),
        (
            lambda: ClassesPerClient(5, 2, stride=0.5),
            "stride is 0.5; it must be a whole number",
        ),
        (
            lambda: DirichletByClass(5, np.nan),
            "alpha is nan; it must be a finite number",
        ),
        (
            lambda: DirichletByClass(5, np.inf),
            "alpha is inf; it must be a finite number",
        ),
        (
            lambda: DirichletByClient(5, 1e300),
            r"alpha is 1e\+300; it must be above 0, up to 1e\+09",
        ),
        (lambda: Uniform(5, np.inf), "high is inf; it must be a finite number"),
        (lambda: LogNormal(mu=np.nan), "mu is nan; it must be a finite number"),
        (lambda: PowerLaw(np.inf), "exponent is inf"),
        (
            lambda: IID(5, LogNormal(1000))(data(), 0),
            "the clients' sizes sum to inf; choose other ones",
        ),
        (
            lambda: IID(5, LogNormal(-1000), use_all=True)(data(), 0),
            "the clients' sizes sum to 0.0; choose",
        ),
        (lambda: IID(5)(data(), -1), "seed is -1"),
        (
            lambda: Shards(1)(Dataset(np.zeros((3, 1)), np.zeros(3)), 0),
            "needs a label per example",
        ),
    ],
)
def test_impossible_settings_are_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)

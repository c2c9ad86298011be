"""The choice of a method on validation data, and of other ones for single clients."""

import numpy as np
import polars as pl

from fedtailor.statistics.decision import recommend

ORDER = ("local", "fedavg", "ditto")


def values(table):
    """method -> [seeds, clients] as one row for each value."""
    lines = [
        (method, seed, f"c{client}", float(value))
        for method, scores in table.items()
        for seed, of_seed in enumerate(scores)
        for client, value in enumerate(of_seed)
    ]
    return pl.DataFrame(lines, ["method", "seed", "client", "value"], orient="row")


def rows(clients, val=30, train=210):
    return {f"c{client}": (val, train) for client in range(clients)}


def noisy(rng, mean, clients=10, error=0.05):
    return np.asarray(mean) + error * rng.normal(size=(3, clients))


def test_of_methods_that_are_as_good_it_is_the_simplest():
    rng = np.random.default_rng(0)
    table = {name: noisy(rng, 0.8) for name in ("ditto", "fedavg", "local")}
    found = recommend(values(table), ORDER, rows(10), higher_is_better=True)
    assert found.method == "local" and "local" in found.close
    assert not found.of_client


def test_a_method_that_is_better_by_more_than_a_standard_error_is_taken():
    rng = np.random.default_rng(0)
    table = {"local": noisy(rng, 0.6), "fedavg": noisy(rng, 0.8)}
    found = recommend(values(table), ORDER, rows(10), higher_is_better=True)
    assert found.method == found.best == "fedavg" and found.close == ("fedavg",)
    losses = {name: -scores for name, scores in table.items()}
    assert (
        recommend(values(losses), ORDER, rows(10), higher_is_better=False).method
        == "fedavg"
    )


def test_the_standard_error_is_that_of_the_mean_over_clients():
    """One seed: the error is the deviation of the differences over the root of their
    number, here 0.1 / 2; a difference of 0.051 is more, one of 0.049 is not.
    """
    base = np.zeros((1, 4))
    spread = 0.1 * np.sqrt(3 / 4) * np.array([[1, -1, 1, -1]])
    for mean, method in ((0.051, "fedavg"), (0.049, "local")):
        table = {"local": base, "fedavg": mean + spread}
        found = recommend(values(table), ORDER, rows(4), higher_is_better=True)
        assert found.method == method and found.best == "fedavg"


def test_a_client_that_needs_another_method_gets_it():
    rng = np.random.default_rng(1)
    shared = np.full(10, 0.8)
    shared[3] = 0.2
    table = {"local": noisy(rng, 0.6), "fedavg": noisy(rng, shared)}
    found = recommend(values(table), ORDER, rows(10), higher_is_better=True)
    assert found.method == "fedavg" and dict(found.of_client) == {"c3": "local"}
    assert found.for_client("c3") == "local" and found.for_client("c4") == "fedavg"


def test_chance_rarely_gives_a_client_another_method():
    """Methods that are equal for every client: of 200 tables of 10 clients few have a
    client that is given another one.
    """
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(200):
        table = {name: noisy(rng, 0.8) for name in ORDER}
        found = recommend(values(table), ORDER, rows(10), higher_is_better=True)
        wrong += bool(found.of_client)
    assert wrong <= 10


def test_few_seeds_or_clients_choose_one_method_for_all():
    table = {"local": [[0.9, 0.1, 0.1, 0.1]], "fedavg": [[0.1, 0.9, 0.9, 0.9]]}
    found = recommend(values(table), ORDER, rows(4), higher_is_better=True)
    assert not found.of_client


def test_a_method_that_diverged_with_a_seed_is_not_taken():
    table = {"local": np.full((3, 4), 0.5), "fedavg": np.full((3, 4), 0.9)}
    lines = values(table).filter(
        ~((pl.col("method") == "fedavg") & (pl.col("seed") == 1))
    )
    found = recommend(lines, ORDER, rows(4), higher_is_better=True)
    assert found.method == "local"
    nothing = lines.with_columns(value=pl.lit(float("nan")))
    assert recommend(nothing, ORDER, rows(4), higher_is_better=True) is None

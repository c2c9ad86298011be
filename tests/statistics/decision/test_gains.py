"""Gains of clients: what they are, how often "helps" is false, and that a clear gain is
found.
"""

import numpy as np
import polars as pl
import pytest
from scipy import stats
from sklearn.metrics import r2_score, roc_auc_score

from fedtailor.statistics.decision import client_gains, hierarchical, holm, shrink
from fedtailor.statistics.decision.paired import PairedRows, seed_variance

KINDS = {"accuracy": "correct", "loss": "loss", "rmse": "squared_error"}


def simulate(metric, clients, rows, seeds, gap=0.0, seed_deviation=0.0, overlap=False):
    """Test rows of two methods: difficult and easy rows, and seeds in which a method is
    lucky with a client.
    """
    rng = np.random.default_rng(rows + seeds)
    pool = (
        2 * rows if overlap else rows
    )  # with overlap each seed has a split of its own
    shape = (2, seeds, clients, rows)
    number = np.array(
        [[rng.permutation(pool)[:rows] for _ in range(clients)] for _ in range(seeds)]
    )
    hardness = np.take_along_axis(rng.normal(0, 1, (1, clients, pool)), number, axis=2)
    luck = rng.normal(0, seed_deviation, (2, seeds, clients, 1))
    skill = 0.8 + hardness + luck + gap * np.arange(2)[:, None, None, None]
    noise = rng.normal(0, 1, shape)
    score = noise < skill if metric == "accuracy" else np.exp(noise - 0.7 * skill)
    method, seed, client, _ = np.indices(shape)
    return pl.DataFrame(
        {
            "method": np.array(["local", "other"])[method.ravel()],
            "seed": seed.ravel(),
            "client": client.ravel().astype(str),
            "row": np.broadcast_to(number, shape).ravel(),
            KINDS[metric]: score.ravel(),
        }
    )


@pytest.mark.parametrize(
    ("metric", "rows", "seeds", "deviation", "overlap"),
    [
        ("accuracy", 12, 1, 0, False),
        ("accuracy", 100, 1, 0, False),
        ("accuracy", 60, 3, 0, False),
        ("accuracy", 60, 3, 0.3, False),
        ("accuracy", 30, 3, 0.3, True),
        ("loss", 12, 1, 0, False),
        ("loss", 60, 3, 0.15, False),
        ("rmse", 40, 1, 0, False),
        ("rmse", 40, 3, 0.3, True),
    ],
)
def test_without_a_gain_verdicts_are_wrong_at_most_as_often_as_they_say(
    metric, rows, seeds, deviation, overlap
):
    clients = 300
    table = simulate(
        metric, clients, rows, seeds, seed_deviation=deviation, overlap=overlap
    )
    verdicts = client_gains(table, metric=metric)["verdict"]
    helps, wrong = (verdicts == "helps").mean(), (verdicts != "cannot tell").mean()
    assert helps <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / clients)
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / clients)


@pytest.mark.parametrize(
    ("metric", "gap", "verdict"),
    [
        ("accuracy", 2, "helps"),
        ("accuracy", -2, "hurts"),
        ("loss", 3, "helps"),
        ("rmse", -3, "hurts"),
    ],
)
@pytest.mark.parametrize("seeds", [1, 4])
def test_a_clear_gain_is_found(metric, gap, verdict, seeds):
    found = client_gains(simulate(metric, 60, 80, seeds, gap, 0.05), metric=metric)
    assert (found["verdict"] == verdict).mean() > 0.9
    assert ((found["gain"] > 0) == (gap > 0)).all()


def test_gains_are_differences_of_means_over_seeds():
    table = simulate("accuracy", 3, 20, 2, 0.5, overlap=True)
    found = client_gains(table).row(by_predicate=pl.col("client") == "1", named=True)
    means = (
        table.filter(client="1")
        .group_by("method", "seed")
        .agg(pl.col("correct").mean())
    )
    value, base = (
        means.filter(method=name)["correct"].mean() for name in ("other", "local")
    )
    np.testing.assert_allclose(
        [found["value"], found["base_value"], found["gain"]],
        [value, base, value - base],
    )
    assert found["low"] < found["gain"] < found["high"] and found["seeds"] == 2
    assert found["test_rows"] == table.filter(client="1")["row"].n_unique()


def test_with_two_seeds_a_client_s_interval_depends_on_its_own_rows_only():
    table = simulate("loss", 4, 20, 2)
    own = ("gain", "low", "high", "p")
    alone = client_gains(table.filter(client="2"), metric="loss")
    among = client_gains(table, metric="loss").filter(client="2")
    assert alone.select(own).equals(among.select(own))
    shuffled = client_gains(
        table.sample(fraction=1, shuffle=True, seed=1), metric="loss"
    ).filter(client="2")
    for name in own:
        np.testing.assert_allclose(shuffled[name], alone[name], rtol=1e-9)


def test_a_seed_that_a_method_lacks_is_left_out_of_its_gain():
    table = simulate("accuracy", 2, 20, 3, 1.0)
    without = table.filter(~((pl.col("method") == "other") & (pl.col("seed") == 1)))
    got, kept = client_gains(without), client_gains(table.filter(pl.col("seed") != 1))
    assert got.equals(kept) and got["seeds"].to_list() == [2, 2]
    gone = client_gains(
        table.filter(~((pl.col("method") == "other") & (pl.col("client") == "1")))
    )
    assert gone["client"].to_list() == ["0"]


def test_tables_that_cannot_be_compared_are_refused():
    table = simulate("accuracy", 2, 5, 2)
    with pytest.raises(
        ValueError,
        match=(
            r"no test rows of 'alone' to compare with; run it too, or choose from"
            r" \['loc"
        ),
    ):
        client_gains(table, base="alone")
    with pytest.raises(
        ValueError,
        match=(
            "gains in 'brier' do not follow from the table of rows; choose from accura"
        ),
    ):
        client_gains(table, metric="brier")
    with pytest.raises(ValueError, match=r"lacks the columns \['loss'\]"):
        client_gains(table, metric="loss")
    with pytest.raises(ValueError, match="client '0' has a test row twice"):
        client_gains(pl.concat([table, table[:1]]))
    with pytest.raises(
        ValueError,
        match=(
            r"'other' and 'local' were not tested on the same rows of client '1'"
            r" \(seed 1"
        ),
    ):
        client_gains(table[:-1])


def test_holm_s_p_values():
    adjusted = holm(np.array([0.01, np.nan, 0.04, 0.03, 0.005]))  # Holm 1979: 4 tests
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.06, 0.06, 0.02], rtol=1e-12)
    np.testing.assert_array_equal(holm(np.array([0.9, 0.8])), [1, 1])
    assert holm(np.zeros(0)).shape == (0,)


def test_three_seeds_that_split_anew_show_more_than_one():
    counts = {}
    for seeds in (1, 3):
        table = simulate("accuracy", 100, 40, seeds, 0.9, 0.1, overlap=True)
        counts[seeds] = int((client_gains(table)["verdict"] == "helps").sum())
    assert counts[3] > counts[1] > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_holm_keeps_its_level_over_250_lines_of_three_seeds(overlap):
    wrong = 0
    for repetition in range(8):
        table = simulate("accuracy", 250, 40 + repetition, 3, overlap=overlap)
        p = client_gains(table)["p"].to_numpy()
        wrong += bool((holm(p) < 0.05).any())
    assert (
        wrong <= 2
    )  # three or more of eight happen in 1 % of cases at a level of 0.05


def test_p_values_are_corrected_over_all_lines():
    table = simulate("accuracy", 12, 40, 1, 1.5)
    found = client_gains(table)
    np.testing.assert_array_equal(found["p_holm"], holm(found["p"].to_numpy()))
    assert (found["p_holm"] >= found["p"]).all()


def test_luck_that_all_clients_share_is_as_many_observations_as_there_are_seeds():
    """Without any noise of rows the interval is Student's over three seeds."""
    luck = np.array([0.5, 1.5, 1.0])
    method, seed, client, row = np.indices((2, 3, 40, 4))
    table = pl.DataFrame(
        {
            "method": np.array(["local", "other"])[method.ravel()],
            "seed": seed.ravel(),
            "client": client.ravel().astype(str),
            "row": row.ravel(),
            "loss": (3.0 - method * luck[seed] + row).ravel(),
        }
    )
    expected = stats.ttest_1samp(luck, 0)
    np.testing.assert_allclose(
        client_gains(table, metric="loss")["p"], expected.pvalue, rtol=1e-6
    )


def test_luck_of_single_clients_is_pooled_over_clients():
    """Without any noise of rows and nothing in common all clients have one variance."""
    clients, seeds = 400, 3
    luck = np.random.default_rng(0).normal(size=(seeds, clients))
    method, seed, client, row = np.indices((2, seeds, clients, 4))
    table = pl.DataFrame(
        {
            "method": np.array(["local", "other"])[method.ravel()],
            "seed": seed.ravel(),
            "client": client.ravel().astype(str),
            "row": row.ravel(),
            "loss": (3.0 - method * luck[seed, client] + row).ravel(),
        }
    )
    found = client_gains(table, metric="loss")
    width = (found["high"] - found["low"]).to_numpy()
    of_one = 2 * stats.t.ppf(0.975, (seeds - 1) * (clients - 1)) / np.sqrt(seeds)
    np.testing.assert_allclose(width, of_one, rtol=0.1)


def of_classes(rows=80, seeds=1):
    """Rows of two classes with the probabilities that two methods give."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 2, rows)
    frames = []
    for seed in range(seeds):
        for name, skill in (("local", 0.5), ("other", 2.0)):
            odds = skill * (2 * label - 1) + rng.normal(0, 1.5, rows)
            probability = 1 / (1 + np.exp(-odds))
            predicted = (probability > 0.5).astype(int)
            frames.append(
                pl.DataFrame(
                    {
                        "method": name,
                        "seed": seed,
                        "client": "a",
                        "row": np.arange(rows),
                        "correct": predicted == label,
                        "prediction": predicted,
                        "log_odds": np.abs(odds),
                        "probability": probability,
                        "label": label,
                    }
                )
            )
    return pl.concat(frames)


def test_areas_under_curves_have_delong_s_interval():
    table = of_classes()
    found = client_gains(table, metric="roc_auc").row(0, named=True)
    areas, placed = {}, {}
    for name in ("local", "other"):
        part = table.filter(method=name)
        label, probability = part["label"].to_numpy(), part["probability"].to_numpy()
        areas[name] = roc_auc_score(label, probability)
        higher = probability[label == 1][:, None] > probability[label == 0][None]
        placed[name] = higher.mean(axis=1), higher.mean(axis=0)
    np.testing.assert_allclose(
        [found["base_value"], found["value"]], list(areas.values()), rtol=1e-12
    )
    positive, negative = (
        placed["other"][side] - placed["local"][side] for side in (0, 1)
    )
    variance = positive.var(ddof=1) / len(positive)
    variance += negative.var(ddof=1) / len(negative)
    degrees = 2 * (min(len(positive), len(negative)) - 1)
    reach = stats.t.ppf(0.975, degrees) * np.sqrt(variance)
    np.testing.assert_allclose(
        [found["low"], found["high"]],
        [found["gain"] - reach, found["gain"] + reach],
        rtol=1e-8,
    )


def test_a_client_whose_test_rows_are_of_one_class_has_no_gain_in_area():
    table = of_classes().filter(pl.col("label") == 1)
    assert client_gains(table, metric="roc_auc").is_empty()


def test_gains_in_explained_variance_are_those_of_errors():
    rng = np.random.default_rng(5)
    target = rng.normal(3, 2, 50)
    answers = {
        "local": target + rng.normal(0, 2, 50),
        "other": target + rng.normal(0, 1, 50),
    }
    table = pl.concat(
        pl.DataFrame(
            {
                "method": name,
                "seed": 0,
                "client": "a",
                "row": np.arange(50),
                "squared_error": np.square(answer - target),
                "target": target,
            }
        )
        for name, answer in answers.items()
    )
    found = client_gains(table, metric="r2").row(0, named=True)
    errors = client_gains(table, metric="rmse").row(0, named=True)
    scores = [r2_score(target, answers[name]) for name in ("local", "other")]
    np.testing.assert_allclose(
        [found["base_value"], found["value"]], scores, rtol=1e-10
    )
    np.testing.assert_allclose(found["p"], errors["p"], rtol=1e-10)
    np.testing.assert_allclose(found["gain"], scores[1] - scores[0], rtol=1e-10)
    assert found["low"] < found["gain"] < found["high"]


def test_shrinking_has_its_closed_form_for_equal_variances():
    estimates, variance = np.array([3.0, -1, 2, 4, -3]), 2.0
    between = estimates.var(ddof=1) - variance
    mean = estimates.mean()
    np.testing.assert_allclose(
        shrink(estimates, np.full(5, variance)),
        mean + between / (between + variance) * (estimates - mean),
        rtol=1e-8,
    )
    # Less scatter than errors alone explain: nothing tells the values apart.
    np.testing.assert_allclose(shrink(estimates, np.full(5, 100.0)), mean)
    np.testing.assert_array_equal(shrink(estimates, np.zeros(5)), estimates)
    unknown = shrink(estimates, np.array([2.0, 2, 2, 2, np.inf]))
    assert unknown[-1] == pytest.approx(estimates[:4].mean())


def test_expected_gains_are_nearer_to_the_truth_than_measured_ones():
    rng, rows, clients = np.random.default_rng(6), 10, 200
    truth = rng.normal(0.3, 0.2, clients)
    method, client, row = np.indices((2, clients, rows))
    noise = rng.normal(size=(2, clients, rows))
    table = pl.DataFrame(
        {
            "method": np.array(["local", "other"])[method.ravel()],
            "seed": 0,
            "client": client.ravel().astype(str),
            "row": row.ravel(),
            "loss": (noise - method * truth[client]).ravel(),
        }
    )
    found = client_gains(table, metric="loss")
    errors = {
        name: np.sqrt(np.square(found[name].to_numpy() - truth).mean())
        for name in ("gain", "expected")
    }
    assert errors["expected"] < 0.55 * errors["gain"]


def test_a_single_row_of_a_class_tells_nothing_of_an_area():
    table = of_classes()
    positive = table.filter(pl.col("label") == 1)["row"].min()
    one = table.filter((pl.col("label") == 0) | (pl.col("row") == positive))
    found = client_gains(one, metric="roc_auc").row(0, named=True)
    assert (found["low"], found["high"], found["p"]) == (-1, 1, 1)
    assert found["verdict"] == "cannot tell"


def test_equal_ranks_of_few_rows_do_not_show_equal_areas():
    table = of_classes(rows=14)
    same = table.filter(method="local").with_columns(method=pl.lit("other"))
    found = client_gains(
        pl.concat([table.filter(method="local"), same]), metric="roc_auc"
    ).row(0, named=True)
    assert found["gain"] == 0 and found["verdict"] == "cannot tell"
    assert found["low"] < -0.05 and found["high"] > 0.05


def test_of_a_few_clients_no_deviation_is_known():
    assert hierarchical(np.array([0.0, 1.0]), np.ones(2)) is None
    assert hierarchical(np.array([0.0, 1.0, 2.0]), np.array([1.0, 1, 0])) is None


def test_equal_estimates_are_drawn_together_and_different_ones_kept():
    alike = hierarchical(np.array([1.0, 1.1, 0.9, 1.0] * 5), np.ones(20))
    assert (np.abs(alike[:, 0] - 1) < 0.05).all()
    assert (alike[:, 2] - alike[:, 1] < 0.6 * 2 * 1.96).all()
    apart = np.array([0.0, 50, 100, 150])
    kept = hierarchical(apart, np.ones(4))
    np.testing.assert_allclose(kept[:, 0], apart, atol=0.1)
    np.testing.assert_allclose(kept[:, 2] - kept[:, 1], 2 * 1.96, rtol=0.01)
    # Of whom nothing is known, as much is known as of a new client.
    unknown = hierarchical(np.array([*apart, 0.0]), np.array([1.0, 1, 1, 1, np.inf]))
    assert abs(unknown[-1, 0] - 75) < 1 and unknown[-1, 2] - unknown[-1, 1] > 150


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.0), (0.0, 1.0), (0.5, 3.0)])
def test_shrunken_gains_have_intervals_that_hold(mean, deviation):
    rng, covered, wrong = np.random.default_rng(0), [], []
    for _ in range(100):
        truth = mean + deviation * rng.normal(size=12)
        variances = rng.uniform(0.3, 2.0, 12)
        estimates = truth + np.sqrt(variances) * rng.normal(size=12)
        _, low, high = hierarchical(estimates, variances).T
        covered.append((low <= truth) & (truth <= high))
        wrong.append(((low > 0) & (truth <= 0)) | ((high < 0) & (truth >= 0)))
    assert np.mean(covered) > 0.91
    assert np.mean(wrong) < 0.025


def of_seeds(differences):
    """A comparison in these seeds, whose rows explain nothing."""
    seeds = len(differences)
    return PairedRows(
        values=differences,
        base_values=np.zeros(seeds),
        differences=differences,
        center=float(differences.mean()),
        row_variance=0.0,
        degrees=9,
        in_seed=0.0,
        between_seeds=0.0,
        overlap=1.0,
        rows=10,
        seeds=np.arange(seeds),
    )


def test_what_seeds_add_has_the_degrees_of_a_table_of_clients_and_seeds():
    rng = np.random.default_rng(0)
    clients = [of_seeds(rng.normal(size=seeds)) for seeds in (4, 4, 3)]
    found = seed_variance(clients)
    assert (found.common_degrees, found.own_degrees) == (3, 3 + 3 + 2 - 3)
    # What a single client has of its own is not told from what all have.
    alone = seed_variance(clients[:1])
    expected = clients[0].differences.var(ddof=1) / 4
    ((variance, degrees),) = alone.components(0)
    assert degrees == 3
    np.testing.assert_allclose(variance, expected, rtol=1e-10)

"""From one probe to tables and sentences, on populations whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from fedtailor.statistics.diagnosis import RESTS_ON, Evidence, diagnose


def linear_clients(rng, slopes, sizes, shift=0.0):
    """The evidence of clients with y = sign(slope x + noise), under logistic regression
    at 0.
    """
    gradients, sigma2, batches, counts, means, squares = [], [], [], [], [], []
    for slope, n, moved in zip(
        slopes, sizes, np.broadcast_to(shift, len(sizes)), strict=True
    ):
        x = rng.normal(size=(n, 5)) + moved
        y = (x @ slope + rng.normal(size=n) > 0).astype(int)
        each = (0.5 - y)[:, None] * x
        k = max(n // 20, 1)
        parts = each[: n // k * k].reshape(n // k, k, 5).mean(axis=1)
        gradients.append(each.mean(axis=0))
        sigma2.append(np.square(parts - gradients[-1]).sum(axis=1).mean())
        batches.append(k)
        counts.append(np.bincount(y, minlength=2))
        means.append(x.mean(axis=0))
        squares.append(np.square(x).mean(axis=0))
    names = [f"c{i}" for i in range(len(sizes))]
    return Evidence(
        names,
        np.array(sizes),
        np.array(gradients),
        np.array(sigma2),
        np.array(batches),
        np.array(counts),
        np.array(means),
        np.array(squares),
    )


SLOPE = np.array([2.0, 1, 0, 0, 0])


def test_one_population_is_not_told_apart():
    rng, apart = np.random.default_rng(0), 0
    for _ in range(40):
        found = diagnose(linear_clients(rng, [SLOPE] * 6, [30, 60, 60, 90, 90, 300]))
        apart += found.groups.max() > 0
    assert apart <= 6  # 5 % of 40, and three standard errors
    sentences = found.sentences()
    assert sentences[0].startswith(
        "Clients are told apart by their labels in 0 of 15 pairs and by their inputs"
        " in 0"
    )
    assert (
        sentences[1].startswith("No pair of clients is told apart by gradients")
        and len(sentences) == 3
    )
    assert (
        found.gain.gain[0] > found.gain.gain[-1] > 1
    )  # who has few samples gains most


def test_groups_that_label_the_same_inputs_differently():
    evidence = linear_clients(
        np.random.default_rng(1), [SLOPE, -SLOPE] * 3 + [4 * np.eye(5)[3]], [300] * 7
    )
    found = diagnose(evidence)
    np.testing.assert_array_equal(found.groups, [0, 1, 0, 1, 0, 1, 2])
    _, gradients, groups, gain = found.sentences()
    assert gradients.startswith(
        "Gradients tell 15 of 21 pairs apart, 15 of which neither labels nor inputs do"
    )
    assert (
        groups
        == "There are 3 groups within which no pair is told apart; c6 stands alone."
    )
    assert gain.startswith("Sharing would make clients as sure of their models as 1.")


def test_clients_with_inputs_of_their_own():
    shift = np.where(np.arange(4) < 2, 0.0, 1.0)
    found = diagnose(
        linear_clients(np.random.default_rng(2), [SLOPE * 0] * 4, [200] * 4, shift)
    )
    # The inputs that differ are named, the most unlike first.
    assert found.columns()["column"].sort().to_list() == [
        f"input {number}" for number in range(5)
    ]
    assert "Means of inputs that differ between clients" in found.sentences()[1]
    named = replace(found.evidence, feature_names=list("abcde"))
    assert set(diagnose(named).columns()["column"]) == set("abcde")
    pairs = found.pairs().filter(found.pairs()["input_p"] < 0.05)
    assert {(row["client"], row["other"]) for row in pairs.iter_rows(named=True)} == {
        ("c0", "c2"),
        ("c0", "c3"),
        ("c1", "c2"),
        ("c1", "c3"),
    }
    np.testing.assert_allclose(pairs["input_difference"], 1, atol=0.15)
    assert (found.pairs()["label_p"] > 0.05).all()


def test_every_number_says_what_it_rests_on():
    found = diagnose(
        linear_clients(np.random.default_rng(3), [SLOPE] * 3, [20, 30, 40])
    )
    columns = {*found.clients().columns, *found.pairs().columns} - {"client", "other"}
    assert columns == RESTS_ON.keys()
    assert (
        found.clients()["client"].to_list() == ["c0", "c1", "c2"]
        and len(found.pairs()) == 3
    )
    assert (found.clients()["effective_samples"] <= 90 + 1e-9).all()


def test_without_labels_or_features_gradients_remain():
    full = linear_clients(np.random.default_rng(4), [SLOPE, -SLOPE], [200, 200])
    bare = diagnose(
        Evidence(full.names, full.sizes, full.gradients, full.sigma2, full.batch_sizes)
    )
    assert bare.pairs().columns == ["client", "other", "gradient_ratio", "gradient_p"]
    assert bare.sentences()[0] == "Gradients tell 1 of 1 pairs apart."
    assert (
        bare.sentences()[1]
        == "Every client is told apart from every other one: there are no groups."
    )


def test_evidence_that_does_not_fit_is_refused():
    full = linear_clients(np.random.default_rng(5), [SLOPE] * 2, [20, 20])
    with pytest.raises(
        ValueError, match="sizes holds 2 clients, and there are 3 names"
    ):
        Evidence(
            ["a", "b", "c"], full.sizes, full.gradients, full.sigma2, full.batch_sizes
        )
    with pytest.raises(
        ValueError, match="give the features' means and the means of their squares"
    ):
        Evidence(
            full.names,
            full.sizes,
            full.gradients,
            full.sigma2,
            full.batch_sizes,
            None,
            full.feature_means,
        )
    with pytest.raises(ValueError, match="one client alone"):
        Evidence(
            ["a"],
            full.sizes[:1],
            full.gradients[:1],
            full.sigma2[:1],
            full.batch_sizes[:1],
        )
    with pytest.raises(
        ValueError, match="gradients of client 'c1' do not vary between batches"
    ):
        diagnose(
            Evidence(
                full.names,
                full.sizes,
                full.gradients,
                np.array([1.0, 0.0]),
                full.batch_sizes,
            )
        )
    with pytest.raises(ValueError, match="there are 2 names of features, and 5"):
        replace(full, feature_names=["a", "b"])


def test_a_client_of_one_row_has_no_gain():
    """Nothing is known of how much its gradients vary."""
    full = linear_clients(np.random.default_rng(6), [SLOPE] * 3, [40, 60, 1])
    found = diagnose(full)
    for name in ("gain", "strength"):
        values = found.clients()[name].to_numpy()
        np.testing.assert_array_equal(np.isnan(values), [False, False, True])
    assert "nan" not in " ".join(found.sentences())

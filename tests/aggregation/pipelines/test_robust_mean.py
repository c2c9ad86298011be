"""Robust means of what clients send, Byzantine clients, and what excludes what."""

import jax
import numpy as np
import pytest

from conformance.examples import PLAIN
from fedtailor.aggregation import robust
from fedtailor.aggregation.pipelines import (
    Byzantine,
    Cast,
    Clip,
    GaussianNoise,
    RobustMean,
)
from fedtailor.aggregation.pipelines.byzantine import largest_unnoticed
from fedtailor.algorithms import (
    CFL,
    IFCA,
    L2GD,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedPer,
    PFedMe,
)
from fedtailor.data.federation import byzantine_clients
from fedtailor.engine.runs import run, simulate
from fedtailor.protocol import Diverged
from fedtailor.testing import classification, softmax_model
from fedtailor.testing.problems import float64, mlp_model

CLIENTS = 8
FEDAVG = FedAvg(sgd=PLAIN, weights="uniform")


def trained(algorithm=FEDAVG, rounds=2, model=None, **options):
    training = simulate(
        algorithm, classification(CLIENTS), model or softmax_model("float32"), **options
    )
    for _ in range(rounds):
        training.advance()
    return training


def sent_in_the_first_round(algorithm=FEDAVG):
    """What every client sends [c, d], and the model that it received."""
    training = simulate(algorithm, classification(CLIENTS), softmax_model("float32"))
    exchange = next(training.next_round())
    answers = training.executor.exchange(exchange)
    return answers.host("model").astype(np.float64), np.asarray(training.initial(0))


@pytest.mark.parametrize(
    ("transform", "rule"),
    [
        (RobustMean("median"), robust.coordinate_median),
        (RobustMean("trimmed-mean"), lambda x: robust.trimmed_mean(x, 2)),
        (RobustMean("krum"), lambda x: robust.krum(x, 2)),
        (RobustMean("multi-krum"), lambda x: robust.krum(x, 2, 4)),
        (RobustMean("geometric-median"), robust.geometric_median),
        (RobustMean("norm-bound"), robust.norm_bounded_mean),
        (
            RobustMean("centred-clipping", steps=2),
            lambda x: robust.centred_clipping(x, np.zeros(x.shape[1]), steps=2),
        ),
    ],
)
def test_the_server_moves_to_the_rules_average(transform, rule):
    sent, start = sent_in_the_first_round()
    expected = start + rule(sent - start)
    found = trained(rounds=1, uplink=(transform,)).server.model[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        FEDAVG,
        Ditto(sgd=PLAIN),
        SCAFFOLD(sgd=PLAIN),
        PFedMe(sgd=PLAIN),
        L2GD(sgd=PLAIN),
        FedPer(sgd=PLAIN, weights="uniform"),
    ],
    ids=lambda algorithm: algorithm.about.name,
)
def test_without_trimming_the_mean_is_what_it_was_in_every_method(algorithm):
    with float64():
        model = mlp_model()
        plain = trained(algorithm, 4, model)
        trimmed = trained(algorithm, 4, model, uplink=(RobustMean(byzantine=0),))
        for ours, theirs in zip(
            jax.tree.leaves(trimmed.server), jax.tree.leaves(plain.server), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


def test_the_order_in_which_clients_are_listed_changes_nothing():
    federation = classification(CLIENTS)
    for transform in (RobustMean("krum"), RobustMean("median", 0.1, bucket=2)):
        models = []
        for listed in (federation, federation.only(federation.names[::-1])):
            training = simulate(
                FEDAVG,
                listed,
                softmax_model("float32"),
                uplink=(transform, Byzantine("random", share=0.25)),
            )
            training.advance()
            models.append(np.asarray(training.server.model))
        np.testing.assert_allclose(*models, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attack", ["nan", "huge", "sign-flip", "scale", "random"])
def test_a_robust_mean_stays_among_the_honest(attack):
    sent, start = sent_in_the_first_round()
    attacks = Byzantine(attack, 0.25, 1e3)
    training = simulate(FEDAVG, classification(CLIENTS), softmax_model("float32"))
    honest = sent[~byzantine_clients(training.population.ids, 0.25, 0)]
    radius = np.linalg.norm(honest - start, axis=1).max()
    for rule in ("median", "multi-krum", "geometric-median", "centred-clipping"):
        uplink = (RobustMean(rule, byzantine=0.25), attacks)
        moved = trained(rounds=1, uplink=uplink).server.model[0] - start
        assert np.linalg.norm(moved) <= radius * (1 + 1e-5)


def test_attacks_ruin_the_mean():
    with pytest.raises(Diverged):
        trained(rounds=2, uplink=(Byzantine("nan"),))
    honest = trained().server.model[0]
    attacked = trained(rounds=1, uplink=(Byzantine("huge"),)).server.model[0]
    assert np.abs(np.asarray(attacked)).min() > 1e28
    scaled = trained(uplink=(Byzantine("sign-flip", factor=100),)).server.model[0]
    assert np.abs(scaled - honest).max() > 1


def test_attacks_by_hand():
    sent, start = sent_in_the_first_round()
    training = simulate(FEDAVG, classification(CLIENTS), softmax_model("float32"))
    attackers = byzantine_clients(training.population.ids, 0.25, 0)
    assert attackers.sum() == 2
    mean = sent.mean(axis=0)
    change = (sent - start)[attackers].sum(axis=0) / CLIENTS
    for attack, expected in (
        (Byzantine("sign-flip", 0.25, 3.0), mean - 4 * change),
        (Byzantine("scale", 0.25, 3.0), mean + 2 * change),
    ):
        found = trained(rounds=1, uplink=(attack,)).server.model[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    # 8 clients, of which 2 are Byzantine: 5 - 2 = 3 supporters of 6 honest ones, so z = 0
    assert largest_unnoticed(8, 2) == 0
    # 50 clients, 24 attackers: 2 supporters of 26 (table in Baruch et al., z = 1.43)
    assert largest_unnoticed(50, 24) == pytest.approx(1.426, abs=1e-3)
    z = largest_unnoticed(CLIENTS, 4)
    attacked = trained(
        rounds=1, uplink=(Byzantine("little-is-enough", 0.5),)
    ).server.model[0]
    attacker = mean - z * sent.std(axis=0)
    four = byzantine_clients(training.population.ids, 0.5, 0)
    expected = (sent[~four].sum(axis=0) + 4 * attacker) / CLIENTS
    np.testing.assert_allclose(attacked, expected, rtol=0, atol=1e-6)


def test_nobody_honest_leaves_the_model_where_it_is():
    training = trained(
        rounds=1, uplink=(RobustMean("median"), Byzantine("nan", share=1))
    )
    # The mean of equal vectors is rounded.
    np.testing.assert_allclose(
        training.server.model[0], training.initial(0), rtol=0, atol=1e-6
    )


def test_fewer_reporters_than_asked_are_averaged_all_the_same():
    training = trained(rounds=0, uplink=(RobustMean("krum"),))
    for count in (1, 2, 3):
        training.advance(np.arange(CLIENTS) < count)
        assert np.isfinite(training.server.model).all()
    before = np.asarray(training.server.model)
    training.advance(np.zeros(CLIENTS, bool))
    np.testing.assert_array_equal(training.server.model, before)


def test_compressed_updates_are_restored_before_they_are_averaged():
    exact = trained(uplink=(RobustMean("median"),)).server.model
    cast = trained(uplink=(RobustMean("median"), Clip(1e3), Cast())).server.model
    np.testing.assert_allclose(cast, exact, rtol=0, atol=0.02)


def test_a_run_is_resumed_with_its_centre(tmp_path):
    uplink = (RobustMean("centred-clipping", radius=0.05),)

    def model(rounds, directory, resume=False):
        done = run(
            FEDAVG,
            classification(CLIENTS),
            softmax_model("float32"),
            rounds,
            uplink=uplink,
            directory=directory,
            resume=resume,
        )
        return np.asarray(done.training.server.model)

    whole = model(4, tmp_path / "whole")
    model(2, tmp_path / "parts")
    np.testing.assert_array_equal(model(4, tmp_path / "parts", resume=True), whole)
    # The centre of the round before matters.
    restarted = (RobustMean("norm-bound", radius=0.05),)
    assert np.abs(trained(rounds=4, uplink=restarted).server.model - whole).max() > 0


@pytest.mark.parametrize(
    ("algorithm", "uplink", "message"),
    [
        (CFL(), (RobustMean(),), "cfl's server makes more of what clients send"),
        (IFCA(), (RobustMean(),), "ifca's server makes more"),
        (FedAvg(), (RobustMean(),), "set weights = 'uniform' of fedavg"),
        (
            FEDAVG,
            (RobustMean("krum", byzantine=0.45),),
            "krum of 8 vectors in a round cannot stand 4 Byzantine clients, for which it needs 11",
        ),
        (
            FEDAVG,
            (RobustMean("median", bucket=4),),
            "median of 2 vectors in a round cannot stand 2 Byzantine.*lower byzantine or bucket",
        ),
        (FEDAVG, (Clip(), RobustMean()), "applies Clip before RobustMean"),
        (
            FEDAVG,
            (RobustMean(), GaussianNoise(by="client", delta=0.01)),
            "leave out robust-mean or gaussian-noise",
        ),
        (
            L2GD(sgd=PLAIN, p=0.7),
            (RobustMean("norm-bound"),),
            "clients receive none when they answer",
        ),
    ],
)
def test_what_excludes_what_is_told_in_one_line(algorithm, uplink, message):
    with pytest.raises(ValueError, match=message) as refused:
        trained(algorithm, rounds=6, uplink=uplink)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RobustMean("mode"), "rule is 'mode'"),
        (lambda: RobustMean(byzantine=0.5), "byzantine is 0.5"),
        (lambda: RobustMean(bucket=0), "bucket is 0"),
        (lambda: RobustMean(radius=0.0), "radius is 0.0"),
        (lambda: RobustMean(steps=0), "steps is 0"),
        (lambda: Byzantine("white"), "attack is 'white'"),
        (lambda: Byzantine(share=2), "share is 2"),
        (lambda: Byzantine(factor=0), "factor is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_mean_that_follows_nan_is_no_matter_of_the_rate():
    with pytest.raises(
        Diverged, match="the simulated attack: put a robust-mean before byzantine"
    ):
        run(
            FEDAVG,
            classification(CLIENTS),
            softmax_model("float32"),
            rounds=2,
            uplink=Byzantine("nan"),
        )

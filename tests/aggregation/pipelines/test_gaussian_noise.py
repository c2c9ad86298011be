"""GaussianNoise: how much is added, to what, how the norm follows a quantile, and what
is refused.
"""

import math
from dataclasses import replace

import dp_accounting
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp

from conformance.examples import PLAIN, example
from fedtailor.aggregation.accounting import Wireless
from fedtailor.aggregation.accounting.privacy import ORDERS
from fedtailor.aggregation.pipelines import Cast, Clip, GaussianNoise, Quantize
from fedtailor.aggregation.pipelines.gaussian_noise import AdaptiveClipNorm
from fedtailor.algorithms import SCAFFOLD, UCFL, Ditto, FedAvg, Local
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.training import Participation, as_participation
from fedtailor.protocol import SGD, hyperparameters
from fedtailor.testing import classification, softmax_model

FEDAVG = FedAvg(sgd=PLAIN, weights="uniform")
HALF = Participation(0.5, sampling="poisson")
CLIENTS = 6


def begun(algorithm=FEDAVG, *uplink, participation=1.0, clients=CLIENTS, **options):
    return simulate(
        algorithm,
        classification(clients),
        softmax_model("float32"),
        uplink=uplink,
        participation=participation,
        **options,
    )


def moved(training):
    return np.asarray(training.server.model[0] - training.initial(0), float)


def test_who_reports_is_drawn_for_each_client_alone():
    ids = np.arange(1000, dtype=np.uint64)
    drawn = np.stack(
        [
            Participation(0.2, sampling="poisson").sample(ids, 3, round)
            for round in range(40)
        ]
    )
    sums = drawn.sum(axis=1)
    assert abs(sums.mean() - 200) < 5 * (160 / 40) ** 0.5 and 0.5 < sums.var() / 160 < 2
    assert abs((drawn[1:] & drawn[:-1]).mean() - 0.04) < 0.005
    assert (
        HALF.reporters(7) == 3
        and Participation(sampling="poisson").sample(ids, 0, 0).all()
    )


def test_the_server_adds_clipped_changes_and_noise_over_the_number_expected():
    """With other clients and other noise drawn, the mean moves by the sum over a fixed
    number.
    """
    # Batches of all examples, as private runs draw other ones.
    whole = replace(FEDAVG, sgd=SGD(lr=0.1, steps=3, batch_size=64))
    noise = GaussianNoise(multiplier=0.5, norm=0.01, delta=0.1)
    clipped = begun(whole, Clip(0.01))
    clipped.advance()
    for uplink, tolerance in (((noise,), 1e-7), ((noise, Quantize(block=4)), 1e-3)):
        training = begun(whole, *uplink)
        cohort = training.round_cohort(np.ones(CLIENTS, bool))
        drawn = cohort.rng("gaussian noise", among_reporters=True).standard_normal(15)
        training.advance()
        expected = moved(clipped) + 0.5 * 0.01 * drawn / CLIENTS
        error = np.abs(moved(training) - expected).max()
        assert error < tolerance and (error > 1e-7) == (len(uplink) == 2)

    # two of six report where three are expected: the sum over three
    few = begun(
        whole, GaussianNoise(multiplier=1e-9, norm=0.01, delta=0.1), participation=HALF
    )
    alone = [begun(whole, Clip(0.01)) for _ in range(2)]
    reporting = np.array([True, False, False, True, False, False])
    few.advance(reporting)
    for training, client in zip(alone, (0, 3), strict=True):
        training.advance(np.arange(CLIENTS) == client)
    np.testing.assert_allclose(
        moved(few), sum(map(moved, alone)) / 3, rtol=0, atol=1e-7
    )


def test_a_round_in_which_nobody_reports_adds_noise_all_the_same():
    noise = GaussianNoise(multiplier=2.0, norm=0.01, delta=0.1)
    training, plain = (
        begun(FEDAVG, noise, participation=HALF),
        begun(FEDAVG, participation=HALF),
    )
    for each in (training, plain):
        each.advance(np.zeros(CLIENTS, bool))
        assert each.round == 1 and not each.phase.participated.any()
    deviation = 2 * 0.01 / 3
    assert 0.4 * deviation < moved(training).std() < 1.8 * deviation
    np.testing.assert_array_equal(moved(plain), 0)
    plain.advance(np.ones(CLIENTS, bool))
    times = Wireless(rho=1, t_min=1, mean_delay=0).times(plain.ledger.frame(), [1, 2])
    assert 0 <= times[0] < times[1]


def test_a_client_can_add_the_noise_itself():
    """Then each message has it, whoever averages: with five clients the mean has a
    fifth of the variance.
    """
    noise = GaussianNoise(multiplier=3.0, norm=1e-6, delta=0.1, by="client")
    moves = []
    for seed in range(20):
        training = begun(FedAvg(sgd=PLAIN), noise, clients=5, seed=seed)
        training.advance()
        moves.append(moved(training))
        weights = training.population.sizes / training.population.sizes.sum()
    deviation = 3e-6 * np.sqrt(np.square(weights).sum())
    assert 0.85 < np.std(moves) / deviation < 1.15  # 300 numbers: a deviation of 4 %


@hyperparameters
class Rising(FedAvg):
    """Its clients add ten to every entry."""

    def client(self, state, inbox, local):
        return state, {"model": inbox["model"][0] + 10.0}


def test_the_norm_bounds_changes_of_large_models_before_the_noise():
    """Entries of 2^22 are rounded to halves. If the clipped change of 0.26 were rounded
    to a half before the noise, it would be twice as long as the norm.
    """
    noise = GaussianNoise(multiplier=0.05, norm=1.0, delta=0.01, by="client")
    moves = []
    for seed in range(10):
        training = begun(Rising(sgd=PLAIN), noise, seed=seed)
        start = jnp.full_like(training.server.model, 1.5 * 2**22)
        training.server = training.server.replace(model=start)
        answers = training.executor.exchange(next(training.next_round()))
        moves.append(np.asarray(answers.host("model"), float) - 1.5 * 2**22)
    moves = np.stack(moves)
    bound = 1 / np.sqrt(moves.shape[-1])
    assert 0.25 < bound < 0.26  # more than half a step
    # Half of the entries are rounded up and half down, as the noise decides.
    assert 0.9 * bound < moves.mean() < 1.35 * bound


def test_the_norm_follows_the_quantile_of_changes():
    """From far below and far above the norms come to where half of the clients are
    within (multiplier near zero).
    """
    ends = []
    for start in (1e-4, 3.0):
        noise = GaussianNoise(
            multiplier=1e-6, norm=start, delta=0.01, quantile=0.5, norm_rate=1.0
        )
        training = begun(FedAvg(sgd=SGD(lr=0.05), weights="uniform"), noise, clients=20)
        for _ in range(25):
            training.server = training.algorithm.init_server(
                training.initial, training.population
            )
            training.advance()
        ends.append(training.uplink_state[0]["norm"])
        kinds = set(training.ledger.frame()["kind"])
        assert {"clip_norm", "within"} <= kinds
    assert abs(math.log(ends[0] / ends[1])) < 1.0 and 1e-3 < ends[0] < 1


def test_adaptive_clipping_costs_what_the_multiplier_says():
    """Andrew et al. 2021, theorem 1: z^-2 = z_changes^-2 + (2 sigma_count)^-2."""
    adaptive = AdaptiveClipNorm(quantile=0.5, rate=0.2, expected=40)
    changes, count = adaptive.change_multiplier(1.0), adaptive.count_noise
    assert count == 2 and changes > 1
    assert changes**-2 + (2 * count) ** -2 == pytest.approx(1)


@pytest.mark.parametrize(("probability", "rounds", "z"), [(0.5, 3, 1.3), (1.0, 2, 0.8)])
def test_epsilon_is_dp_accountings(probability, rounds, z):
    participation = Participation(probability, sampling="poisson")
    training = begun(
        FEDAVG,
        GaussianNoise(multiplier=z, norm=0.01, delta=1e-4),
        participation=participation,
    )
    for _ in range(rounds):
        training.advance()
    event = dp_accounting.GaussianDpEvent(z)
    event = (
        event
        if probability == 1
        else dp_accounting.PoissonSampledDpEvent(probability, event)
    )
    shown = training.metrics.curve("client_epsilon", "all")
    for accountant, tolerance in (
        (rdp.RdpAccountant(ORDERS), 1e-12),
        (rdp.RdpAccountant(), 0.03),
    ):
        by_round = []
        for _ in range(rounds):
            accountant.compose(event)
            by_round.append(accountant.get_epsilon(1e-4))
        np.testing.assert_array_equal(shown[0], np.arange(rounds) + 1)
        np.testing.assert_allclose(shown[1], by_round, rtol=tolerance)
    assert len(training.metrics.values("client_epsilon", "all")) == CLIENTS


def test_noise_by_clients_is_accounted_for_each_client_alone():
    noise = GaussianNoise(multiplier=4.0, norm=0.01, delta=1e-4, by="client")
    training = begun(FedAvg(sgd=PLAIN), noise, participation=3)
    for _ in range(4):
        training.advance()
    found, reports = (
        training.metrics.values("client_epsilon", "all"),
        training.privacy.reports,
    )
    assert reports.sum() == 12 and len(set(reports.tolist())) > 1
    for epsilon, count in zip(
        found, reports[np.argsort(training.executor.seen.original_index)], strict=True
    ):
        accountant = rdp.RdpAccountant(ORDERS)
        if count:
            accountant.compose(dp_accounting.GaussianDpEvent(4.0), int(count))
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-4) if count else 0)


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path):
    options = {
        "uplink": (GaussianNoise(norm=0.02, multiplier=0.1, delta=0.01, quantile=0.5),),
        "participation": HALF,
        "checkpoint_every": 1,
    }
    clients, model = classification(CLIENTS), softmax_model("float32")
    run(FEDAVG, clients, model, 4, directory=tmp_path / "whole", **options)
    run(FEDAVG, clients, model, 2, directory=tmp_path / "parts", **options)
    run(FEDAVG, clients, model, 4, directory=tmp_path / "parts", resume=True, **options)
    for file in ("metrics.parquet", "ledger.parquet"):
        assert (tmp_path / "whole" / file).read_bytes() == (
            tmp_path / "parts" / file
        ).read_bytes()


NOISE = GaussianNoise(delta=0.01)
BY_CLIENT = GaussianNoise(delta=0.01, by="client")


@pytest.mark.parametrize(
    ("algorithm", "uplink", "options", "message"),
    [
        (UCFL(sgd=PLAIN), (BY_CLIENT,), {}, "ucfl's clients answer a probe"),
        (example("self-fl"), (BY_CLIENT,), {}, r"also send \(intra\)"),
        (example("hypcluster"), (BY_CLIENT,), {}, "also send"),
        (SCAFFOLD(sgd=PLAIN), (BY_CLIENT,), {}, r"also send \(control\)"),
        (
            SCAFFOLD(sgd=PLAIN),
            (NOISE,),
            {},
            "does not cover all that scaffold's server uses",
        ),
        (Local(sgd=PLAIN), (NOISE,), {}, "does not cover all that local's server uses"),
        (
            FedAvg(sgd=PLAIN),
            (NOISE,),
            {},
            "set weights = 'uniform' of fedavg, not 'samples'",
        ),
        (
            Ditto(sgd=PLAIN),
            (NOISE,),
            {"participation": 0.5},
            "use Poisson participation",
        ),
        (Ditto(sgd=PLAIN), (NOISE,), {"downlink": (Cast(),)}, "leave out downlink"),
        (
            FEDAVG,
            (GaussianNoise(delta=0.2),),
            {},
            "below one over the number of clients, 6",
        ),
        (
            FEDAVG,
            (GaussianNoise(delta=0.01, quantile=0.5),),
            {},
            "needs more than 10 clients expected in a round",
        ),
        (FEDAVG, (Quantize(), NOISE), {}, "applies Quantize before GaussianNoise"),
    ],
)
def test_what_noise_does_not_cover_is_refused(algorithm, uplink, options, message):
    with pytest.raises(ValueError, match=message):
        begun(algorithm, *uplink, **options).advance()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiplier": 0}, "multiplier is 0"),
        ({"norm": -1}, "norm is -1"),
        ({"delta": 1}, "delta is 1"),
        ({"by": "nobody"}, "by is 'nobody'"),
        ({"quantile": 1.0}, "quantile is 1.0"),
        ({"quantile": 0.5, "by": "client"}, "adaptive clipping needs a server"),
        ({"norm_rate": 0}, "norm_rate is 0"),
    ],
)
def test_meaningless_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GaussianNoise(**settings)


def test_poisson_participation_takes_a_probability():
    for arguments, message in (
        ({"count": 3, "sampling": "poisson"}, "takes a probability"),
        ({"sampling": "binomial"}, "'binomial'; it must be 'samples', 'poisson'"),
    ):
        with pytest.raises(ValueError, match=message):
            Participation(**arguments)
    assert as_participation(0.25, "poisson") == Participation(0.25, sampling="poisson")
    with pytest.raises(
        ValueError,
        match="participation is 2; of Poisson sampling it must be a probability",
    ):
        as_participation(2, "poisson")

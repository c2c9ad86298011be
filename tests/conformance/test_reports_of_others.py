"""Errors that were reported of other libraries, one small case of each kind: here they
were never made, and are not to be.

The threads are public; their numbers are those of the libraries' repositories. FedYogi's
recursion (Flower PR #885) is in `test_fedopt`, and that optimisers survive a reload (fluke
#16) is a check of every method.
"""

import numpy as np

from conformance.normal import normal
from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    personal,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor.algorithms import SCAFFOLD, Ditto, FedAvg, FedDyn
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
SHARES = (SIZES / SIZES.sum())[:, None]
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS = 0.05, 2
PASSES = SGD(lr=LR, epochs=STEPS, batch_size=64)
"""Two passes over all rows of every client: two steps."""


def after(method, rounds):
    with float64():
        return train(method, quadratics(a, A, SIZES), quadratic_model(2), rounds)


def steps(start, correction=0.0):
    """The models of clients after their steps; F_i(w) = A_i (w - a_i)^2 / 2."""
    w = np.broadcast_to(start, A.shape)
    for _ in range(STEPS):
        w = w - LR * (A * (w - a) + correction)
    return w


def test_models_are_weighted_by_their_own_clients_samples():
    """Not equally, nor by steps, nor by another client's number.

    FedLab #305; NVFlare, notes of 2.9; felisat/clustered-federated-learning #1; fluke
    PR #14; Fed-BioMed #433 and #713.
    """
    theta = np.zeros(2)
    for _ in range(2):
        theta = (SHARES * steps(theta)).sum(axis=0)
    found = after(FedAvg(sgd=PASSES), 2).server.model[0]
    np.testing.assert_allclose(found, theta, **EXACT)


def test_controls_start_at_0_and_count_every_step():
    """PFLlib #152 and #160 (divided by batches, not by batches x epochs); FL-bench #3;
    NIID-Bench #8 and #12 (random controls, divided by those sampled); plato #382 (the
    server added c_i in place of its change); Fed-BioMed #734 (the correction's sign).
    """
    theta, c, own = np.zeros(2), np.zeros(2), np.zeros((4, 2))
    for _ in range(3):
        w = steps(theta, c - own)
        new = own - c + (theta - w) / (STEPS * LR)
        c, own = c + (new - own).mean(axis=0), new
        theta = w.mean(axis=0)
    found = after(SCAFFOLD(sgd=PASSES, weights="uniform"), 3)
    np.testing.assert_allclose(found.server.model[0], theta, **EXACT)
    controls = by_place(found, found.executor.client_states["control"])
    np.testing.assert_allclose(controls, own, **EXACT)


def test_the_pull_of_feddyn_keeps_clients_near_the_global_model():
    """FL-bench #133 and #169: without its term alpha / 2 |w - theta|^2 the loss explodes."""
    best = (A * a).sum(axis=0) / A.sum(axis=0)
    found = after(FedDyn(sgd=SGD(lr=0.2, steps=60, batch_size=64), alpha=1.0), 60)
    np.testing.assert_allclose(found.server.model[0], best, rtol=1e-6)


def test_ditto_trains_the_global_model_from_the_global_and_its_own_from_its_own():
    """FederatedScope PR #271: models were switched at the wrong step."""
    lam, theta, own = 0.5, np.zeros(2), np.zeros((4, 2))
    for _ in range(2):
        w = steps(theta)
        for _ in range(STEPS):
            own = own - LR * (A * (own - a) + lam * (own - theta))
        theta = (SHARES * w).sum(axis=0)
    found = after(Ditto(sgd=PASSES, weights="samples", lam=lam), 2)
    np.testing.assert_allclose(found.server.model[0], theta, **EXACT)
    own_models = found.executor.client_states["model"]
    np.testing.assert_allclose(by_place(found, own_models), own, **EXACT)


def test_clients_hold_the_servers_running_statistics():
    """PFLlib #260 and PR #269, FL-bench #72, FedScale #57, FL4Health PR #39: they were
    left out, or made negative by the server's optimiser.
    """
    with float64():
        found = train(FedAvg(sgd=PASSES), classification(), normal(), 1)
        expected = np.tile(np.asarray(found.server.model[0]), (5, 1))
        np.testing.assert_array_equal(personal(found), expected)


def test_runs_neither_read_nor_move_the_random_state_of_the_process():
    """FLamby #139 and #170: seeds of the whole process."""
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = np.asarray(after(FedAvg(sgd=PASSES), 2).server.model)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.random.seed(2)
    again = np.asarray(after(FedAvg(sgd=PASSES), 2).server.model)
    np.testing.assert_array_equal(again, first)

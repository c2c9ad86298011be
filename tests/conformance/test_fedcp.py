"""FedCP: rounds by plain formulas; what the policy and the distance do; limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import EXACT, float64, served_to, train
from conformance.test_gpfl import features, head
from conformance.two_layers import (
    FULL,
    RATE,
    STEPS,
    TwoLayers,
    clients,
    data_of,
    network,
)
from fedtailor.algorithms import FedCP
from fedtailor.algorithms.fedcp import FeaturePolicy


def divided(policy, context, z):
    """The features of the own head and of the shared one, by loops over pairs."""
    w, b, gain, offset = jnp.split(policy, np.cumsum([50, 10, 10]))
    scores = (z * context) @ w.reshape(5, 10) + b
    mean = scores.mean(axis=1, keepdims=True)
    spread = scores.var(axis=1, keepdims=True)
    scores = jnp.maximum((scores - mean) / jnp.sqrt(spread + 1e-5) * gain + offset, 0)
    pairs = jax.nn.softmax(scores.reshape(len(z), 2, 5), axis=1)
    return z * pairs[:, 0], z * pairs[:, 1]


def context_of(theta):
    total = np.asarray(theta)[25:40].reshape(5, 3).sum(axis=1)
    return total / np.linalg.norm(total)


def outputs(own, shared, policy, context, x):
    mine, general = divided(policy, context, features(own, x))
    return head(own, mine) + head(shared, general)


def discrepancy(z, other):
    def mean(a, b):
        apart = jnp.square(a[:, None] - b[None]).sum(axis=2)
        return sum(jnp.exp(-0.5 * apart / width).mean() for width in (10, 15, 20, 50))

    return mean(z, z) + mean(other, other) - 2 * mean(z, other)


def objective(both, shared, context, x, y, lam):
    own, policy = both
    logs = jax.nn.log_softmax(outputs(own, shared, policy, context, x))
    fit = -logs[jnp.arange(len(y)), y].mean()
    return fit + lam * discrepancy(features(own, x), features(shared, x))


def by_hand(shared, policy, *, lam, sent_head, rounds=3):
    """The shared model and policy, and each client's head in a model."""
    data, shares = data_of(clients())
    heads = [shared] * len(data)
    slope = jax.jit(jax.grad(objective))
    for _ in range(rounds):
        sent, policies = [], []
        for i, (x, y) in enumerate(data):
            own, mine = np.where(TwoLayers.head, heads[i], shared), policy
            context = context_of(own)
            for _ in range(STEPS):
                by_own, by_policy = slope((own, mine), shared, context, x, y, lam)
                own = own - RATE * np.asarray(by_own)
                mine = mine - RATE * np.asarray(by_policy)
            heads[i] = own
            if sent_head == "mean":
                own = np.where(TwoLayers.head, (own + shared) / 2, own)
            sent.append(own)
            policies.append(mine)
        shared, policy = shares @ sent, shares @ policies
    return shared, policy, np.where(TwoLayers.head, heads, shared)


@pytest.mark.parametrize("sent_head", ["mean", "own"])
def test_three_rounds_are_those_of_the_formulas(sent_head):
    with float64():
        method = FedCP(sgd=FULL, lam=2.0, sent_head=sent_head)
        start = train(method, clients(), network(), 0)
        training = train(method, clients(), network(), 3)
        shared, policy, own = by_hand(
            np.array(training.initial(0)),
            np.array(start.server.policy[0]),
            lam=2.0,
            sent_head=sent_head,
        )
        np.testing.assert_allclose(training.server.model[0], shared, **EXACT)
        np.testing.assert_allclose(training.server.policy[0], policy, **EXACT)
        for i, found in enumerate(served_to(training, clients().names)):
            assert isinstance(found, FeaturePolicy)
            np.testing.assert_allclose(found.models, [shared, own[i]], **EXACT)
            x, _ = data_of(clients())[0][i]
            np.testing.assert_allclose(
                found.outputs(training.model)(jnp.asarray(x)),
                outputs(own[i], shared, policy, context_of(own[i]), x),
                **EXACT,
            )


def test_the_distance_keeps_features_near_the_received_ones():
    with float64():
        found = []
        for lam in (0.0, 50.0):
            training = train(FedCP(sgd=FULL, lam=lam), clients(), network(), 1)
            before = np.array(training.initial(0))
            apart = [
                np.abs(features(it.models[0], x) - features(before, x)).mean()
                for it, (x, _) in zip(
                    served_to(training, clients().names),
                    data_of(clients())[0],
                    strict=True,
                )
            ]
            found.append(np.mean(apart))
        assert found[1] < found[0]


def test_a_newcomer_trains_a_head_beside_the_shared_one():
    with float64():
        federation = clients()
        federation.unseen[1] = True
        training = train(FedCP(sgd=FULL), federation, network(), 1)
        x, y = data_of(federation)[0][1]
        shared = np.array(training.server.model[0])
        policy, own = np.array(training.server.policy[0]), shared
        context = context_of(shared)

        def loss(own):
            logs = jax.nn.log_softmax(outputs(own, shared, policy, context, x))
            return -logs[jnp.arange(len(y)), y].mean()

        for _ in range(STEPS):
            slope = np.where(TwoLayers.head, jax.grad(loss)(jnp.asarray(own)), 0)
            own = own - RATE * slope
        np.testing.assert_allclose(
            served_to(training, clients().names)[1].models, [shared, own], **EXACT
        )


def test_wrong_settings_and_models_are_told():
    with pytest.raises(ValueError, match="sent_head is 'all'; it must be 'mean' or"):
        FedCP(sent_head="all")
    with pytest.raises(ValueError, match="lam is -1"):
        FedCP(lam=-1)
    with pytest.raises(ValueError, match="fedcp's coupled steps are plain SGD"):
        FedCP(sgd=FULL.__class__(momentum=0.9))

"""FedDPA: a global adapter trained alone, and a local one beside it."""

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    softmax_model,
    train,
)
from fedtailor.algorithms import FedAvg, FedDPA, FineTune, Local
from fedtailor.engine.runs import run
from fedtailor.models import lora, merged, mlp
from fedtailor.models.parameter_layout import layout_of
from fedtailor.protocol import SGD
from fedtailor.testing import classification as clients

CLIENTS, ROUNDS = 4, 3


def adapted(local_rank=2, **options):
    return lora(mlp(5), rank=2, local_rank=local_rank, **options)


def values(model, theta):
    """Path -> the array of theta, without the prefix of adapters."""
    layout = layout_of(model)
    pieces = np.split(np.asarray(theta), layout.ends[:-1])
    return {
        path: piece.reshape(shape)
        for path, piece, shape in zip(layout.paths, pieces, layout.shapes, strict=True)
    }


def test_the_global_adapter_is_that_of_fedavg_without_local_ones():
    federation = clients(CLIENTS)
    alone = run(FedAvg(sgd=PLAIN), federation, adapted(0), ROUNDS)
    both = run(FedDPA(sgd=PLAIN), federation, adapted(2), ROUNDS)
    part = both.model.part("adapter")
    found = np.asarray(part.take(both.training.server.model))
    # Where both start: the numbers of global adapters do not depend on local ones.
    np.testing.assert_array_equal(found.shape, alone.training.server.model.shape)
    np.testing.assert_allclose(found, alone.training.server.model, rtol=0, atol=1e-5)


def test_what_travels_is_the_global_adapter():
    done = run(FedDPA(sgd=PLAIN), clients(CLIENTS), adapted(), ROUNDS)
    size = done.model.part("adapter").size
    assert done.summary().bytes_up == CLIENTS * ROUNDS * 4 * size
    local = done.model.part("local")
    own = np.stack([each.theta for each in done.personal_models().values()])
    assert (np.ptp(local.take(own), axis=0) > 0).any()
    # B_i has left its start, zero.
    first = values(done.model, own[0])
    assert all(np.abs(first[p]).max() > 0 for p in first if p.endswith("local_b"))


def test_the_prediction_is_the_sum_of_both_with_the_global_one_scaled():
    """W + (1 - share) B A + B_i A_i, from the arrays themselves."""
    share = 0.3
    done = run(FedDPA(sgd=PLAIN, share=share), clients(CLIENTS), adapted(), ROUNDS)
    server = values(done.model, done.training.server.model[0])
    theta = np.asarray(done.personal(done.federation.names[0]).theta)
    own = values(done.model, theta)
    whole, vector = merged(done.model, jnp.asarray(theta))
    found = values(whole, vector)
    for path, base in done.model.frozen.items():
        if not path.endswith("weight"):
            continue
        place = f"adapters.{path.replace('.', '/')}."
        b_a = server[f"{place}lora_b"] @ server[f"{place}lora_a"]
        own_b_a = own[f"{place}local_b"] @ own[f"{place}local_a"]
        change = (1 - share) * b_a + own_b_a
        change = change.T if change.T.shape == base.shape else change
        np.testing.assert_allclose(found[path], base + change, rtol=0, atol=1e-5)


def test_with_nothing_shared_clients_train_alone_and_with_nothing_own_it_is_fedavg():
    """Both closed ends, with a part of a plain model in the place of local adapters."""
    with float64():
        model, data = softmax_model("float64"), classification()
        none = FedDPA(sgd=TRAINED, part="nothing", share=0.0)
        expected = train(FedAvg(sgd=TRAINED), data, model, ROUNDS)
        found = train(none, data, model, ROUNDS)
        np.testing.assert_allclose(found.server.model, expected.server.model, **EXACT)
        everything = FedDPA(sgd=TRAINED, part="everything", share=0.0)
        found = train(everything, data, model, ROUNDS)
        expected = train(Local(sgd=TRAINED), data, model, ROUNDS)
        np.testing.assert_allclose(personal(found), personal(expected), **EXACT)


# FedDPA-F
# --------------------------------------------------------------------------------------

TUNE = SGD(lr=0.05, epochs=3, batch_size=8)


def after(share=0.3):
    return FedDPA(sgd=PLAIN, share=share, schedule="after", tune=TUNE)


def merged_models(done):
    """[m, d] the clients' networks without adapters, in the order of their names."""
    return np.stack(
        [
            merged(done.model, jnp.asarray(own.theta))[1]
            for own in done.personal_models().values()
        ]
    )


def test_after_the_rounds_a_copy_of_the_global_adapter_is_fine_tuned():
    """W + (1 - share) B A + share B_i A_i, where FineTune has trained B_i A_i; the scale
    of adapters is not 1.
    """
    federation, share = clients(CLIENTS), 0.3
    network = adapted(alpha=3.0)
    done = run(after(share), federation, network, ROUNDS)
    one = adapted(0, alpha=3.0)
    common = run(FedAvg(sgd=PLAIN), federation, one, ROUNDS)
    tuned = run(FineTune(sgd=PLAIN, tune=TUNE), federation, one, ROUNDS)
    expected = (1 - share) * merged_models(common) + share * merged_models(tuned)
    assert np.abs(merged_models(tuned) - merged_models(common)).max() > 1e-2
    np.testing.assert_allclose(merged_models(done), expected, rtol=0, atol=1e-5)
    # Only the global adapter travels, as in FedAvg.
    assert done.summary().bytes_up == common.summary().bytes_up
    assert done.summary().bytes_down == common.summary().bytes_down


def test_after_the_rounds_with_share_zero_it_is_fedavg():
    federation = clients(CLIENTS)
    found = run(after(0.0), federation, adapted(), ROUNDS)
    expected = run(FedAvg(sgd=PLAIN), federation, adapted(0), ROUNDS)
    np.testing.assert_allclose(
        merged_models(found), merged_models(expected), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("method", "network", "message"),
    [
        (lambda: FedDPA(share=1.0), None, "share is 1.0; it must be 0 or more"),
        (
            FedDPA,
            lambda: mlp(4),
            "two adapters of each weight, and this model has no second",
        ),
        (
            FedDPA,
            lambda: adapted(0),
            "two adapters of each weight, and this model has no second",
        ),
        (after, lambda: adapted(3), "a local adapter starts from the global one"),
        (after, lambda: adapted(freeze_a=True), "needs its rank; give lora"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(method, network, message):
    with pytest.raises(ValueError, match=message):
        run(method(), clients(CLIENTS), network(), 1)

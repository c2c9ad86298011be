"""Every method trains a network with frozen arrays: their bits never change, and neither
messages nor what clients predict with hold them.
"""

import jax
import numpy as np
import pytest

from conformance.examples import EXAMPLES
from fedtailor.engine.runs import simulate
from fedtailor.models import frozen, mlp
from fedtailor.protocol import drive
from fedtailor.testing import classification, predictors

FROZEN = "layers.1.weight"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_frozen_bits_never_change_and_messages_are_small(name):
    clients = classification(4, groups=np.arange(4) % 2)
    training = simulate(EXAMPLES[name], clients, frozen(mlp(5), FROZEN))
    model = training.model
    arrays = {path: array.tobytes() for path, array in model.frozen.items()}
    assert [*arrays] == [FROZEN]
    sent = []

    class Watched:
        """The executor, with the sizes of all vectors that pass."""

        def exchange(self, exchange):
            for streams in exchange.downlink.streams.values():
                sent.append(np.shape(streams.values))
            answers = training.executor.exchange(exchange)
            sent.extend(np.shape(rows.values) for rows in answers.update.values())
            return answers

    for _ in range(2):
        drive(training.next_round(), Watched())
    # Examples (FedDBE's features, DAPPER's images) are no longer than the inputs.
    numbers = training.algorithm.numbers_per_round(model)
    longest = max(numbers, int(np.prod(model.input_shape)), 64)
    assert all(shape[-1] <= longest for shape in sent if len(shape))
    for predictor in predictors(training):
        assert all(
            np.shape(leaf)[-1] <= longest
            for leaf in jax.tree.leaves(predictor)
            if np.ndim(leaf)
        )
    after = {path: array.tobytes() for path, array in model.frozen.items()}
    assert after == arrays
    (placed,) = training.executor.devices.frozen(model)
    assert np.asarray(placed).tobytes() == arrays[FROZEN]

"""The problems of `fedtailor.testing`, where these tests find them."""

import jax
import jax.numpy as jnp
import numpy as np

from fedtailor.engine.training.personal import personal_models
from fedtailor.protocol import drive
from fedtailor.testing.problems import *  # noqa: F403
from fedtailor.testing.problems import EXACT, ROUNDED  # noqa: F401


def served_to(training, names):
    """What each client predicts with, by the order of `names`: models, or models with
    more.
    """
    found = {}
    for table in (training.executor.seen, training.executor.unseen):
        served = personal_models(training, table, np.arange(len(table)))
        found |= drive(served, training.executor)
    return [jax.tree.map(jnp.asarray, found[name]) for name in names]

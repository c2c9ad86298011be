"""Personal models: what clients take home, and serving a client that arrives later."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor.client.losses import outputs
from fedtailor.client.pool import Pool, model_input
from fedtailor.models import Model
from fedtailor.protocol import Clients, Exchanges, Mixture, NearestNeighbors, Predictor, on_host, require
from fedtailor.training.training import Service, Training


@dataclass(frozen=True)
class PersonalModel:
    """One client's model after training, self-contained: inputs are as in the federation (it normalises them).

    Attributes:
        name: the client.
        predictor: a model vector [d], a `Mixture` of models, or `NearestNeighbors`.
        model: maps the vector to a network.
        shift, scale: the normalisation of the federation's inputs.
    """

    name: str
    predictor: Predictor
    model: Model
    shift: Any = 0.0
    scale: Any = 1.0

    @property
    def theta(self) -> NDArray[Any]:
        """The model vector [d].

        Raises:
            ValueError: the client predicts with more than one model.
        """
        require(
            not isinstance(self.predictor, NearestNeighbors),
            f"client {self.name!r} predicts with a model and its own examples, which are not exported; see .predictor",
        )
        require(
            not isinstance(self.predictor, Mixture), f"client {self.name!r} has a mixture of models; see .predictor"
        )
        return np.asarray(self.predictor)

    def outputs(self, x: ArrayLike) -> NDArray[Any]:
        """Logits [n, classes] (of a mixture: log-probabilities), or the predicted targets, for inputs x [n, ...].

        Raises:
            ValueError: x has another shape than the federation's inputs.
        """
        x = np.asarray(x)
        require(
            x.shape[1:] == self.model.input_shape,
            f"inputs have shape {x.shape}; expected [n, {', '.join(map(str, self.model.input_shape))}]",
        )
        kind = self.model.dtype
        pool = Pool(x, x, x, np.asarray(self.shift, kind), np.asarray(self.scale, kind), normalize=True)
        return np.asarray(_outputs(self.model, self.predictor, pool))

    def probabilities(self, x: ArrayLike) -> NDArray[Any]:
        """Class probabilities [n, classes] for inputs x [n, ...]."""
        require(self.model.classification, "this model does not predict classes; use outputs(x)")
        return np.asarray(jax.nn.softmax(self.outputs(x), axis=-1))

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The most probable class [n] for inputs x [n, ...] (without classes: the predicted targets)."""
        out = self.outputs(x)
        return out.argmax(axis=-1) if self.model.classification else out


@partial(jax.jit, static_argnums=0)
def _outputs(model: Model, predictor: Predictor, pool: Pool) -> Array:
    return outputs(model, predictor)(model_input(pool, jnp.asarray(pool.x)))


def personal_models(training: Training, clients: NDArray[np.int64], *, unseen: bool) -> Exchanges[dict[str, Predictor]]:
    """What clients predict with, by name, in the present state of a training.

    Args:
        clients: rows, ascending, in the executor's table of seen clients, or of `unseen` ones.
    """
    table = training.executor.unseen if unseen else training.executor.seen
    services = yield from training.services(table, clients)
    return (yield from _predictors(training, services))


def guest_model(training: Training, guests: Clients) -> Exchanges[dict[str, Predictor]]:
    """What clients predict with that no executor of the training knows; whoever answers for them drives this."""
    service = yield from training.service(guests, np.arange(len(guests)), seen=False)
    return (yield from _predictors(training, [service]))


def _predictors(training: Training, services: Sequence[Service]) -> Exchanges[dict[str, Predictor]]:
    """What the clients of services predict with, by name."""
    predictors = {}
    for service in services:
        answers = yield from training.run_personal("personal", service)
        stacked, cohort = on_host(answers.output), service.cohort
        for number, row in enumerate(cohort.rows):
            predictors[cohort.clients.names[row]] = jax.tree.map(lambda leaf, number=number: leaf[number], stacked)
    return predictors

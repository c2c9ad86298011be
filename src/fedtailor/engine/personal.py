"""Personal models: what clients take home, and serving a client that arrives later."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor.engine.data import Pool, model_input
from fedtailor.engine.losses import outputs
from fedtailor.engine.mapper import Mapper
from fedtailor.engine.training import Training
from fedtailor.federation import Federation, Ragged
from fedtailor.models import Model
from fedtailor.protocol import Mixture, Predictor, require


@dataclass(frozen=True)
class PersonalModel:
    """One client's model after training, self-contained: inputs are as in the federation (it normalises them).

    Attributes:
        name: the client.
        predictor: a model vector [d], or a `Mixture` of models.
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
            ValueError: the client predicts with a mixture of models.
        """
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


def personal_models(training: Training, clients: Sequence[int]) -> dict[str, PersonalModel]:
    """The personal models of clients, by name, from the present state of a training."""
    federation, found = training.federation, {}
    chosen = np.asarray(clients, np.int64)
    for part in (chosen[~training.stranger[chosen]], chosen[training.stranger[chosen]]):
        if len(part):
            service = training.serve(part)
            stacked = jax.device_get(training.ask("personal", service).values["predictor"])
            for row, place in enumerate(service.places):
                name = federation.names[place]
                predictor = jax.tree.map(lambda leaf, row=row: leaf[row], stacked)
                found[name] = PersonalModel(name, predictor, training.model, federation.shift, federation.scale)
    return found


def newcomer(training: Training, x: NDArray[Any], y: NDArray[Any], name: str, group: int | None) -> PersonalModel:
    """The personal model of a client that was not in the federation, from its own examples."""
    federation = training.federation
    require(name not in federation.names, f"client {name!r} is already in the federation; use personal({name!r})")
    require(len(x) == len(y) > 0, f"{len(x)} inputs and {len(y)} targets; both must be of the same length, at least 1")
    require(
        x.shape[1:] == federation.input_shape, f"inputs have shape {x.shape[1:]}, expected {federation.input_shape}"
    )
    guest = Federation(
        x=x.astype(federation.x.dtype),
        y=y.astype(federation.y.dtype),
        train=Ragged.of([np.arange(len(x))]),
        val=Ragged.empty(1),
        test=Ragged.empty(1),
        names=(name,),
        groups=None if group is None else np.array([group]),
        classes=federation.classes,
        shift=federation.shift,
        scale=federation.scale,
        name=federation.name,
    )
    host = copy.copy(training)  # the same server and method, facing the guest's data
    host.federation, host.ids, host.stranger = guest, guest.ids, np.array([True])
    host.mapper = Mapper(guest, training.model, training.seed, replace(training.settings, devices=1))
    return personal_models(host, [0])[name]

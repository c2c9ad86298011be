"""`PersonalModel`: what one client takes home after training, by itself on a disk or in
memory.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor.client.losses import outputs
from fedtailor.client.pool import Normalization
from fedtailor.models import Model
from fedtailor.protocol import Mixture, NearestNeighbors, Predictor, require
from fedtailor.tables import Preprocessing


@dataclass(frozen=True)
class PersonalModel:
    """One client's model after training, self-contained: inputs are as in the
    federation (it normalises them).

    Attributes:
        name: the client.
        predictor: a model vector [d], a `Mixture` of models, or `NearestNeighbors`.
        model: maps the vector to a network.
        shift, scale: the normalisation of the federation's inputs.
        preprocessing: of a federation that was read from a table: how raw rows become
            inputs (`predict_rows`).
    """

    name: str
    predictor: Predictor
    model: Model
    shift: Any = 0.0
    scale: Any = 1.0
    preprocessing: Preprocessing | None = None

    @property
    def theta(self) -> NDArray[Any]:
        """The model vector [d].

        Raises:
            ValueError: the client predicts with more than one model.
        """
        require(
            not isinstance(self.predictor, NearestNeighbors),
            f"client {self.name!r} predicts with a model and its own examples, which"
            " are not exported; see .predictor",
        )
        require(
            not isinstance(self.predictor, Mixture),
            f"client {self.name!r} has a mixture of models; see .predictor",
        )
        return np.asarray(self.predictor)

    # predictions
    # ----------------------------------------------------------------------------------

    def outputs(self, x: ArrayLike) -> NDArray[Any]:
        """Logits [n, classes] (of a mixture: log-probabilities), or the predicted
        targets, for inputs x [n, ...].

        Raises:
            ValueError: x has another shape than the federation's inputs, or holds NaN
                or infinite numbers.
        """
        x = np.asarray(x)
        require(
            x.dtype.kind in "fiub",
            f"inputs are {x.dtype}; models take numbers (predict_rows takes rows of a"
            " table)",
        )
        require(
            x.shape[1:] == self.model.input_shape,
            f"inputs have shape {x.shape}; expected [n,"
            f" {', '.join(map(str, self.model.input_shape))}]",
        )
        self._require_finite(x)
        normalization = Normalization.of(self.shift, self.scale, self.model.dtype)
        with jax.disable_jit(self.model.in_python):
            return np.asarray(_outputs(self.model, self.predictor, normalization, x))

    def probabilities(self, x: ArrayLike) -> NDArray[Any]:
        """Class probabilities [n, classes] for inputs x [n, ...]."""
        require(
            self.model.classification,
            "this model does not predict classes; use outputs(x)",
        )
        return self.probabilities_of(self.outputs(x))

    def probabilities_of(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Class probabilities [n, classes] of what `outputs` gave."""
        return np.asarray(jax.nn.softmax(outputs, axis=-1))

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The most probable class [n] for inputs x [n, ...] (without classes: the
        predicted targets).
        """
        out = self.outputs(x)
        return out.argmax(axis=-1) if self.model.classification else out

    def predict_rows(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> NDArray[Any]:
        """What the model makes of raw rows, by the names of their columns: labels [n],
        or targets in their own unit.

        Args:
            rows: a polars or pandas frame, one row as a dict, or a list of dicts.
            missing: see `fedtailor.tables.Preprocessing.transform`.
            unknown: likewise.

        Raises:
            ValueError: the model was not trained on a table, or all that is wrong with
                the rows, by column.
        """
        preprocessing = self.preprocessing
        if preprocessing is None:
            raise ValueError(
                f"client {self.name!r} was not trained on a table: its model takes"
                " arrays; use predict(x)"
            )
        outputs = self.predict(
            preprocessing.transform(rows, missing=missing, unknown=unknown)
        )
        return preprocessing.decode(
            outputs if self.model.classification else outputs.reshape(len(outputs))
        )

    def _require_finite(self, x: NDArray[Any]) -> None:
        """Refuse inputs of which no model can say anything.

        Raises:
            ValueError: with the first place that is NaN or infinite in the model's
                precision.
        """
        if x.dtype.kind != "f":
            return
        with np.errstate(over="ignore"):
            finite = np.isfinite(x.astype(self.model.dtype))
        if finite.all():
            return
        place = tuple(int(number) for number in np.argwhere(~finite)[0])
        inputs = () if self.preprocessing is None else self.preprocessing.inputs
        where = f"column {place[1]}" if len(place) == 2 else f"place {list(place[1:])}"
        named = (
            f" ({inputs[place[1]]!r})"
            if len(place) == 2 and place[1] < len(inputs)
            else ""
        )
        raise ValueError(
            f"the input is {x[place]} in row {place[0]}, {where}{named}, counted from"
            " 0; fill such places in as they were in training, or leave these rows out"
        )

    # on a disk
    # ----------------------------------------------------------------------------------

    def save(self, directory: Path | str) -> Path:
        """Write this model into a new directory (`PersonalModel.load` reads it);
        returns it.

        Raises:
            ValueError: the directory holds other files or cannot be written.
        """
        from fedtailor.storage.export import (
            export_models,
        )  # which reads and writes personal models

        return export_models([self], directory)

    @classmethod
    def load(cls, directory: Path | str, model: Model | None = None) -> "PersonalModel":
        """Read what `save` wrote.

        Args:
            directory: where it is.
            model: needed where the network is not one of `fedtailor.models`.

        Raises:
            ValueError: the directory holds no model or several ones, it is damaged, or
                it needs `model`.
        """
        from fedtailor.storage.export import load_models

        models = load_models(directory, model)
        require(
            len(models) == 1,
            f"{directory} holds the models of {len(models)} clients; use"
            f" load_models({str(directory)!r})",
        )
        return next(iter(models.values()))


@partial(jax.jit, static_argnums=0)
def _outputs(
    model: Model, predictor: Predictor, normalization: Normalization, x: ArrayLike
) -> Array:
    predictor = jax.tree.map(jnp.asarray, predictor)
    return outputs(model, predictor)(normalization(jnp.asarray(x)))

"""`PersonalModel`: the model of one client after training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.data.tables import Preprocessing
from fedtailor.engine.client.losses import outputs
from fedtailor.engine.client.pool import Normalization
from fedtailor.models import Architecture, Model
from fedtailor.models.frozen_arrays import frozen_inputs, placed
from fedtailor.models.frozen_network import merged
from fedtailor.protocol import CombinedPredictor, Predictor


@dataclass(frozen=True)
class PersonalModel:
    """The model of one client after training, with all that prediction needs.

    Inputs are as in the federation. The model normalizes them.

    Attributes:
        name: the client's name.
        predictor: a model vector [d], or models with further arrays, such as a
            `Mixture`.
        model: the network, which takes the model vector as its parameters.
        shift, scale: the network's input is (x - shift) * scale.
        preprocessing: converts raw rows of a table to inputs, for `predict_rows`; None
            if the federation was not read from a table.

    Example:
        >>> own = run.personal(federation.names[3])
        >>> own.outputs(federation.client(3).test.x).shape  # 18 rows, a number for each class
        (18, 10)
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
        if isinstance(self.predictor, CombinedPredictor):
            raise ValueError(
                f"client {self.name!r} predicts with a {self.predictor.kind}, not with one"
                " model alone; see .predictor"
            )
        return np.asarray(self.predictor)

    # predictions
    # ----------------------------------------------------------------------------------

    def outputs(self, x: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[Any]:
        """Logits [n, classes], or the predicted targets, for inputs x [n, ...].

        A mixture gives log-probabilities instead of logits. Several inputs of an example
        are a mapping of names to arrays.

        Raises:
            ValueError: x does not have the shape of the federation's inputs, or
                contains NaN or infinite numbers.
        """
        inputs = self.model.architecture.inputs
        if isinstance(x, Mapping):
            require(
                inputs is not None,
                "the network takes one input, an array [n, ...], and not several by name;"
                " pack them as the federation did: federation.inputs.pack(x)",
            )
            assert inputs is not None
            x = inputs.pack(x)
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
        normalization = Normalization.of(
            self.shift, self.scale, self.model.precision.sums
        )
        found = _outputs(
            self.model, self.predictor, normalization, x, frozen_inputs(self.model)
        )
        return np.asarray(found)

    def probabilities(self, x: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[Any]:
        """Class probabilities [n, classes] for inputs x [n, ...]."""
        return self.model.task.probabilities(self.outputs(x))

    def predict(self, x: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[Any]:
        """The most probable class, or the predicted target, for inputs x [n, ...]."""
        return self.model.task.predict(self.outputs(x))

    def predict_rows(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> NDArray[Any]:
        """Predict from raw rows of a table, whose columns are found by their names.

        Args:
            rows: a polars or pandas frame, one row as a dict, or a list of dicts.
            missing: see `fedtailor.data.tables.Preprocessing.transform`.
            unknown: see `fedtailor.data.tables.Preprocessing.transform`.

        Returns:
            Labels [n], or targets [n] in their original unit.

        Raises:
            ValueError: the model was not trained on a table, or the rows cannot be
                converted. The message lists all problems by column.
        """
        preprocessing = self.preprocessing
        if preprocessing is None:
            raise ValueError(
                f"client {self.name!r} was not trained on a table: its model takes"
                " arrays; use predict(x)"
            )
        predictions = self.predict(
            preprocessing.transform(rows, missing=missing, unknown=unknown)
        )
        return preprocessing.decode(predictions.reshape(len(predictions)))

    def _require_finite(self, x: NDArray[Any]) -> None:
        """Require inputs that are finite in the model's precision.

        Raises:
            ValueError: an entry is NaN or infinite. The message names the first one.
        """
        if x.dtype.kind != "f":
            return
        with np.errstate(over="ignore"):
            finite = np.isfinite(x.astype(self.model.precision.sums))
        if finite.all():
            return
        index = tuple(int(number) for number in np.argwhere(~finite)[0])
        names = () if self.preprocessing is None else self.preprocessing.inputs
        where = f"place {list(index[1:])}"
        if len(index) == 2:
            where = f"column {index[1]}"
            if index[1] < len(names):
                where += f" ({names[index[1]]!r})"
        raise ValueError(
            f"the input is {x[index]} in row {index[0]}, {where}, counted from 0; fill"
            " such places in as they were in training, or leave these rows out"
        )

    def merged(self) -> "PersonalModel":
        """This model as one of the whole network, with frozen arrays and adapters in its
        vector; the model itself if it has none.

        Raises:
            ValueError: the client predicts with more than one model.
        """
        if self.model.frozen is None:
            return self
        model, theta = merged(self.model, self.theta)
        return replace(self, model=model, predictor=theta)

    # files
    # ----------------------------------------------------------------------------------

    def save(self, directory: Path | str) -> Path:
        """Write this model to a new or empty directory, and return the directory.

        Raises:
            ValueError: the directory is not empty or cannot be written.
        """
        from fedtailor.engine.storage.export import (
            export_models,  # avoids an import cycle
        )

        return export_models([self], directory)

    @classmethod
    def load(
        cls, directory: Path | str, model: Model | Architecture | None = None
    ) -> "PersonalModel":
        """Read a model that `save` wrote.

        Args:
            directory: the directory of the model.
            model: the model, or its network, required if that is not one of
                `fedtailor.models`.

        Raises:
            ValueError: the directory contains no model or several models, the files are
                damaged, or `model` is required.
        """
        from fedtailor.engine.storage.export import (
            load_models,  # avoids an import cycle
        )

        models = load_models(directory, model)
        require(
            len(models) == 1,
            f"{directory} holds the models of {len(models)} clients; use"
            f" load_models({str(directory)!r})",
        )
        return next(iter(models.values()))


@partial(jax.jit, static_argnums=0)
def _outputs(
    model: Model,
    predictor: Predictor,
    normalization: Normalization,
    x: ArrayLike,
    frozen: tuple[Array, ...],
) -> Array:
    predictor = jax.tree.map(jnp.asarray, predictor)
    with placed(model.frozen, frozen):
        return outputs(model, predictor)(normalization(jnp.asarray(x)))

"""Classes: one label for each example."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.models.tasks.task import (
    Decode,
    LossFunction,
    Task,
    one_for_each,
    register,
)


@dataclass(frozen=True)
class Classification(Task):
    """A loss over class scores: outputs [b, classes] whose softmax is the prediction,
    targets [b] class numbers.

    Attributes:
        function: (outputs [b, classes], labels [b]) -> [b].

    Example:
        >>> model = ft.models.logistic().bind((4,), 3)
        >>> isinstance(model.loss, ft.models.Classification)
        True
    """

    function: LossFunction

    name: ClassVar[str] = "classification"
    predicts_classes: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    def __call__(
        self, outputs: Float[Array, "b classes"], y: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        return one_for_each(self.function(outputs, y), len(outputs))

    def outputs(self, classes: int | None, target_shape: tuple[int, ...]) -> int:
        assert classes is not None, "a classification has classes"
        return classes

    def check_outputs(
        self, shape: tuple[int, ...], examples: int, outputs: int
    ) -> None:
        require(
            tuple(shape) == (examples, outputs),
            f"the network gives {tuple(shape[1:])} outputs for one example, and the"
            f" data have {outputs} classes; make its last layer as wide as"
            " there are classes",
        )

    def main_metric(self, has_inputs: bool) -> str:
        # Without inputs all examples are predicted to be of the same class, and accuracy
        # is not meaningful.
        return "accuracy" if has_inputs else "loss"

    def row_scores(
        self, outputs: Float[Array, "b classes"], y: Shaped[Array, " b"]
    ) -> dict[str, Shaped[Array, " b"]]:
        """`correct` [b] bool, `prediction` [b] int32, the predicted class, and
        `confidence` [b] and `log_odds` [b] float32, its probability p and log(p / (1 - p)).
        Probabilities near 1 tie in single precision, which log-odds do not.
        """
        confidence = jnp.exp(jax.nn.log_softmax(outputs, axis=-1).max(axis=-1))
        # The largest score less the log-sum of the others.
        is_predicted = jnp.arange(outputs.shape[-1]) == jnp.argmax(
            outputs, axis=-1, keepdims=True
        )
        others = jax.nn.logsumexp(jnp.where(is_predicted, -jnp.inf, outputs), axis=-1)
        log_odds = outputs.max(axis=-1) - others
        return {
            "correct": jnp.argmax(outputs, axis=-1) == y,
            "prediction": jnp.argmax(outputs, axis=-1).astype(jnp.int32),
            "confidence": confidence.astype(jnp.float32),
            "log_odds": log_odds.astype(jnp.float32),
        }

    def baseline(
        self,
        y_train: Shaped[np.ndarray, " n"],
        y_test: Shaped[np.ndarray, " t"],
        outputs: int,
    ) -> dict[str, float]:
        values = classification_baseline(y_train, y_test, outputs)
        # The metric "loss" is the loss that the model is trained with. The baseline has
        # a value for it only if that is the log loss.
        if self == cross_entropy:
            values["loss"] = values["log_loss"]
        return values

    def describe(self, outputs: int) -> str:
        return f"a classification of {outputs} classes"

    def predict(self, outputs: NDArray[Any]) -> NDArray[Any]:
        return outputs.argmax(axis=-1)

    def probabilities(self, outputs: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(jax.nn.softmax(outputs, axis=-1))

    def prediction_columns(
        self, outputs: NDArray[Any], decode: Decode, *, probabilities: bool
    ) -> dict[str, Any]:
        classes, shares = self.predict(outputs), self.probabilities(outputs)
        columns: dict[str, Any] = {
            "prediction": decode(classes),
            "probability": shares[np.arange(len(classes)), classes],
        }
        if probabilities:
            for index, label in enumerate(decode(np.arange(outputs.shape[-1]))):
                columns[f"p({label})"] = shares[:, index]
        return columns


def _cross_entropy(
    outputs: Float[Array, "*many classes"], y: Int[Array, "*many"]
) -> Float[Array, "*many"]:
    # A comparison instead of indexing, whose derivative would be a scatter.
    is_label = y[..., None] == jnp.arange(outputs.shape[-1], dtype=y.dtype)
    return jax.nn.logsumexp(outputs, axis=-1) - jnp.where(is_label, outputs, 0).sum(-1)


cross_entropy = register("cross_entropy", Classification(_cross_entropy))
"""-log softmax(outputs)[y], in nats. For a density model it is the negative
log-likelihood of the symbol y.
"""


def class_shares(
    y_train: Shaped[np.ndarray, " n"], classes: int
) -> Float[np.ndarray, " classes"]:
    """The probabilities that the baseline predicts for every input: (n_k + 1) / (n +
    classes) for a class with n_k of n training samples, so that none is 0.

    Raises:
        ValueError: a label is not a class.
    """
    labels = _labels(y_train, classes)
    return (np.bincount(labels, minlength=classes) + 1.0) / (len(labels) + classes)


def classification_baseline(
    y_train: Shaped[np.ndarray, " n"], y_test: Shaped[np.ndarray, " t"], classes: int
) -> dict[str, float]:
    """The metrics of a classifier that knows only one client's training labels.

    It predicts the majority class (the first of equally frequent ones) with the
    probabilities of `class_shares`.

    Returns:
        name -> `Metric.result` of such a classifier. All are NaN without test samples.
        `roc_auc` is 0.5, or NaN if all test samples are of one class.

    Raises:
        ValueError: a label is not a class.
    """
    shares = class_shares(y_train, classes)
    labels = _labels(y_test, classes)
    names = (
        "accuracy",
        "balanced_accuracy",
        "roc_auc",
        "f1_macro",
        "log_loss",
        "brier",
        "calibration_error",
        "confusion",
        "perplexity",
    )
    if not len(labels):
        return dict.fromkeys(names, float("nan"))
    # Since every input gets the same prediction, all metrics are functions of the
    # frequencies of the classes among the test samples.
    majority = int(shares.argmax())
    frequencies = np.bincount(labels, minlength=classes) / len(labels)
    num_present = int((frequencies > 0).sum())
    accuracy = frequencies[majority]
    log_loss = float(-frequencies @ np.log(shares))
    # E |p - e_y|^2 = |p|^2 - 2 E p_y + 1
    brier = float(shares @ shares - 2 * frequencies @ shares + 1)
    # Recall is 1 for the majority class, if any test sample has it, and 0 for all other
    # classes. F1 of the majority class is 2 accuracy / (accuracy + 1); the mean of F1
    # includes this class even if no test sample has it.
    f1 = 2 * accuracy / (1 + accuracy)
    values = (
        accuracy,
        (accuracy > 0) / num_present,
        0.5 if num_present > 1 else float("nan"),
        f1 / (num_present + (accuracy == 0)),
        log_loss,
        brier / 2 if classes == 2 else brier,
        abs(accuracy - shares[majority]),
        1 - accuracy,
        np.exp(log_loss),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _labels(y: Shaped[np.ndarray, " n"], classes: int) -> Int[np.ndarray, " n"]:
    """Labels as integers, each of them a class.

    Raises:
        ValueError: a label is not a class.
    """
    labels = np.asarray(y).astype(np.int64)
    require(
        bool(((labels >= 0) & (labels < classes)).all()),
        f"labels lie in {labels.min(initial=0)}..{labels.max(initial=0)}; expected"
        f" 0..{classes - 1}",
    )
    return labels

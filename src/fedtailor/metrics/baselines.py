"""A baseline that learns nothing from the inputs: each client's majority class, or the
mean of its targets.

Every table of personal models needs this row: where classes are unbalanced, a high
accuracy may be no more than this.
"""

import numpy as np
from jaxtyping import Float, Int, Shaped

from fedtailor.protocol import require

CLASSIFICATION_TITLE = "majority class"
REGRESSION_TITLE = "mean of the client's targets"


def class_shares(
    y_train: Shaped[np.ndarray, " n"], classes: int
) -> Float[np.ndarray, " classes"]:
    """What the baseline predicts for every input: (n_k + 1) / (n + classes), so that no
    class gets probability 0.

    Raises:
        ValueError: a label is no class.
    """
    labels = _labels(y_train, classes)
    return (np.bincount(labels, minlength=classes) + 1.0) / (len(labels) + classes)


def classification_baseline(
    y_train: Shaped[np.ndarray, " n"], y_test: Shaped[np.ndarray, " t"], classes: int
) -> dict[str, float]:
    """Metrics, by name, of a classifier that knows nothing but one client's training
    labels.

    It predicts the majority class (the first of equally frequent ones) with the
    probabilities of `class_shares`.

    Returns:
        What `Metric.result` gives for such a model, all of them NaN without test
        samples. `roc_auc` is 0.5, or NaN where all test samples are of one class.

    Raises:
        ValueError: a label is no class.
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
    tested = np.bincount(labels, minlength=classes) / len(labels)
    present = int((tested > 0).sum())
    hits = tested[majority]
    log_loss = float(-tested @ np.log(shares))
    # E |p - e_y|^2 = |p|^2 - 2 E p_y + 1
    squares = float(shares @ shares - 2 * tested @ shares + 1)
    # Recall is 1 for the majority class, if any test sample has it, and 0 for all other
    # classes. F1 of the majority class is 2 hits / (hits + 1); the mean of F1 includes
    # this class even if no test sample has it.
    f1 = 2 * hits / (1 + hits)
    values = (
        hits,
        (hits > 0) / present,
        0.5 if present > 1 else float("nan"),
        f1 / (present + (hits == 0)),
        log_loss,
        squares / 2 if classes == 2 else squares,
        abs(hits - shares[majority]),
        1 - hits,
        np.exp(log_loss),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def regression_baseline(
    y_train: Shaped[np.ndarray, "n ..."], y_test: Shaped[np.ndarray, "t ..."]
) -> dict[str, float]:
    """Metrics, by name, of a regression that predicts the mean of one client's training
    targets for every input.

    Returns:
        What `Metric.result` gives for such a model; `r2` is 0 or less. `loss` is that
        of `squared_error`. NaN without training or test samples, and `r2` where a test
        target is constant.
    """
    if not len(y_train) or not len(y_test):
        return dict.fromkeys(("rmse", "mae", "r2", "loss"), float("nan"))
    targets = np.asarray(y_test, np.float64).reshape(len(y_test), -1)
    of_training = np.asarray(y_train, np.float64).reshape(len(y_train), -1)
    errors = targets - of_training.mean(axis=0)
    # of each target
    squares = np.square(errors).mean(axis=0)
    spread = targets.var(axis=0)
    varies = bool((spread > 0).all())
    return {
        "rmse": float(np.sqrt(squares).mean()),
        "mae": float(np.abs(errors).mean()),
        "r2": float((1 - squares / spread).mean()) if varies else float("nan"),
        "loss": float(squares.sum()),
    }


def _labels(y: Shaped[np.ndarray, " n"], classes: int) -> Int[np.ndarray, " n"]:
    """Labels as integers, each of them a class.

    Raises:
        ValueError: a label is no class.
    """
    labels = np.asarray(y).astype(np.int64)
    require(
        bool(((labels >= 0) & (labels < classes)).all()),
        f"labels lie in {labels.min(initial=0)}..{labels.max(initial=0)}; expected"
        f" 0..{classes - 1}",
    )
    return labels

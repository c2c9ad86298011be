"""A baseline that learns nothing from the inputs: each client's majority class, or the
mean of its targets.

Every table of personal models needs this row: where classes are unbalanced, a high
accuracy may be no more than this.
"""

import numpy as np
from jaxtyping import Float, Int, Shaped

from fedtailor.protocol import require


def class_shares(
    y_train: Shaped[np.ndarray, " n"], classes: int
) -> Float[np.ndarray, " classes"]:
    """The probabilities that the baseline predicts for every input: (n_k + 1) / (n +
    classes) for a class with n_k of n training samples, so that none is 0.

    Raises:
        ValueError: a label is no class.
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


def regression_baseline(
    y_train: Shaped[np.ndarray, "n ..."], y_test: Shaped[np.ndarray, "t ..."]
) -> dict[str, float]:
    """The metrics of a regression that predicts the mean of one client's training targets
    for every input.

    Returns:
        name -> `Metric.result` of such a model, where `loss` is `squared_error`. All are
        NaN without training or test samples. `r2` is 0 or less, or NaN if a test target
        is constant.
    """
    if not len(y_train) or not len(y_test):
        return dict.fromkeys(("rmse", "mae", "r2", "loss"), float("nan"))
    targets = np.asarray(y_test, np.float64).reshape(len(y_test), -1)
    train_targets = np.asarray(y_train, np.float64).reshape(len(y_train), -1)
    errors = targets - train_targets.mean(axis=0)
    mean_squared_errors = np.square(errors).mean(axis=0)
    variances = targets.var(axis=0)
    has_variance = bool((variances > 0).all())
    return {
        "rmse": float(np.sqrt(mean_squared_errors).mean()),
        "mae": float(np.abs(errors).mean()),
        "r2": float((1 - mean_squared_errors / variances).mean())
        if has_variance
        else float("nan"),
        "loss": float(mean_squared_errors.sum()),
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

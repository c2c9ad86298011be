"""The proximal term pull/2 |w - anchor|^2, which keeps a model w near another one."""

from jaxtyping import Array, Float, ScalarLike

from fedtailor._base.choice import require
from fedtailor.protocol import SGD, is_off


def proximal_term(
    pull: ScalarLike, anchor: Float[Array, " d"]
) -> tuple[ScalarLike, Float[Array, " d"]] | None:
    """The argument `proximal` of `local.sgd`, which adds the gradient of the term.

    Args:
        pull: the weight of the term. A constant 0 leaves the term out of the compiled
            program.
        anchor: the model that the trained one stays near.
    """
    return None if is_off(pull) else (pull, anchor)


def require_stable(name: str, pull: float, sgd: SGD) -> None:
    """Require 0 <= pull and lr * pull < 2, for a proximal term pull/2 |w - anchor|^2.

    Args:
        name: the hyper-parameter that the message names.
        pull: the weight of the term.
        sgd: the training that it is added to; only plain SGD has the upper bound.

    Raises:
        ValueError: the weight is negative, or SGD with it diverges.
    """
    require(pull >= 0, f"{name} is {pull}; it must be 0 or more")
    # A plain step multiplies the distance to the anchor by 1 - lr * pull, which must
    # stay above -1.
    require(
        sgd.optimizer is not None or sgd.lr * pull < 2,
        f"the learning rate {sgd.lr} times {name} {pull} is {sgd.lr * pull:g}; from 2"
        " on the iterates diverge: lower one of them",
    )

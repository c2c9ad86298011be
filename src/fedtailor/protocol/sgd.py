"""`SGD`: the settings of local training."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import ScalarLike

from fedtailor.protocol.hyperparameters import (
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_hyperparameters,
    is_off,
    require,
)


@hyperparameters
class SGD:
    """Mini-batch SGD on one client. The optimiser's state is reset in every round.

    One step on a batch b:  g = grad F(w; b) + weight_decay * w + drift(w);  v = momentum * v + g;  w = w - lr * v.
    With `clip`:  g = clipped(grad F(w; b) + drift(w)) + weight_decay * w.

    Example:
        >>> ft.FedAvg(sgd=ft.SGD(lr=0.01, epochs=2)).sgd.epochs
        2
    """

    lr: float = 0.1
    """Learning rate of the local steps (per step)."""
    momentum: ZeroIsStatic = 0.0
    """Heavy-ball momentum without dampening, in [0, 1)."""
    weight_decay: ZeroIsStatic = 0.0
    """L2 coefficient, added to the gradient."""
    ridge: float | None = None
    """L2 penalty of ridge regression, on the sum of a client's losses: adds ridge / n_i * w
    to the gradients of its weights (arrays of two axes or more, so not of biases), where
    n_i is the number of its training samples; None = no penalty.
    """
    epochs: TracedInt = 1
    """Passes over the client's training samples in one round (used when `steps` is
    None).
    """
    steps: TracedInt | None = None
    """Mini-batch updates in one round, instead of epochs. Each pass over the samples has a
    new permutation.
    """
    batch_size: int = 32
    """Samples in a mini-batch. The last batch of an epoch may be smaller; its gradient is
    the mean over the samples that it has.
    """
    drop_last: bool = False
    """Whether to drop the last partial batch of an epoch, as some public code does. This
    changes fixed points.
    """
    lr_decay: ZeroIsStatic = 0.0
    """Relative decrease of the learning rate in each round: the rate in round t is lr * (1
    - lr_decay)^t. For example, 0.01 multiplies it by 0.99.
    """
    lr_halves_after: float | None = None
    """Rounds after which the learning rate is one half: in round t it is divided by 1 + t /
    lr_halves_after. The rates of all rounds add up to infinity, so that a training comes
    to its optimum from wherever it is, and the pull of several local steps away from the
    optimum of all clients together vanishes; None = no decrease.
    """
    clip: float | None = None
    """The Euclidean norm to which the gradient of a batch's mean loss is scaled if it is
    longer, with what the method adds to the gradient, and before L2 terms are added, as in
    PyTorch (Pascanu et al. 2013, On the Difficulty of Training Recurrent Neural Networks,
    algorithm 1); above 0. Steps with shorter gradients stay as they were, to the bit; None =
    gradients have no bound.
    """
    optimizer: Any = None
    """An `optax.GradientTransformation` instead of SGD with momentum, which does not
    use `lr` and `momentum`.
    """
    dp_noise: float | None = None
    """Differential privacy of single examples (DP-SGD): the standard deviation of the noise
    on a batch's sum of gradients, divided by `dp_norm`; None = no privacy. With it, every
    step draws new examples, each with the same probability."""
    dp_norm: float | None = None
    """The norm to which every example's gradient is clipped, above 0; needed with
    `dp_noise`."""
    dp_delta: float | None = None
    """The delta for which epsilon is reported, with `dp_noise`; None = 1e-5."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")
        require(
            0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be in [0, 1)"
        )
        require(
            self.weight_decay >= 0,
            f"weight_decay is {self.weight_decay}; it must be 0 or more",
        )
        require(
            self.ridge is None or self.ridge >= 0,
            f"ridge is {self.ridge}; it must be 0 or more",
        )
        require(
            self.lr_halves_after is None or self.lr_halves_after > 0,
            f"lr_halves_after is {self.lr_halves_after}; it must be above 0",
        )
        require(self.epochs >= 0, f"epochs is {self.epochs}; it must be 0 or more")
        require(
            self.steps is None or self.steps >= 0,
            f"steps is {self.steps}; it must be 0 or more",
        )
        require(
            self.batch_size >= 1,
            f"batch_size is {self.batch_size}; it must be 1 or more",
        )
        require(
            self.batch_size < 2**31,
            f"batch_size is {self.batch_size}; it must be below 2^31",
        )
        require(
            0 <= self.lr_decay < 1, f"lr_decay is {self.lr_decay}; it must be in [0, 1)"
        )
        require(
            self.optimizer is None or hasattr(self.optimizer, "update"),
            f"optimizer is {self.optimizer!r}; it must be an"
            " optax.GradientTransformation, set in Python",
        )

        require(
            self.clip is None or self.clip > 0,
            f"clip is {self.clip}; it must be above 0",
        )

        # private steps
        require(
            self.clip is None or self.dp_noise is None,
            "private steps clip each example's gradient (dp_norm); leave out clip",
        )
        require(
            self.dp_noise is None or self.dp_noise > 0,
            f"dp_noise is {self.dp_noise}; it must be above 0",
        )
        require(
            self.dp_norm is None or self.dp_norm > 0,
            f"dp_norm is {self.dp_norm}; it must be above 0",
        )
        require(
            self.dp_delta is None or 0 < self.dp_delta < 1,
            f"dp_delta is {self.dp_delta}; it must be between 0 and 1",
        )
        require(
            (self.dp_noise is None) == (self.dp_norm is None),
            "private steps need dp_noise and dp_norm; give both, or neither",
        )

    def rate(self, round: ArrayLike) -> ScalarLike:
        """The learning rate in a round.

        Args:
            round: 0-based; may be traced.

        Returns:
            lr (1 - lr_decay)^round / (1 + round / lr_halves_after), a Python number if
            all of them are.
        """
        rate: ScalarLike = self.lr
        if not is_off(self.lr_decay):
            rate = rate * (1 - self.lr_decay) ** round
        if self.lr_halves_after is not None:
            rate = rate / (1 + round / self.lr_halves_after)
        return rate

    @property
    def has_penalty(self) -> bool:
        """Whether an L2 term is added to gradients."""
        return not is_off(self.weight_decay) or self.ridge is not None

    def penalty(self, axes: int, samples: ArrayLike) -> ScalarLike:
        """The coefficient of w in the gradient of an array of parameters.

        Args:
            axes: the number of the array's axes; biases have one.
            samples: n_i, the client's training samples, or the sum of their weights; may
                be traced.

        Returns:
            weight_decay, for weights plus ridge / n_i.
        """
        if self.ridge is None or axes < 2:
            return self.weight_decay
        # Weights of samples may add up to less than 1, numbers of samples may not.
        is_count = jnp.issubdtype(jnp.result_type(samples), jnp.integer)
        least = 1 if is_count else jnp.finfo(jnp.float32).tiny
        return self.weight_decay + self.ridge / jnp.maximum(samples, least)


def sgds_of(settings: Any) -> list[SGD]:
    """The `SGD` settings among the hyper-parameters of a method, and of the methods that it
    contains.
    """
    found = []
    for value in vars(settings).values():
        if isinstance(value, SGD):
            found.append(value)
        elif is_hyperparameters(value):
            found += sgds_of(value)
    return found

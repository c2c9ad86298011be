"""Settings of local training."""

from typing import Any

from fedtailor.protocol.hyperparameters import TracedInt, ZeroIsStatic, hyperparameters, is_off, require


@hyperparameters
class SGD:
    """Mini-batch SGD on one client; the optimiser state starts anew in every round.

    One step on a batch b:  g = grad F(w; b) + weight_decay * w + drift(w);  v = momentum * v + g;  w = w - lr * v.
    """

    lr: float = 0.1
    """Learning rate of the local steps (per step)."""
    momentum: ZeroIsStatic = 0.0
    """Heavy-ball momentum without dampening, in [0, 1)."""
    weight_decay: ZeroIsStatic = 0.0
    """L2 coefficient, added to the gradient."""
    epochs: TracedInt = 1
    """Passes over the client's training samples in one round (used when `steps` is None)."""
    steps: TracedInt | None = None
    """Mini-batch updates in one round, instead of epochs; they continue over fresh permutations."""
    batch_size: int = 32
    """Samples in a mini-batch. A client's last partial batch is kept and averaged over its own samples."""
    drop_last: bool = False
    """Drop the last partial batch of an epoch (as some public code does); it changes fixed points."""
    lr_decay: ZeroIsStatic = 0.0
    """Relative decrease of the rate a round: the rate in round t is lr * (1 - lr_decay)^t (0.01 for CFL's x 0.99)."""
    optimizer: Any = None
    """An `optax.GradientTransformation` instead of momentum SGD; then `lr` and `momentum` are not used."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")
        require(0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be in [0, 1)")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}; it must be 0 or more")
        require(self.epochs >= 0, f"epochs is {self.epochs}; it must be 0 or more")
        require(self.steps is None or self.steps >= 0, f"steps is {self.steps}; it must be 0 or more")
        require(self.batch_size >= 1, f"batch_size is {self.batch_size}; it must be 1 or more")
        require(0 <= self.lr_decay < 1, f"lr_decay is {self.lr_decay}; it must be in [0, 1)")
        usable = self.optimizer is None or hasattr(self.optimizer, "update")
        require(usable, f"optimizer is {self.optimizer!r}; it must be an optax.GradientTransformation, set in Python")

    def rate(self, round: Any) -> Any:
        """The learning rate in a round (traced or a number)."""
        return self.lr if is_off(self.lr_decay) else self.lr * (1 - self.lr_decay) ** round

"""Sequences: one label for each token."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor.models.tasks.classification import cross_entropy
from fedtailor.models.tasks.task import Task, register


@dataclass(frozen=True)
class TokenCrossEntropy(Task):
    """Cross-entropy of sequences, the mean over an example's tokens: outputs [b, t,
    vocabulary], targets [b, t].

    Attributes:
        ignore: the target that marks padding. A sequence of padding only has loss 0.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = ft.models.TokenCrossEntropy(ignore=0)
        >>> round(float(loss(jnp.zeros((1, 2, 4)), jnp.array([[1, 0]]))[0]), 3)
        1.386
    """

    ignore: int = -1

    name: ClassVar[str] = "tokens"

    def __call__(
        self, outputs: Float[Array, "b t vocabulary"], y: Int[Array, "b t"]
    ) -> Float[Array, " b"]:
        # A sequence of padding only is divided by 1.
        is_token = self.is_token(y)
        tokens = jnp.maximum(is_token.sum(axis=1), 1).astype(outputs.dtype)
        losses = cross_entropy.function(outputs, y)
        return jnp.where(is_token, losses, 0).sum(axis=1) / tokens

    def outputs(self, classes: int | None, target_shape: tuple[int, ...]) -> int:
        assert classes is not None, (
            "sequences have an alphabet, whose size is `classes`"
        )
        return classes

    def is_token(self, y: Int[Array, "b t"]) -> Bool[Array, "b t"]:
        """Whether each target is a token and not padding."""
        return y != self.ignore

    def weights(
        self, y: Int[Array, "b t"], weight: Float[Array, " b"]
    ) -> Float[Array, "b t"]:
        """1 for a token; 0 for the rest of a shorter sequence, and for all of an example
        that only fills the batch.
        """
        return super().weights(y, weight) * self.is_token(y).astype(weight.dtype)

    def describe(self, outputs: int) -> str:
        return "sequences"

    def predict(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """The most probable token of each place [n, t]."""
        return outputs.argmax(axis=-1)


token_cross_entropy = register("token_cross_entropy", TokenCrossEntropy())
"""-log softmax(outputs)[y] of each token, in nats, as a mean over a sequence's tokens;
targets of -1 are padding.
"""

"""Losses, which return one number for each example."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

Loss = Callable[[Array, Array], Array]
"""(outputs [b, ...], targets [b, ...]) -> loss of each example [b]. It must be hashable, so
that equal models share compiled programs.
"""


@dataclass(frozen=True)
class Classification:
    """A loss over class scores: outputs [b, classes] whose softmax is the prediction,
    targets [b] class numbers.

    Runs also report the accuracy if the loss is a `Classification`.

    Attributes:
        function: (outputs [b, classes], labels [b]) -> [b].
    """

    function: Loss

    def __call__(
        self, outputs: Float[Array, "b classes"], y: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        return self.function(outputs, y)


def _cross_entropy(
    outputs: Float[Array, "*many classes"], y: Int[Array, "*many"]
) -> Float[Array, "*many"]:
    # A comparison instead of indexing, whose derivative would be a scatter.
    is_label = y[..., None] == jnp.arange(outputs.shape[-1], dtype=y.dtype)
    return jax.nn.logsumexp(outputs, axis=-1) - jnp.where(is_label, outputs, 0).sum(-1)


cross_entropy = Classification(_cross_entropy)
"""-log softmax(outputs)[y], in nats. For a density model it is the negative
log-likelihood of the symbol y.
"""


@dataclass(frozen=True)
class TokenCrossEntropy:
    """Cross-entropy of sequences, the mean over an example's tokens: outputs [b, t,
    vocabulary], targets [b, t].

    Attributes:
        ignore: the target that marks padding. A sequence of padding only has loss 0.
    """

    ignore: int = -1

    def __call__(
        self, outputs: Float[Array, "b t vocabulary"], y: Int[Array, "b t"]
    ) -> Float[Array, " b"]:
        # A sequence of padding only is divided by 1.
        is_token = self.is_token(y)
        tokens = jnp.maximum(is_token.sum(axis=1), 1).astype(outputs.dtype)
        return jnp.where(is_token, _cross_entropy(outputs, y), 0).sum(axis=1) / tokens

    def is_token(self, y: Int[Array, "b t"]) -> Bool[Array, "b t"]:
        """Whether each target is a token and not padding."""
        return y != self.ignore


token_cross_entropy = TokenCrossEntropy()
"""-log softmax(outputs)[y] of each token, in nats, as a mean over a sequence's tokens;
targets of -1 are padding.
"""


def squared_error(
    outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
) -> Float[Array, " b"]:
    """|outputs - y|^2 summed over an example's targets (no factor 1/2). Targets [b] match
    outputs [b, 1].

    Raises:
        ValueError: an example's outputs and targets differ in number.
    """
    if outputs.size != y.size:
        raise ValueError(
            f"outputs {outputs.shape} do not match targets {y.shape}; bind the model"
            " with matching outputs"
        )
    targets = y.reshape(outputs.shape).astype(outputs.dtype)
    return jnp.square(outputs - targets).reshape(len(outputs), -1).sum(-1)

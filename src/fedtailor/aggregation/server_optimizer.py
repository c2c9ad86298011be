"""Server optimisers: the step from a stream's model, one of those that the server
keeps, towards the mix of its clients, the weighted average of their models."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from fedtailor.protocol import along_axis, hyperparameters, require

State = tuple[Array, ...]
"""The optimiser's memory: arrays with one row a stream, [s, ...] (a plain tuple, so
that it can be checkpointed).
"""


@hyperparameters
class ServerOptimizer:
    """What the server does with the pseudo-gradient Delta = theta - mixed of every
    stream (Reddi et al. 2021).

    * plain:     theta <- theta - lr Delta; with lr 1 exactly the mix.
    * momentum:  v <- momentum v + Delta; theta <- theta - lr v (FedAvgM, Hsu et al. 2019). No dampening: the
      effective rate is lr / (1 - momentum).
    * adam:      Adam with bias correction on Delta (FedAdam).
    * yogi:      as adam, but v <- v - (1 - second_moment) sign(v - Delta^2) Delta^2 (FedYogi).
    * adagrad:   theta <- theta - lr Delta / sqrt(epsilon^2 + sum of all Delta^2 so far) (FedAdagrad, no momentum).

    The last three are optax's; Reddi et al.'s algorithm 2 has no bias correction, which
    only matters in early rounds.
    """

    kind: Literal["plain", "momentum", "adam", "yogi", "adagrad"] = "plain"
    """The rule."""
    lr: float = 1.0
    """Server learning rate."""
    momentum: float = 0.9
    """Decay of the first moment, in [0, 1) (momentum, adam and yogi)."""
    second_moment: float = 0.99
    """Decay of the second moment, in [0, 1) (adam and yogi)."""
    epsilon: float = 1e-3
    """Adaptivity tau: added to the root of the second moment (adagrad: its square,
    under the root).
    """

    def __post_init__(self) -> None:
        kinds = ("plain", "momentum", "adam", "yogi", "adagrad")
        require(
            self.kind in kinds,
            f"kind is {self.kind!r}; it must be one of {', '.join(kinds)}",
        )
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")
        require(
            0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be in [0, 1)"
        )
        require(
            0 <= self.second_moment < 1,
            f"second_moment is {self.second_moment}; it must be in [0, 1)",
        )
        require(self.epsilon > 0, f"epsilon is {self.epsilon}; it must be above 0")

    def init(self, theta: Float[Array, "s d"]) -> State:
        """The state before the first step; every stream has its own."""
        state = jax.vmap(self._rule().init)(jnp.asarray(theta))
        return tuple(jax.tree.leaves(state))

    def apply(
        self,
        state: State,
        theta: Float[Array, "s d"],
        mixed: Float[Array, "s d"],
        moved: NDArray[np.bool_],
    ) -> tuple[State, Float[Array, "s d"]]:
        """One step of every stream from `theta` towards `mixed`.

        Streams with `moved` [s] False (nobody reported: a zero row of weights) keep
        model and state, bit for bit.

        Returns:
            The new state and models.
        """
        moved = np.asarray(moved, bool)
        takes_whole_step = self.kind == "plain" and self.lr == 1
        if takes_whole_step and moved.all():
            # The rule's result is `mixed`, too. Not to call it saves some 0.2 ms in
            # every round of most methods.
            return tuple(state), mixed
        return _apply(self, tuple(state), theta, mixed, moved)

    def _rule(self) -> optax.GradientTransformation:
        """The rule as optax has it: of Delta it makes the direction, which `lr` is not
        yet part of.
        """
        if self.kind == "momentum":
            return optax.trace(self.momentum)
        if self.kind == "adam":
            return optax.scale_by_adam(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "yogi":
            return optax.scale_by_yogi(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "adagrad":
            return optax.scale_by_rss(self.epsilon**2, 0.0)
        return optax.identity()


@jax.jit
def _apply(
    optimizer: ServerOptimizer,
    state: State,
    theta: Float[Array, "s d"],
    mixed: Float[Array, "s d"],
    moved: Bool[Array, " s"],
) -> tuple[State, Float[Array, "s d"]]:
    """`ServerOptimizer.apply` as one program: the rule for every stream, and the old
    rows back where none moved.
    """

    def where_moved(new: Array, old: Array) -> Array:
        return jnp.where(along_axis(moved, 0, old.ndim), new, old)

    if optimizer.kind == "plain":
        # not theta - lr Delta: this is exactly `mixed` for a rate of 1
        stepped = (1 - optimizer.lr) * theta + optimizer.lr * mixed
        return state, where_moved(stepped, theta)
    rule = optimizer._rule()
    # optax's state is a tree of its own classes; ours is the tuple of its leaves.
    state_shapes = jax.eval_shape(jax.vmap(rule.init), theta)
    structure = jax.tree.structure(state_shapes)
    update: Any = jax.vmap(partial(rule.update, params=None))
    # Delta = theta - mixed is what optax takes for the gradient; every stream has a
    # state, and a step, of its own.
    old_state = jax.tree.unflatten(structure, state)
    direction, new_state = update(theta - mixed, old_state)
    new_leaves = jax.tree.leaves(new_state)
    next_state = tuple(
        where_moved(new, old) for new, old in zip(new_leaves, state, strict=True)
    )
    stepped = theta - optimizer.lr * direction
    return next_state, where_moved(stepped, theta)

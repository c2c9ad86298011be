"""Server optimisers (FedOpt): the server's step towards the average of its clients.

A server keeps s models theta [s, d], which are called streams: one in FedAvg, one for
each cluster in clustered methods. Each has its own average and its own optimiser state.
"""

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
"""The state of the optimiser: arrays with one row for each stream, [s, ...].

It is a plain tuple, so that it can be checkpointed.
"""


@hyperparameters
class ServerOptimizer:
    """ServerOpt of FedOpt (Reddi et al. 2021, algorithm 1).

    The optimiser treats the difference between a model and the average of its clients'
    models as a gradient,

        Delta = theta - average

    (The paper's Delta_t = (1/|S|) sum_i (x_i - x_t) has the opposite sign: its ServerOpt
    receives -Delta_t.) The rules, with b1, b2, tau of the paper = `momentum`,
    `second_moment`, `epsilon`:

    * plain:     theta <- theta - lr Delta; with lr 1 exactly the average (FedAvg).
    * momentum:  v <- momentum v + Delta; theta <- theta - lr v (FedAvgM, Hsu et al.
      2019). No dampening: the effective rate is lr / (1 - momentum).
    * adam:      Adam with bias correction on Delta (FedAdam).
    * yogi:      as adam, but v <- v - (1 - second_moment) sign(v - Delta^2) Delta^2
      (FedYogi).
    * adagrad:   theta <- theta - lr Delta / sqrt(epsilon^2 + sum of all Delta^2 so far)
      (FedAdagrad, no momentum).

    The last three are optax's. The paper's algorithm 2 has no bias correction, which
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
    """Adaptivity tau. A step divides by sqrt(v) + epsilon (adam, yogi) or by
    sqrt(v + epsilon^2) (adagrad), where v is the second moment.
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
        average: Float[Array, "s d"],
        is_updated: NDArray[np.bool_],
    ) -> tuple[State, Float[Array, "s d"]]:
        """One step of the streams' models towards the averages of their clients.

        Args:
            state: of `init`, or of the step before.
            theta: the streams' models.
            average: for each stream the weighted average of its clients' models.
            is_updated: [s] which streams take a step. The others, whose clients did not
                report, keep model and state bit for bit.

        Returns:
            The new state and models.
        """
        is_updated = np.asarray(is_updated, bool)
        takes_whole_step = self.kind == "plain" and self.lr == 1
        if takes_whole_step and is_updated.all():
            # The compiled step would return `average`, too. Skipping the call saves
            # about 0.2 ms in every round of most methods.
            return tuple(state), average
        return _apply(self, tuple(state), theta, average, is_updated)

    def _rule(self) -> optax.GradientTransformation:
        """The rule in optax: from Delta to the direction, which `lr` then scales."""
        if self.kind == "momentum":
            return optax.trace(self.momentum)
        if self.kind == "adam":
            return optax.scale_by_adam(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "yogi":
            return optax.scale_by_yogi(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "adagrad":
            return optax.scale_by_rss(
                initial_accumulator_value=self.epsilon**2, eps=0.0
            )
        return optax.identity()


@jax.jit
def _apply(
    optimizer: ServerOptimizer,
    state: State,
    theta: Float[Array, "s d"],
    average: Float[Array, "s d"],
    is_updated: Bool[Array, " s"],
) -> tuple[State, Float[Array, "s d"]]:
    """`ServerOptimizer.apply` as one compiled program.

    The rule is applied to every stream; streams that are not updated then get their old
    rows back. Of the optimiser only `kind` is static: another rate needs no new
    compilation (see `hyperparameters`).
    """

    def select(new: Array, old: Array) -> Array:
        """The new rows [s, ...] of streams that are updated, the old ones of others."""
        return jnp.where(along_axis(is_updated, 0, old.ndim), new, old)

    if optimizer.kind == "plain":
        # In this form, not theta - lr Delta, it is exactly `average` for a rate of 1.
        new_theta = (1 - optimizer.lr) * theta + optimizer.lr * average
        return state, select(new_theta, theta)
    rule = optimizer._rule()
    # One update for each stream, with Delta as the gradient.
    update: Any = jax.vmap(partial(rule.update, params=None))
    delta = theta - average
    optax_state = _unflatten(state, rule, theta)
    direction, new_optax_state = update(delta, optax_state)
    new_theta = theta - optimizer.lr * direction
    new_leaves = jax.tree.leaves(new_optax_state)
    new_state = tuple(
        select(new, old) for new, old in zip(new_leaves, state, strict=True)
    )
    return new_state, select(new_theta, theta)


def _unflatten(
    state: State, rule: optax.GradientTransformation, theta: Float[Array, "s d"]
) -> optax.OptState:
    """The state in optax's own classes, of which `State` holds the leaves only."""
    state_shapes = jax.eval_shape(jax.vmap(rule.init), theta)
    return jax.tree.unflatten(jax.tree.structure(state_shapes), state)

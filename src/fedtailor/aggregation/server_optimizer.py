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

from fedtailor._base.choice import require
from fedtailor.protocol import along_axis, hyperparameters

State = tuple[Array, ...]
"""The leaves of optax's state, with one row for each stream [s, ...].

Checkpoints cannot hold optax's own classes, but they can hold a tuple of arrays.
"""


@hyperparameters
class ServerOptimizer:
    """ServerOpt of FedOpt (Reddi et al. 2021, algorithm 1).

    The difference between a model and the average of its clients' models takes the
    place of a gradient:

        Delta = theta - average

    This is -Delta_t of the paper, which defines Delta_t = (1/|S|) sum_i (x_i - x_t).
    The rules are FedAvg (plain), FedAvgM (momentum, Hsu et al. 2019), FedAdam, FedYogi
    and FedAdagrad; `_rule` has their equations. `momentum`, `second_moment` and
    `epsilon` are b1, b2 and tau of the paper.

    Example:
        >>> from fedtailor.aggregation import ServerOptimizer
        >>> ServerOptimizer("adam", lr=0.1).kind
        'adam'
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
    paper: bool = False
    """Algorithm 2 of Reddi et al. to the letter, for adam, yogi and adagrad: no correction
    of the moments for their start, v = epsilon^2 at first, and steps of sqrt(v) + epsilon
    also in adagrad. The first steps are those that differ: adam's by 1 - b1 over
    sqrt(1 - b2).
    """

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")
        require(
            0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be in [0, 1)"
        )
        require(
            0 <= self.second_moment < 1,
            f"second_moment is {self.second_moment}; it must be in [0, 1)",
        )
        require(self.epsilon > 0, f"epsilon is {self.epsilon}; it must be above 0")
        require(
            not self.paper or self.kind in ("adam", "yogi", "adagrad"),
            f"paper is a form of adam, yogi and adagrad; {self.kind} has one form only",
        )

    def init(self, theta: Float[Array, "s d"]) -> State:
        """The state before the first step, with a row for each stream."""
        state = jax.vmap(self._rule().init)(jnp.asarray(theta))
        return tuple(jax.tree.leaves(state))

    def apply(
        self,
        state: State,
        theta: Float[Array, "s d"],
        average: Float[Array, "s d"],
        is_updated: NDArray[np.bool_],
        is_statistic: NDArray[np.bool_] | None = None,
    ) -> tuple[State, Float[Array, "s d"]]:
        """One step of the streams' models towards the averages of their clients.

        Args:
            state: of `init`, or of the step before.
            theta: the streams' models.
            average: for each stream the weighted average of its clients' models.
            is_updated: [s] which streams take a step. The others, whose clients did not
                report, keep model and state bit for bit.
            is_statistic: [d] the entries that become the average, whatever the rule:
                running statistics, whose variances a step beyond it would make negative;
                None = there are none.

        Returns:
            The new state and models.
        """
        is_updated = np.asarray(is_updated, bool)
        if self.kind == "plain" and self.lr == 1 and is_updated.all():
            # FedAvg. The compiled step would return the same; skipping it saves about
            # 0.2 ms in every round of most methods.
            return tuple(state), average
        return _apply(self, tuple(state), theta, average, is_updated, is_statistic)

    def _rule(self) -> optax.GradientTransformation:
        """The rule in optax, which maps Delta to a direction; `lr` then scales it."""
        if self.paper:
            return self._algorithm_2()
        if self.kind == "momentum":
            # v <- momentum v + Delta; theta <- theta - lr v. There is no dampening: the
            # effective rate is lr / (1 - momentum).
            return optax.trace(self.momentum)
        if self.kind == "adam":
            # Adam on Delta, with moments corrected for their start at 0. The paper's
            # algorithm 2 has no such correction (`paper`).
            return optax.scale_by_adam(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "yogi":
            # As adam, but v <- v - (1 - second_moment) sign(v - Delta^2) Delta^2.
            return optax.scale_by_yogi(self.momentum, self.second_moment, self.epsilon)
        if self.kind == "adagrad":
            # theta <- theta - lr Delta / sqrt(epsilon^2 + sum of all Delta^2 so far),
            # without momentum.
            return optax.scale_by_rss(
                initial_accumulator_value=self.epsilon**2, eps=0.0
            )
        # plain: theta <- theta - lr Delta
        return optax.identity()

    def _algorithm_2(self) -> optax.GradientTransformation:
        """The adaptive rules of Reddi et al. 2021, algorithm 2, as printed.

            m <- b1 m + (1 - b1) Delta,    theta <- theta - lr m / (sqrt(v) + tau)

        with v <- v + Delta^2 (adagrad, b1 = 0), v - (1 - b2) Delta^2 sign(v - Delta^2)
        (yogi) or b2 v + (1 - b2) Delta^2 (adam), m = 0 and v = tau^2 at first.
        """
        b1 = 0.0 if self.kind == "adagrad" else self.momentum
        b2, tau = self.second_moment, self.epsilon

        def init(theta: Array) -> tuple[Array, Array]:
            return jnp.zeros_like(theta), jnp.full_like(theta, tau**2)

        def update(
            delta: Array, state: tuple[Array, Array], params: None = None
        ) -> tuple[Array, tuple[Array, Array]]:
            m, v = state
            squared = jnp.square(delta)
            m = b1 * m + (1 - b1) * delta
            if self.kind == "adagrad":
                v = v + squared
            elif self.kind == "yogi":
                v = v - (1 - b2) * squared * jnp.sign(v - squared)
            else:
                v = b2 * v + (1 - b2) * squared
            return m / (jnp.sqrt(v) + tau), (m, v)

        return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


@jax.jit
def _apply(
    optimizer: ServerOptimizer,
    state: State,
    theta: Float[Array, "s d"],
    average: Float[Array, "s d"],
    is_updated: Bool[Array, " s"],
    is_statistic: Bool[Array, " d"] | None,
) -> tuple[State, Float[Array, "s d"]]:
    """`ServerOptimizer.apply` as one compiled program.

    The rule is applied to every stream, and the old rows of streams that are not
    updated are then restored. Only the optimiser's `kind` is static, so another rate
    needs no new compilation (see `hyperparameters`).
    """

    def select(new: Array, old: Array) -> Array:
        """New rows [s, ...] for streams that are updated, old rows for the others."""
        return jnp.where(along_axis(is_updated, 0, old.ndim), new, old)

    def with_averages(new: Array) -> Array:
        """New models [s, d] whose running statistics are the averages."""
        return new if is_statistic is None else jnp.where(is_statistic, average, new)

    if optimizer.kind == "plain":
        # Unlike theta - lr Delta, this is exactly `average` for a rate of 1.
        new_theta = (1 - optimizer.lr) * theta + optimizer.lr * average
        return state, select(with_averages(new_theta), theta)
    rule = optimizer._rule()
    optax_state = _optax_state(rule, state, theta)
    # One update for each stream, with Delta as the gradient.
    update: Any = jax.vmap(partial(rule.update, params=None))
    direction, new_optax_state = update(theta - average, optax_state)
    new_theta = theta - optimizer.lr * direction
    new_leaves = jax.tree.leaves(new_optax_state)
    new_state = tuple(
        select(new, old) for new, old in zip(new_leaves, state, strict=True)
    )
    return new_state, select(with_averages(new_theta), theta)


def _optax_state(
    rule: optax.GradientTransformation, state: State, theta: Float[Array, "s d"]
) -> optax.OptState:
    """The leaves of `state` in optax's classes."""
    # `eval_shape` finds the structure without computing a state.
    structure = jax.tree.structure(jax.eval_shape(jax.vmap(rule.init), theta))
    return jax.tree.unflatten(structure, state)

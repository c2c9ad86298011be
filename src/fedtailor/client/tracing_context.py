"""What a client's trainer knows and counts while JAX traces the client's part of an
exchange.

None of it is part of the compiled program: these are Python objects that change while
the program is traced, such as "a step is being traced now". The exceptions are the
numbers in `TracingContext.work` and `private_steps_taken`, which are traced values.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedtailor.protocol import Batch, IntScalar


class StepWork(NamedTuple):
    """Passes over the batch of a step that one place in its code makes.

    Attributes:
        gradients, forwards: passes over each example of the batch.
        repeats: how often each `fori_loop` around that place, inside of the step,
            repeats it.
    """

    gradients: int
    forwards: int
    repeats: tuple[IntScalar, ...]


class Step:
    """A step of `LocalTrainer.loop` while it is traced.

    Attributes:
        key: randomness of the step; None for models that need none.
        repeats: how often each `fori_loop` repeats what is being traced, from the
            outermost one inside of the step to the innermost.
        work: the passes over its batch so far.
        batches: the batches that it has drawn so far.
        took_gradient: whether it has trained a model.
        updated_statistics: whether it has updated running statistics.
    """

    def __init__(self, key: Array | None) -> None:
        self.key = key
        self.repeats: tuple[IntScalar, ...] = ()
        self.work: list[StepWork] = []
        self.batches: list[Batch] = []
        self.took_gradient = False
        self.updated_statistics = False
        self._keys_used = 0

    def next_key(self) -> Array | None:
        """A key for one more use of randomness in this step."""
        self._keys_used += 1
        # The first key is used as it is: nearly all steps need only one, and save the
        # work of folding in.
        if self.key is None or self._keys_used == 1:
            return self.key
        return jax.random.fold_in(self.key, self._keys_used - 1)

    def weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"] | None:
        """The weights of inputs that the step has drawn; None for other inputs."""
        for batch in self.batches:
            if batch.x is x:
                return batch.weight
        return None

    def begin_pass(self, key: Array | None, times: IntScalar) -> "Step":
        """A record of one pass of a `fori_loop` inside of this step, which sees the
        same batches; `end_passes` adds it to this step.
        """
        one_pass = Step(key)
        one_pass.repeats = (*self.repeats, times)
        one_pass.batches = self.batches
        return one_pass

    def end_passes(self, one_pass: "Step") -> None:
        """Add what `begin_pass` has recorded, once for all passes."""
        self.work += one_pass.work
        self.took_gradient |= one_pass.took_gradient
        self.updated_statistics |= one_pass.updated_statistics


class TracingContext:
    """The context of one client in an exchange, which a trainer shares with all of its
    views (`part`, `in_round`).

    Attributes:
        work: [2] gradients and forward passes of single examples so far.
        step: the step of `loop` that is being traced; None outside of steps.
        is_repeated: whether `map` or `fori_loop` repeats what is being traced.
        evaluating: whether test rows may be read.
        private_steps_only: whether examples may be read in private steps only.
        private_steps_taken: the number of private steps so far; None = no such steps.
    """

    def __init__(self) -> None:
        self.work: Int[Array, " 2"] = jnp.zeros(2, jnp.int32)
        self.step: Step | None = None
        self.is_repeated = False
        self.evaluating = False
        self.private_steps_only = False
        self.private_steps_taken: Int[Array, ""] | None = None
        self._private_loops = 0

    def add_work(self, gradients: IntScalar = 0, forwards: IntScalar = 0) -> None:
        """Count passes over single examples, outside of steps."""
        gradients = jnp.asarray(gradients, jnp.int32)
        forwards = jnp.asarray(forwards, jnp.int32)
        self.add_counts(jnp.stack([gradients, forwards]))

    def add_counts(self, work: Int[Array, " 2"]) -> None:
        """Add to `work`.

        Raises:
            TypeError: inside of a step, whose traced values must not leave it.
        """
        if self.step is not None:
            raise TypeError(
                "inside LocalTrainer.loop use batch_gradient, batch_loss and draw;"
                " whole-split passes go outside"
            )
        self.work = self.work + work

    def add_steps(self, work: list[StepWork], examples: IntScalar) -> None:
        """Count the work of all steps of a loop.

        Args:
            work: of one step, on its batch.
            examples: in the batches of all steps together.
        """
        gradients = forwards = 0
        for passes in work:
            times = math.prod(passes.repeats)
            gradients += passes.gradients * times
            forwards += passes.forwards * times
        self.add_work(examples * gradients, examples * forwards)

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Give attributes other values while a `with` statement is open."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def next_private_loop(self) -> int:
        """A number for each loop of private steps of a round: no two may draw the same
        noise.
        """
        self._private_loops += 1
        return self._private_loops

"""The state of a client's trainer while JAX traces the client's part of an exchange.

JAX calls the Python function of a loop once, to trace it, and the compiled program then
repeats it. So the trainer records in Python objects what one step does ("it computes one
gradient"), and multiplies by the number of repetitions when the loop has been traced. These
objects exist and change during tracing only; they are not part of the compiled program. The
exceptions are the numbers in `TracingContext.work` and `private_steps_taken`, which are
traced values.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedtailor.protocol import SGD, Batch, IntScalar


class StepWork(NamedTuple):
    """The passes over the batch of a step that one call of `count_work` records.

    Attributes:
        gradients: how many gradients are computed on each example of the batch.
        forwards: how many forward passes without a gradient.
        repeats: the number of repetitions of each `fori_loop` around the call, inside
            of the step.
    """

    gradients: int
    forwards: int
    repeats: tuple[IntScalar, ...]


class Step:
    """The record of one step of `LocalTrainer.loop` while it is traced.

    Attributes:
        key: the random key of the step; None for models that are not stochastic.
        repeats: the number of repetitions of each `fori_loop` around the code that is
            being traced, from the outermost loop inside of the step to the innermost.
        work: the passes over the batch so far.
        batches: the batches that the step has drawn so far.
        has_gradient: whether the step has computed a gradient of a model.
        updates_statistics: whether the step has updated running statistics.
    """

    def __init__(self, key: Array | None) -> None:
        self.key = key
        self.repeats: tuple[IntScalar, ...] = ()
        self.work: list[StepWork] = []
        self.batches: list[Batch] = []
        self.has_gradient = False
        self.updates_statistics = False
        self._keys_used = 0

    def next_key(self) -> Array | None:
        """A new random key for this step."""
        self._keys_used += 1
        # Nearly all steps need one key only. It is the key of the step itself, which
        # saves the work of folding in a number.
        if self.key is None or self._keys_used == 1:
            return self.key
        return jax.random.fold_in(self.key, self._keys_used - 1)

    def weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"] | None:
        """The weights of inputs that the step has drawn as a batch; None for others."""
        for batch in self.batches:
            if batch.x is x:
                return batch.weight
        return None

    def begin_pass(self, key: Array | None, times: IntScalar) -> "Step":
        """Start the record of one pass of a `fori_loop` inside of this step.

        The pass uses the batches of this step; `end_passes` adds its record to this step.
        """
        one_pass = Step(key)
        one_pass.repeats = (*self.repeats, times)
        one_pass.batches = self.batches
        return one_pass

    def end_passes(self, one_pass: "Step") -> None:
        """Add the record of one pass, which stands for all passes of the loop."""
        self.work += one_pass.work
        self.has_gradient |= one_pass.has_gradient
        self.updates_statistics |= one_pass.updates_statistics


class TracingContext:
    """The tracing state of one client in an exchange. A trainer shares it with all of its
    views (`part`, `in_round`).

    Attributes:
        work: [2] the number of gradients and of forward passes of single examples so far.
        step: the step of `loop` that is being traced; None outside of steps.
        is_repeated: whether `map` or `fori_loop` repeats the code that is being traced.
        is_evaluating: whether the test split may be read.
        private_steps_only: whether only private steps may read examples.
        accounted_settings: the settings of private steps that the account knows.
        private_steps_taken: the number of private steps so far; None if there were none.
    """

    def __init__(self) -> None:
        self.work: Int[Array, " 2"] = jnp.zeros(2, jnp.int32)
        self.step: Step | None = None
        self.is_repeated = False
        self.is_evaluating = False
        self.private_steps_only = False
        self.accounted_settings: Sequence[SGD] = ()
        self.private_steps_taken: Int[Array, ""] | None = None
        self._private_loops = 0

    def mark_step(
        self, *, has_gradient: bool = False, updates_statistics: bool = False
    ) -> None:
        """Set marks of the step that is being traced, if there is one."""
        if self.step is not None:
            self.step.has_gradient |= has_gradient
            self.step.updates_statistics |= updates_statistics

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
            work: the passes of one step over its batch.
            examples: the number of examples in the batches of all steps together.
        """
        gradients = forwards = 0
        for passes in work:
            repeats = math.prod(passes.repeats)
            gradients += passes.gradients * repeats
            forwards += passes.forwards * repeats
        self.add_work(examples * gradients, examples * forwards)

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Set attributes to other values for the body of a `with` statement."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def next_private_loop(self) -> int:
        """A new number for a loop of private steps: no two loops of a round may draw the
        same noise.
        """
        self._private_loops += 1
        return self._private_loops

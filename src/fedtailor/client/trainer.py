"""`DeviceTrainer`: one client's training over a pool of examples on the device."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from fedtailor.client.client_data import ClientData, batches_in_epoch, examples_in_steps
from fedtailor.client.losses import accumulated_gradient, training_loss
from fedtailor.client.passes import gradient_over_range, split_statistics
from fedtailor.client.steps import train
from fedtailor.client.trace import Step, StepWork
from fedtailor.metrics import Loss
from fedtailor.models import Part
from fedtailor.protocol import (
    SGD,
    Batch,
    BatchMetric,
    IntScalar,
    ModelPart,
    Params,
    Predictor,
    StepGradient,
)

Carry = TypeVar("Carry")


class DeviceTrainer(ClientData):
    """One client on the device (implements `fedtailor.protocol.LocalTrainer`;
    traced).
    """

    # work on vectors
    # ----------------------------------------------------------------------------------

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        if sgd.steps is not None:
            return jnp.asarray(sgd.steps, jnp.int32)
        return sgd.epochs * batches_in_epoch(self.size, sgd.batch_size, sgd.drop_last)

    def sgd(
        self,
        theta: Float[Array, " d"],
        sgd: SGD,
        *,
        proximal: tuple[Any, Float[Array, " d"]] | None = None,
        linear_term: Float[Array, " d"] | None = None,
        gradient: StepGradient | None = None,
        steps: IntScalar | None = None,
        split: str = "train",
        train_only: ModelPart | None = None,
    ) -> Float[Array, " d"]:
        steps = self.steps(sgd) if steps is None else steps
        return train(
            self, theta, sgd, proximal, linear_term, gradient, steps, split, train_only
        )

    def gradient(
        self,
        theta: Float[Array, " d"],
        first: ArrayLike = 0,
        end: ArrayLike | None = None,
        *,
        purpose: str | None = None,
    ) -> Float[Array, " d"]:
        first = jnp.asarray(first, jnp.int32)
        end = self.size if end is None else jnp.asarray(end, jnp.int32)
        return gradient_over_range(self, theta, first, end, purpose)

    def loss(self, predictor: Predictor, split: str = "train") -> Float[Array, ""]:
        # Evaluation computes the same sums, so that a method sees the numbers that
        # tables print.
        total = self.statistics(predictor, split, (Loss(),))[Loss.name]["loss"]
        return total / jnp.maximum(self.count(split), 1)

    def statistics(
        self, predictor: Predictor, split: str, metrics: Sequence[BatchMetric]
    ) -> dict[str, dict[str, Array]]:
        """Measure a predictor on a split, in evaluation mode.

        Returns:
            Metric's name -> its statistic, summed over the split's samples.
        """
        return split_statistics(self, predictor, split, metrics)

    # parts of the model
    # ----------------------------------------------------------------------------------

    @property
    def parts_of_model(self) -> tuple[str, ...]:
        return self.model.parts

    def part_of_model(self, name: str) -> Part:
        return self.model.part(name)

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Float[Array, "b ..."]:
        if not self._in_training_mode(training):
            return self.model.features(params, x)
        # A method asks for features by batch statistics in order to train on them.
        self._mark_gradient()
        return self.model.train_features(
            params, x, self._weight_of(x), self._training_key()
        )

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Shaped[Array, "b ..."]:
        return self.model.head_outputs(params, features)

    # steps of a method's own
    # ----------------------------------------------------------------------------------

    def params(self, theta: Float[Array, " d"]) -> Params:
        return self.model.params(theta)

    def vector(self, params: Params) -> Float[Array, " d"]:
        return self.model.vector(params)

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Shaped[Array, "b ..."]:
        if not self._in_training_mode(training):
            return self.model.logits(params, x)
        outputs, _ = self.model.train_outputs(
            params, x, self._weight_of(x), self._training_key()
        )
        return outputs

    def _weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        """0 for inputs that only pad the batch of the current step, and must not enter
        batch statistics.
        """
        step = self.trace.step
        weight = None if step is None else step.weight_of(x)
        if weight is None:
            # Inputs that the step has not drawn are the method's own, without padding.
            return jnp.ones(len(x), self.model.dtype)
        return weight

    def _in_training_mode(self, training: bool | None) -> bool:
        """The mode that the method asks for; by default training mode inside steps and
        evaluation mode outside.
        """
        return self.trace.step is not None if training is None else training

    def losses(
        self, outputs: Shaped[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        return self.model.losses(outputs, y)

    def batch_loss(
        self, params: Params, batch: Batch, key: Array | None = None
    ) -> Float[Array, ""]:
        key = self._training_key() if key is None else key
        loss, _ = self._training_loss(params, batch, key)
        return loss

    def _training_loss(
        self, params: Params, batch: Batch, key: Array | None
    ) -> tuple[Float[Array, ""], Params]:
        """The mean loss of a batch, and the parameters with running statistics
        renewed.
        """
        self._mark_gradient()
        return training_loss(self.model, params, batch, key)

    def _training_key(self) -> Array | None:
        """The key of the current step; None outside of `loop`, and for models that are
        not stochastic.
        """
        step = self.trace.step
        return None if step is None else step.next_key()

    def batch_gradient(
        self, params: Params, batch: Batch, key: Array | None = None
    ) -> Params:
        grads, _ = self._gradient_and_statistics(params, batch, key)
        return grads

    def gradient_and_statistics(
        self, params: Params, batch: Batch
    ) -> tuple[Params, Params]:
        """`batch_gradient` and `renew_statistics` of the same parameters and batch, in
        one pass.
        """
        self._mark_renewed()
        return self._gradient_and_statistics(params, batch)

    def _gradient_and_statistics(
        self, params: Params, batch: Batch, key: Array | None = None
    ) -> tuple[Params, Params]:
        """The gradient of a batch's mean loss, and the parameters with running
        statistics renewed.
        """
        self.count_work(gradients=1)
        key = self._training_key() if key is None else key
        if self.model.has_statistics:
            return jax.grad(self._training_loss, has_aux=True)(params, batch, key)
        # The gradient is accumulated where the activations of a whole batch would
        # outgrow the cache, and the batch divides evenly.
        size, micro_batch = len(batch.weight), self.model.micro_batch
        if micro_batch is not None and size > micro_batch and size % micro_batch == 0:
            grads = accumulated_gradient(self.model, params, batch, micro_batch, key)
        else:
            grads = jax.grad(self.batch_loss)(params, batch, key)
        return grads, params

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        """The parameters with running statistics as a training step on the batch leaves
        them; everything else is as given.
        """
        if not self.model.has_statistics:
            return params
        self._mark_renewed()
        key = self._training_key()
        _, renewed = self.model.train_outputs(params, batch.x, batch.weight, key)
        return renewed

    @property
    def has_statistics(self) -> bool:
        return self.model.has_statistics

    def with_statistics(self, params: Params, source: Params) -> Params:
        return self.model.with_statistics(params, source)

    # `_require_statistics` looks at these two marks after a step has been traced.

    def _mark_gradient(self) -> None:
        if self.trace.step is not None:
            self.trace.step.took_gradient = True

    def _mark_renewed(self) -> None:
        if self.trace.step is not None:
            self.trace.step.renewed = True

    def loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Batch, Int[Array, ""]], Carry],
        steps: IntScalar,
        batch_size: int,
        *,
        drop_last: bool = False,
        purpose: str = "batches",
        split: str = "train",
    ) -> Carry:
        n = self.count(split)
        # An empty split has no batch to take a step on.
        steps = jnp.where(n > 0, jnp.asarray(steps, jnp.int32), 0)
        # The examples of a step depend on these words and on its number alone.
        words = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        # Loops of one purpose see the same batches, and the same dropout.
        name = "dropout" if purpose == "batches" else f"dropout of {purpose}"
        dropout = self.key(name) if self.model.stochastic else None
        trace = self.trace
        work: list[StepWork] = []

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            nonlocal work
            work_before = trace.work
            trace.step = Step(
                None if dropout is None else jax.random.fold_in(dropout, index)
            )
            batch = self.batch(words, index, batch_size, n, drop_last, split)
            out = step(inner, batch, index)
            self._require_statistics(trace.step)
            # Assigned, not added: all steps count the same, and the debug executor
            # comes here in every step, a tracer only once.
            work = trace.step.work
            trace.step = None
            # A traced value from inside the loop must not leave it.
            if trace.work is not work_before:
                raise TypeError(
                    "inside LocalTrainer.loop use batch_gradient, batch_loss and draw;"
                    " whole-split passes go outside"
                )
            return out

        carry = self.repeat(steps, body, carry)
        trace.add_steps(work, examples_in_steps(steps, n, batch_size, drop_last))
        return carry

    def private_loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Any, Int[Array, ""]], Carry],
        steps: IntScalar,
        batch_size: int,
        split: str,
    ) -> Carry:
        """`carry = step(carry, None, s)` for s = 0..steps-1, counted as private steps;
        `step` draws its own batch.

        Raises:
            ValueError: private steps inside another loop.
        """
        trace = self.trace
        n = self.count(split)
        if trace.only_privately and (trace.step is not None or trace.is_repeated):
            raise ValueError(
                "this method trains several models at once, which private steps do not"
                " account for"
            )
        steps = jnp.where(n > 0, jnp.asarray(steps, jnp.int32), 0)
        carry = self.repeat(steps, lambda index, inner: step(inner, None, index), carry)
        # Only what leaves the client costs privacy, not steps on a personal model.
        if trace.only_privately:
            before = trace.private_steps
            trace.private_steps = steps if before is None else before + steps
        trace.add_work(gradients=steps * jnp.minimum(n, batch_size))
        return carry

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        trace = self.trace
        work_before = trace.work

        # The work on one element is a traced value, which must leave the mapped function
        # as an output.
        def one(arguments: tuple[Any, ...]) -> tuple[Any, Array]:
            trace.work = jnp.zeros(2, jnp.int32)
            return function(*arguments), trace.work

        with trace.repeated():
            out, work = jax.lax.map(one, rows)
        trace.work = work_before + work.sum(0)
        return out

    def fori_loop(
        self, times: IntScalar, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        trace = self.trace
        if trace.step is not None:
            return self._loop_in_step(trace.step, times, function, carry)

        # Work is a traced value inside the loop, too, and so a part of what it carries.
        def body(
            index: Int[Array, ""], carry_and_work: tuple[Carry, Array]
        ) -> tuple[Carry, Array]:
            inner, trace.work = carry_and_work
            inner = function(index, inner)
            return inner, trace.work

        with trace.repeated():
            carry, trace.work = self.repeat(
                jnp.asarray(times, jnp.int32), body, (carry, trace.work)
            )
        return carry

    def _require_statistics(self, step: Step) -> None:
        """Refuse steps that train by batch statistics and do not renew the running
        statistics, which evaluation uses.
        """
        if self.model.has_statistics and step.took_gradient and not step.renewed:
            raise ValueError(
                "this method takes steps of its own and does not renew running"
                " statistics, which this model's evaluation needs; use a model with"
                " group instead of batch normalisation"
            )

    def _loop_in_step(
        self,
        outer: Step,
        times: IntScalar,
        function: Callable[[Any, Carry], Carry],
        carry: Carry,
    ) -> Carry:
        """`fori_loop` inside a step of `loop`, whose work is listed once with the number
        of repetitions.
        """
        trace = self.trace
        work_before = len(outer.work)
        key = outer.next_key()

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            # The debug executor comes here in every pass, a tracer only once: the list
            # keeps the work of one pass.
            del outer.work[work_before:]
            # Dropout is drawn anew in each pass; batch and work are the outer step's.
            pass_key = None if key is None else jax.random.fold_in(key, index)
            trace.step = inner_step = outer.one_pass(pass_key, times)
            inner = function(index, inner)
            outer.took_gradient |= inner_step.took_gradient
            outer.renewed |= inner_step.renewed
            trace.step = outer
            return inner

        return self.repeat(jnp.asarray(times, jnp.int32), body, carry)

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        step = self.trace.step
        if step is not None:
            step.work.append(StepWork(gradients, forwards, step.repeats))

    def repeat(
        self, times: Int[Array, ""], body: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """`carry = body(k, carry)` for k = 0..times-1; the debug executor runs it step
        by step in Python.
        """
        return jax.lax.fori_loop(0, times, body, carry)

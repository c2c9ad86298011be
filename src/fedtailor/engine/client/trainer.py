"""`DeviceTrainer`: one client's training over a pool of examples on the device.

All of it is traced by JAX. During tracing, `self.context` (a `TracingContext`) records which
step is being traced and how much work it does.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from fedtailor._base.documentation import see
from fedtailor.engine.client.client_data import (
    ClientData,
    batches_in_epoch,
    examples_in_steps,
)
from fedtailor.engine.client.losses import accumulated_gradient, training_loss
from fedtailor.engine.client.passes import gradient_over_range, split_statistics
from fedtailor.engine.client.steps import train_steps
from fedtailor.engine.client.tracing_context import Step, StepWork
from fedtailor.models import Part
from fedtailor.models.metrics import Loss
from fedtailor.protocol import (
    SGD,
    Batch,
    BatchMetric,
    IntScalar,
    ModelPart,
    Params,
    Predictor,
    RefusedStatistics,
    StepGradient,
)

Carry = TypeVar("Carry")


class DeviceTrainer(ClientData):
    """One client on the device (traced).

    It implements `fedtailor.protocol.LocalTrainer`, where the methods without a
    docstring are documented.
    """

    # the whole model, as a vector
    # ----------------------------------------------------------------------------------

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        if sgd.steps is not None:
            return jnp.asarray(sgd.steps, jnp.int32)
        smallest = self.smallest_batch(sgd.batch_size, sgd.drop_last)
        return sgd.epochs * batches_in_epoch(self.size, sgd.batch_size, smallest)

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
        return train_steps(
            self,
            theta,
            sgd,
            proximal=proximal,
            linear_term=linear_term,
            gradient=gradient,
            steps=self.steps(sgd) if steps is None else steps,
            split=split,
            train_only=train_only,
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
        # This is the metric that evaluation computes, so that a method sees the same
        # numbers as a report.
        total = self.statistics(predictor, split, (Loss(),))[Loss.name]["loss"]
        return total / jnp.maximum(self.total(split), 1)

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
        # Methods take features in training mode in order to train on them.
        self.context.mark_step(has_gradient=True)
        return self.model.train_features(
            params, x, self._weight_of(x), self._training_key()
        )

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Shaped[Array, "b ..."]:
        return self.model.head_outputs(params, features)

    # steps of the method's own, on trees of parameters
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
        """The weights of inputs in batch statistics: 0 for the padding of a batch that
        the current step has drawn.
        """
        step = self.context.step
        weight = None if step is None else step.weight_of(x)
        # Inputs that the step has not drawn are the method's own, without padding.
        return jnp.ones(len(x), self.model.precision.sums) if weight is None else weight

    def _in_training_mode(self, training: bool | None) -> bool:
        """Whether to use training mode: as the method asks; by default (None) inside of
        steps only.
        """
        return self.context.step is not None if training is None else training

    def losses(
        self,
        outputs: Shaped[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"] | None = None,
    ) -> Float[Array, " b"]:
        return self.model.losses(outputs, y, weight)

    def batch_loss(self, params: Params, batch: Batch) -> Float[Array, ""]:
        loss, _ = self._training_loss(params, batch, self._training_key())
        return loss

    def _training_loss(
        self, params: Params, batch: Batch, key: Array | None
    ) -> tuple[Float[Array, ""], Params]:
        """The mean loss of a batch, and the parameters with updated running
        statistics.
        """
        self.context.mark_step(has_gradient=True)
        return training_loss(self.model, params, batch, key)

    def _training_key(self) -> Array | None:
        """A key for dropout in the current step; None outside of steps and for models
        that are not stochastic.
        """
        step = self.context.step
        return None if step is None else step.next_key()

    def batch_gradient(self, params: Params, batch: Batch) -> Params:
        grads, _ = self._gradient_and_statistics(params, batch)
        return grads

    def gradient_and_statistics(
        self, params: Params, batch: Batch
    ) -> tuple[Params, Params]:
        """`batch_gradient` and `renew_statistics` for the same parameters and batch, in
        one pass.
        """
        self.context.mark_step(updates_statistics=True)
        return self._gradient_and_statistics(params, batch)

    def _gradient_and_statistics(
        self, params: Params, batch: Batch
    ) -> tuple[Params, Params]:
        """The gradient of a batch's mean loss, and the parameters with updated running
        statistics.
        """
        self.count_work(gradients=1)
        key = self._training_key()
        # The gradient is accumulated over micro-batches if the activations of the whole
        # batch would not fit into the cache, and the batch divides evenly. Running
        # statistics need the whole batch.
        size, micro_batch = len(batch.weight), self.model.micro_batch
        if (
            micro_batch is not None
            and not self.model.has_statistics
            and size > micro_batch
            and size % micro_batch == 0
        ):
            grads = accumulated_gradient(self.model, params, batch, micro_batch, key)
            return grads, params
        return jax.grad(self._training_loss, has_aux=True)(params, batch, key)

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        if not self.model.has_statistics:
            return params
        self.context.mark_step(updates_statistics=True)
        key = self._training_key()
        _, updated = self.model.train_outputs(params, batch.x, batch.weight, key)
        return updated

    @property
    def has_statistics(self) -> bool:
        return self.model.has_statistics

    def with_statistics(self, params: Params, source: Params) -> Params:
        return self.model.with_statistics(params, source)

    def _require_statistics(self, step: Step) -> None:
        """Refuse steps that train with batch statistics and do not update the running
        statistics, which evaluation uses.
        """
        if (
            self.model.has_statistics
            and step.has_gradient
            and not step.updates_statistics
        ):
            raise RefusedStatistics(
                "this method takes steps of its own and does not renew running"
                " statistics, which this model's evaluation needs; use a model with"
                f" group instead of batch normalisation{see('errors#running-statistics')}"
            )

    # loops
    # ----------------------------------------------------------------------------------

    def loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Batch, Int[Array, ""]], Carry],
        steps: IntScalar,
        batch_size: int,
        *,
        drop_last: bool = False,
        whole: bool = False,
        purpose: str = "batches",
        split: str = "train",
    ) -> Carry:
        n = self.count(split)
        # An empty split has no batch to take a step on, and batch normalisation no
        # variance of a split of one sample.
        least = 1 if whole else 1 + self.model.has_statistics
        steps = jnp.where(n >= least, jnp.asarray(steps, jnp.int32), 0)
        smallest = 1 if whole else self.smallest_batch(batch_size, drop_last)
        # Which examples a step draws is a function of these bits and its number.
        batch_bits = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        # Loops of one purpose see the same batches, and the same dropout.
        name = "dropout" if purpose == "batches" else f"dropout of {purpose}"
        dropout_key = self.key(name) if self.model.stochastic else None

        def begin(index: Int[Array, ""]) -> Step:
            if dropout_key is None:
                return Step(None)
            return Step(jax.random.fold_in(dropout_key, index))

        def body(index: Int[Array, ""], carry: Carry) -> Carry:
            batch = self.batch(batch_bits, index, batch_size, n, smallest, split)
            return step(carry, batch, index)

        carry, one_step = self._repeat_step(steps, begin, body, carry)
        self._require_statistics(one_step)
        examples = examples_in_steps(steps, n, batch_size, smallest)
        self.context.add_steps(one_step.work, examples)
        return carry

    def _repeat_step(
        self,
        times: Int[Array, ""],
        begin: Callable[[Int[Array, ""]], Step],
        body: Callable[[Int[Array, ""], Carry], Carry],
        carry: Carry,
    ) -> tuple[Carry, Step]:
        """Compute `carry = body(k, carry)` for k = 0..times-1, where `begin(k)` is the
        record of step k.

        Returns:
            The last carry, and the record of one step, which stands for all steps: they
            make the same passes over their batches. (A compiled loop traces one step; the
            debug executor records every step, and the last record is returned.)
        """
        one_step = Step(None)

        def recorded(index: Int[Array, ""], carry: Carry) -> Carry:
            # JAX traces this function, so the record leaves it by an assignment: a loop
            # could only return arrays.
            nonlocal one_step
            one_step = begin(index)
            with self.context.override(step=one_step):
                return body(index, carry)

        carry = self.repeat(times, recorded, carry)
        return carry, one_step

    def private_loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Int[Array, ""]], Carry],
        steps: IntScalar,
        batch_size: int,
        split: str,
    ) -> Carry:
        """Compute `carry = step(carry, s)` for s = 0..steps-1, where each step is private
        (see `PrivateSteps`) and draws its own examples.

        Raises:
            ValueError: inside of a step, `map` or `fori_loop`.
        """
        context = self.context
        n = self.count(split)
        # Steps cost privacy if their result leaves the client. Training a personal model
        # costs none.
        costs_privacy = context.private_steps_only
        # In a repeated loop each repetition trains one model, and the steps would be
        # counted for one of these models only.
        is_repeated = context.step is not None or context.is_repeated
        if costs_privacy and is_repeated:
            raise ValueError(
                "this method trains several models at once, which private steps do not"
                " account for"
            )
        # An empty split has no example to take a step on.
        steps = jnp.where(n > 0, jnp.asarray(steps, jnp.int32), 0)
        carry = self.repeat(steps, lambda index, carry: step(carry, index), carry)
        if costs_privacy:
            steps_before = context.private_steps_taken
            context.private_steps_taken = (
                steps if steps_before is None else steps_before + steps
            )
        context.add_work(gradients=steps * jnp.minimum(n, batch_size))
        return carry

    # In `map` and `fori_loop` the work of a repetition is a traced value inside of the
    # repeated function. So that function has to return it.

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        context = self.context

        def with_work(arguments: tuple[Any, ...]) -> tuple[Any, Int[Array, " 2"]]:
            no_work = jnp.zeros(2, jnp.int32)
            with context.override(work=no_work, is_repeated=True):
                out = function(*arguments)
                return out, context.work

        out, work_of_each = jax.lax.map(with_work, rows)
        context.add_counts(work_of_each.sum(0))
        return out

    def fori_loop(
        self, times: IntScalar, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        context = self.context
        if context.step is not None:
            return self._fori_loop_in_step(context.step, times, function, carry)

        def with_work(
            index: Int[Array, ""], carry_and_work: tuple[Carry, Int[Array, " 2"]]
        ) -> tuple[Carry, Int[Array, " 2"]]:
            carry, work = carry_and_work
            with context.override(work=work, is_repeated=True):
                carry = function(index, carry)
                return carry, context.work

        times = jnp.asarray(times, jnp.int32)
        carry, work = self.repeat(times, with_work, (carry, context.work))
        context.work = work
        return carry

    def _fori_loop_in_step(
        self,
        step: Step,
        times: IntScalar,
        function: Callable[[Any, Carry], Carry],
        carry: Carry,
    ) -> Carry:
        """`fori_loop` inside a step of `loop`: several passes over the step's batch,
        each with dropout of its own.
        """
        key = step.next_key()

        def begin(index: Int[Array, ""]) -> Step:
            pass_key = None if key is None else jax.random.fold_in(key, index)
            return step.begin_pass(pass_key, times)

        carry, one_pass = self._repeat_step(
            jnp.asarray(times, jnp.int32), begin, function, carry
        )
        step.end_passes(one_pass)
        return carry

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        step = self.context.step
        if step is not None:
            step.work.append(StepWork(gradients, forwards, step.repeats))

    def count_passes(self, gradients: IntScalar = 0, forwards: IntScalar = 0) -> None:
        self.context.add_work(gradients, forwards)

    def repeat(
        self, times: Int[Array, ""], body: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """Compute `carry = body(k, carry)` for k = 0..times-1. The debug executor does it
        step by step in Python.
        """
        return jax.lax.fori_loop(0, times, body, carry)

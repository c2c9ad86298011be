"""The executor of models that PyTorch itself trains: one client after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32
from numpy.typing import NDArray

from fedtailor._documentation import see
from fedtailor.client.client_data import batches_in_epoch, examples_in_steps
from fedtailor.client.losses import outputs
from fedtailor.client.passes import BLOCK
from fedtailor.client.pool import gather_examples
from fedtailor.client.shuffle import shuffled
from fedtailor.client.tasks import Outputs
from fedtailor.executors.debug import DebugExecutor, DebugTrainer
from fedtailor.executors.devices import ExchangeRequest
from fedtailor.executors.settings import Settings
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.models.pytorch import LiveModule, NotDifferentiable, TorchEngine
from fedtailor.protocol import (
    SGD,
    Batch,
    BatchMetric,
    Diverged,
    IntScalar,
    ModelPart,
    Predictor,
    StepGradient,
    is_off,
    next_power_of_two,
)

compiled = partial(jax.disable_jit, disable=False)
"""Turns compilation on again for code that does not call the model, because the executor
turns it off for everything else.
"""


class TorchTrainer(DebugTrainer):
    """`DebugTrainer` whose plain SGD is a PyTorch loop over the same batches as in all other
    executors.

    For everything else that a method does with the model, JAX computes losses and
    gradients through `TorchEngine`.
    """

    def __init__(self, *arguments: Any, name: str, every_step: bool) -> None:
        super().__init__(*arguments, name=name)
        self._every_step = every_step

    def key(self, purpose: str) -> Array:
        with compiled():
            return super().key(purpose)

    def examples(
        self, indices: Int[Array, " b"], weight: Shaped[Array, " b"], split: str
    ) -> Batch:
        with compiled():
            return super().examples(indices, weight, split)

    def _gather(
        self, pool_rows: Int[Array, " b"]
    ) -> tuple[Shaped[Array, "b ..."], Shaped[Array, "b ..."]]:
        return _gather(self.pool, pool_rows)

    def batch(self, *arguments: Any, **named: Any) -> Batch:
        with compiled():
            return super().batch(*arguments, **named)

    # local training
    # ----------------------------------------------------------------------------------

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
        is_plain = gradient is None and sgd.optimizer is None and sgd.dp_noise is None
        if not is_plain:
            return super().sgd(
                theta,
                sgd,
                proximal=proximal,
                linear_term=linear_term,
                gradient=gradient,
                steps=steps,
                split=split,
                train_only=train_only,
            )
        # The parameters are copied into PyTorch's vector, updated there by all steps, and
        # copied back at the end.
        n = int(self.count(split))
        times = int(self.steps(sgd) if steps is None else steps)
        # As in `loop`.
        if n < 1 + self.model.has_statistics:
            times = 0
        live = self._engine.live(self.model.precision.compute)
        live.set(np.asarray(theta))
        descent = Descent(
            live,
            sgd,
            sgd.rate(self.round),
            self._penalty(sgd),
            proximal,
            linear_term,
            train_only,
        )
        has_modes = self.model.stochastic or self.model.has_statistics
        mode = "training" if has_modes else "evaluation"
        padded_size = self.padded_size(sgd.batch_size)
        for step, (x, y, words) in enumerate(self._host_batches(n, times, sgd, split)):
            # PyTorch's backward pass starts from the derivatives of the loss with respect
            # to the outputs. JAX computes these: the loss is a JAX function.
            predicted = live.forward(live.inputs(x), mode, words)
            self.model.require_outputs(predicted.shape, len(x))
            output_grads = output_gradients(
                self.model, predicted.detach().numpy(), y, padded_size
            )
            descent.step(live.backward(predicted, output_grads))
            if self._every_step and not bool(live.theta.isfinite().all()):
                raise Diverged(self.name, int(self.round), step=step)
        with compiled():
            examples = examples_in_steps(
                jnp.int32(times),
                jnp.int32(n),
                sgd.batch_size,
                self.smallest_batch(sgd.batch_size, sgd.drop_last),
            )
            self.context.add_work(gradients=examples)
        return jnp.asarray(live.theta.numpy().copy())

    def _penalty(self, sgd: SGD) -> NDArray[Any] | None:
        """The coefficient of each parameter [d] in the gradient of the L2 terms; None =
        there are none.
        """
        if not sgd.has_penalty:
            return None
        with compiled():
            ones = self.model.params(
                jnp.ones(self.model.size, self.model.precision.parameters)
            )
            coefficients = jax.tree.map(
                lambda w: w * sgd.penalty(w.ndim, int(self.size)), ones
            )
            return np.asarray(self.model.vector(coefficients))

    def _host_batches(
        self, n: int, times: int, sgd: SGD, split: str
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32] | None]]:
        """The batches that `loop` draws, without their padding.

        Yields:
            Inputs, targets and random words of each step.
        """
        if not times:
            return
        # Powers of two, so that few numbers of examples and steps compile programs.
        indices = np.arange(next_power_of_two(n), dtype=np.int32).clip(max=n - 1)
        all_examples = self.examples(
            jnp.asarray(indices), jnp.ones(len(indices)), split
        )
        x, y = np.asarray(all_examples.x)[:n], np.asarray(all_examples.y)[:n]
        with compiled():
            order_words = jax.random.bits(self.key("batches"), (2,), jnp.uint32)
            words = None
            if self.model.stochastic:
                words = np.asarray(
                    _step_words(self.key("dropout"), next_power_of_two(times))
                )
        smallest = self.smallest_batch(sgd.batch_size, sgd.drop_last)
        batches = int(batches_in_epoch(jnp.int32(n), sgd.batch_size, smallest))
        order = indices
        for step in range(times):
            epoch, number = divmod(step, batches)
            if number == 0:
                with compiled():
                    order = np.asarray(
                        shuffled(indices, jnp.int32(n), order_words, jnp.int32(epoch))
                    )[:n]
            batch = order[number * sgd.batch_size : (number + 1) * sgd.batch_size]
            yield x[batch], y[batch], None if words is None else words[step]

    # measures
    # ----------------------------------------------------------------------------------

    def statistics(
        self, predictor: Predictor, split: str, metrics: Sequence[BatchMetric]
    ) -> dict[str, dict[str, Array]]:
        count = int(self.count(split))
        is_theta = getattr(predictor, "shape", None) == (self.model.size,)
        predict = (
            self._predict(np.asarray(predictor))
            if is_theta
            else outputs(self.model, predictor)
        )
        total = None
        # An empty split is one block of padding, which gives sums of the right shapes.
        block = min(next_power_of_two(count), BLOCK)
        for first in range(0, max(count, 1), block):
            indices = first + np.arange(block, dtype=np.int32)
            weight = jnp.asarray(indices < count)
            clipped = indices.clip(0, max(count - 1, 0))
            batch = self.examples(jnp.asarray(clipped), weight, split)
            predicted = predict(batch.x)
            with compiled():
                total = _add_statistics(
                    self.model, tuple(metrics), predicted, batch, total
                )
        self.context.add_work(forwards=count)
        assert total is not None
        return total

    def _predict(self, theta: NDArray[Any]) -> Callable[[Array], Array]:
        """One model as a function of inputs. The parameters are set once, and not by JAX,
        for which each of them is an array.
        """
        live = self._engine.live(self.model.precision.compute)
        live.set(theta)

        def predict(x: Array) -> Array:
            predicted = live.predict(np.asarray(x))
            self.model.require_outputs(predicted.shape, len(x))
            return jnp.asarray(predicted)

        return predict

    @property
    def _engine(self) -> TorchEngine:
        assert isinstance(self.model.architecture, TorchEngine)
        return self.model.architecture

    def _check(self, carry: Any, step: int) -> None:
        if self._every_step:
            super()._check(carry, step)


class Descent:
    """Steps of SGD on the parameters of a `LiveModule`, as
    `fedtailor.client.steps.train_steps` takes them.
    """

    def __init__(
        self,
        live: LiveModule,
        sgd: SGD,
        rate: Any,
        penalty: NDArray[Any] | None,
        proximal: tuple[Any, Any] | None,
        linear_term: Any,
        train_only: ModelPart | None,
    ) -> None:
        """Start from the parameters of `live`.

        Args:
            penalty: [d] the coefficient of w in the gradient of the L2 terms; None = there
                are none. For the other arguments see `LocalTrainer.sgd`.
        """
        self._live = live
        self._rate = float(rate)
        self._penalty = None if penalty is None else live.inputs(penalty)
        self._momentum = None if is_off(sgd.momentum) else float(sgd.momentum)
        self._velocity = None
        if self._momentum is not None:
            self._velocity = live.theta.new_zeros(live.theta.shape)
        self._proximal = None
        if proximal is not None:
            mu, anchor = proximal
            # The place of the difference from the anchor.
            room = live.theta.new_empty(live.theta.shape)
            self._proximal = (float(mu), live.inputs(np.asarray(anchor)), room)
        self._linear_term = (
            None if linear_term is None else live.inputs(np.asarray(linear_term))
        )
        self._frozen = []
        if train_only is not None:
            for start, end in train_only.complement.slices:
                values = live.theta[start:end].clone()
                self._frozen.append((slice(start, end), values))

    def step(self, gradient: Any) -> None:
        """Update w = w - rate v, where v is the gradient [d] with all other terms added,
        or its momentum. Frozen entries do not change.

        Everything is done in place: in large models a new array of d numbers takes as long
        as a part of the backward pass.
        """
        live = self._live
        if self._penalty is not None:
            gradient.addcmul_(self._penalty, live.theta)
        if self._proximal is not None:
            mu, anchor, room = self._proximal
            gradient.add_(room.copy_(live.theta).sub_(anchor), alpha=mu)
        if self._linear_term is not None:
            gradient.add_(self._linear_term)
        # The terms must not change running statistics, which the pass has updated.
        for statistic in live.statistics:
            gradient[statistic].zero_()
        for frozen, _ in self._frozen:
            gradient[frozen].zero_()
        if self._velocity is not None:
            gradient = self._velocity.mul_(self._momentum).add_(gradient)
        live.theta.sub_(gradient, alpha=self._rate)
        # This also restores the running statistics of frozen layers.
        for frozen, values in self._frozen:
            live.theta[frozen].copy_(values)


class TorchExecutor(DebugExecutor):
    """`DeviceExecutor` for models that PyTorch itself trains. With `Settings.debug` it
    checks for NaN after every step.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        **options: Any,
    ) -> None:
        """As for `DeviceExecutor`, with one device, which trains one client at a time."""
        super().__init__(
            federation, model, replace(settings, devices=1, chunk=None), **options
        )

    def _trainer(self, name: str) -> Any:
        return partial(TorchTrainer, name=name, every_step=self.settings.debug)

    def _run(self, request: ExchangeRequest) -> Outputs:
        try:
            return super()._run(request)
        except TypeError as error:
            # For Hessian-vector products JAX raises an error of its own, which says that
            # `custom_vjp` has no forward mode.
            if not isinstance(error, NotDifferentiable) and "custom_vjp" not in str(
                error
            ):
                raise
            method = request.exchange.algorithm.about.name
            raise ValueError(
                f"{method} needs derivatives of the model's gradients (jax.jvp), which"
                " a module that PyTorch itself trains does not give; choose another"
                " variant or method, or a module that from_torch converts"
                f"{see('models-pytorch#what-cannot-be-converted')}"
            ) from None


def output_gradients(
    model: Model, outputs: NDArray[Any], y: NDArray[Any], batch_size: int
) -> NDArray[Any]:
    """The gradient of a batch's mean loss with respect to its outputs [b, ...]. One program
    serves all b up to `batch_size`.
    """
    count = len(outputs)
    padding = [(0, batch_size - count)]
    outputs = np.pad(outputs, padding + [(0, 0)] * (outputs.ndim - 1))
    y = np.pad(y, padding + [(0, 0)] * (y.ndim - 1))
    with compiled():
        return np.asarray(_output_gradients(model, outputs, y, count))[:count]


@partial(jax.jit, static_argnums=0)
def _output_gradients(model: Model, outputs: Array, y: Array, count: Any) -> Array:
    weight = (jnp.arange(len(outputs)) < count).astype(outputs.dtype)

    def loss(outputs: Array) -> Array:
        return jnp.vdot(model.losses(outputs, y, weight), weight) / jnp.asarray(
            count, outputs.dtype
        )

    return jax.grad(loss)(outputs)


@partial(jax.jit, static_argnums=(0, 1))
def _add_statistics(
    model: Model,
    metrics: tuple[BatchMetric, ...],
    outputs: Array,
    batch: Batch,
    total: Any,
) -> Any:
    """Add the statistics of one more batch to `total`; None = there is no total yet."""
    new = {
        metric.name: metric.statistic(model, outputs, batch.y, batch.weight)
        for metric in metrics
    }
    return new if total is None else jax.tree.map(jnp.add, total, new)


@partial(jax.jit, static_argnums=1)
def _step_words(key: Array, steps: int) -> UInt32[Array, "steps 2"]:
    """The random words that `loop` uses for a model's dropout in each step."""
    return jax.vmap(lambda step: jax.random.key_data(jax.random.fold_in(key, step)))(
        jnp.arange(steps)
    )


_gather = jax.jit(gather_examples)

"""How one client learns: `LocalTrainer` over a pool of examples on the device."""

import copy
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped, UInt32

from fedtailor.client.losses import mean_loss, outputs, training_loss
from fedtailor.client.pool import SPLITS, ClientAddress, Pool, model_input
from fedtailor.client.shuffle import shuffled
from fedtailor.client.steps import train
from fedtailor.metrics import Loss, add_statistics, zero_statistic
from fedtailor.models import Model, Part
from fedtailor.protocol import SGD, Batch, BatchMetric, ModelPart, Params, Predictor, StepGradient

Carry = TypeVar("Carry")

PASS_BATCH = 128
"""Samples at a time in passes over a whole split (full gradients, losses, evaluation)."""


Work = tuple[int, int, tuple[Any, ...]]
"""Gradients and forward passes that a step counts, and how often the loops they stand in repeat them."""


@dataclass(frozen=True)
class Permutation:
    """A named order of n positions, of which a client (or a part of it) sees those from `first` on."""

    words: UInt32[Array, " 2"]
    n: Int[Array, ""]
    first: Int[Array, ""]

    def __call__(self, positions: Int[Array, " b"]) -> Int[Array, " b"]:
        return shuffled(jnp.minimum(self.first + positions, self.n - 1), self.n, self.words, jnp.int32(0))


class Step:
    """What a step of `loop` knows while it is traced.

    Attributes:
        key: the randomness of the step, for models that need some.
        batches: the inputs that the step has drawn, with their weights.
        took_gradient, renewed: whether it has trained a model, and whether it has renewed running statistics.
    """

    def __init__(self, key: Array | None) -> None:
        self.key, self.draws = key, 0
        self.batches: list[Batch] = []
        self.took_gradient = self.renewed = False

    def next_key(self) -> Array | None:
        """A key for one more use of randomness in this step."""
        self.draws += 1
        return self.key if self.key is None or self.draws == 1 else jax.random.fold_in(self.key, self.draws - 1)

    def weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"] | None:
        """The weights of inputs that the step has drawn."""
        return next((batch.weight for batch in self.batches if batch.x is x), None)


class DeviceTrainer:
    """One client on the device (implements `fedtailor.protocol.LocalTrainer`; traced).

    Work done is counted in `work` [2] int32: gradients and forward passes of single examples.
    """

    def __init__(self, model: Model, pool: Pool, address: ClientAddress, round: Int[Array, ""]) -> None:
        self.model, self.pool, self.address, self.round = model, pool, address, round
        self.size = address.size[0]
        self.work: Int[Array, " 2"] = jnp.zeros(2, jnp.int32)
        self.evaluating = False  # only an evaluation may read test rows
        self._views: tuple[Permutation, ...] = ()
        self._in_step: list[Work] | None = None
        self._step: Step | None = None
        self._enclosing: tuple[Any, ...] = ()
        self._root: DeviceTrainer = self

    # data ---------------------------------------------------------------------------------------------------------

    def key(self, purpose: str) -> Array:
        return _named(self.address.key, purpose)

    def count(self, split: str) -> Int[Array, ""]:
        self._require_open(split)
        return self.size if split == "train" else self.address.size[SPLITS.index(split)]

    def part(self, first: Any, end: Any, purpose: str) -> "DeviceTrainer":
        part = copy.copy(self)
        words = jax.random.bits(_named(self.address.fixed, purpose), (2,), jnp.uint32)
        part._views = (*self._views, Permutation(words, self.size, jnp.asarray(first, jnp.int32)))
        part.size = jnp.maximum(jnp.asarray(end, jnp.int32) - jnp.asarray(first, jnp.int32), 0)
        return part

    def _require_open(self, split: str) -> None:
        """Keep methods away from the rows that they are measured on."""
        if split not in SPLITS or (split == "test" and not self._root.evaluating):
            raise ValueError(f"a method asks for the split {split!r}; it may look at 'train' and 'val' only")

    def in_round(self, round: Any) -> "DeviceTrainer":
        there = copy.copy(self)
        there.round = jnp.asarray(round, jnp.int32)
        key = jax.random.fold_in(jax.random.wrap_key_data(self.address.key, impl="threefry2x32"), there.round)
        there.address = replace(self.address, key=jax.random.key_data(key))
        return there

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        return model_input(self.pool, x)

    def examples(self, positions: Int[Array, " b"], weight: Shaped[Array, " b"], split: str) -> Batch:
        """The examples at positions (0-based, below the split's size) of a split."""
        self._require_open(split)
        if split == "train":
            for view in reversed(self._views):
                positions = view(positions)
        rows = self.pool.rows[self.address.start[SPLITS.index(split)] + positions]
        batch = Batch(self.inputs(self.pool.x[rows]), self.pool.y[rows], weight.astype(self.model.dtype))
        if self._root._step is not None:
            self._root._step.batches.append(batch)
        return batch

    def draw(self, purpose: str, step: Any, batch_size: int, *, split: str = "train", drop_last: bool = False) -> Batch:
        n = self.count(split)
        words = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        return self._batch(words, jnp.asarray(step, jnp.int32), batch_size, n, drop_last, split)

    def _batch(
        self, words: Array, step: Int[Array, ""], batch_size: int, n: Int[Array, ""], drop_last: bool, split: str
    ) -> Batch:
        batches = _batches(n, batch_size, drop_last)
        epoch = jax.lax.div(step, batches)  # `//` would round downwards: three kernels more in every step
        positions = (step - epoch * batches) * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        order = shuffled(jnp.clip(positions, 0, n - 1), n, words, epoch)
        return self.examples(order, positions < n, split)

    # work on vectors ------------------------------------------------------------------------------------------------

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        if sgd.steps is not None:
            return jnp.asarray(sgd.steps, jnp.int32)
        return sgd.epochs * _batches(self.size, sgd.batch_size, sgd.drop_last)

    def sgd(
        self,
        theta: Float[Array, " d"],
        sgd: SGD,
        *,
        pull: tuple[Any, Float[Array, " d"]] | None = None,
        drift: Float[Array, " d"] | None = None,
        gradient: StepGradient | None = None,
        steps: Int[Array, ""] | int | None = None,
        split: str = "train",
        train_only: ModelPart | None = None,
    ) -> Float[Array, " d"]:
        steps = self.steps(sgd) if steps is None else steps
        return train(self, theta, sgd, pull, drift, gradient, steps, split, train_only)

    def gradient(
        self, theta: Float[Array, " d"], first: Any = 0, end: Any = None, *, purpose: str | None = None
    ) -> Float[Array, " d"]:
        first = jnp.asarray(first, jnp.int32)
        count = (self.size if end is None else jnp.asarray(end, jnp.int32)) - first
        view = self if purpose is None else self.part(0, self.size, purpose)
        params = self.params(theta)

        def add(index: Int[Array, ""], total: Params) -> Params:
            positions = index * PASS_BATCH + jnp.arange(PASS_BATCH, dtype=jnp.int32)
            inside = positions < count
            batch = view.examples(jnp.clip(first + positions, 0, self.size - 1), inside, "train")
            part = jax.grad(lambda p: mean_loss(self.model, p, batch, count))(params)
            return jax.tree.map(jnp.add, total, part)

        self._add(gradients=jnp.maximum(count, 0))
        zero = jax.tree.map(jnp.zeros_like, params)
        return self.vector(self._repeat(_passes(count), add, zero))

    def loss(self, predictor: Predictor, split: str = "train") -> Float[Array, ""]:
        total = self.statistics(predictor, split, (Loss(),))[Loss.name]["loss"]
        return total / jnp.maximum(self.count(split), 1)

    def statistics(
        self, predictor: Predictor, split: str, metrics: Sequence[BatchMetric]
    ) -> dict[str, dict[str, Array]]:
        """The sums of metrics over a split, in evaluation mode: metric's name -> its statistic."""
        count = self.count(split)
        predict = outputs(self.model, predictor)

        def of_batch(index: Int[Array, ""]) -> dict[str, dict[str, Array]]:
            positions = index * PASS_BATCH + jnp.arange(PASS_BATCH, dtype=jnp.int32)
            batch = self.examples(jnp.clip(positions, 0, count - 1), positions < count, split)
            out = predict(batch.x)
            return {metric.name: metric.statistic(self.model, out, batch.y, batch.weight) for metric in metrics}

        self._add(forwards=count)
        zero = zero_statistic(of_batch, jnp.int32(0))
        return self._repeat(_passes(count), lambda index, total: add_statistics(total, of_batch(index)), zero)

    # parts of the model ---------------------------------------------------------------------------------------------

    @property
    def parts_of_model(self) -> tuple[str, ...]:
        return self.model.parts

    def part_of_model(self, name: str) -> Part:
        return self.model.part(name)

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Float[Array, "b ..."]:
        step = self._root._step
        if not (step is not None if training is None else training):
            return self.model.features(params, x)
        if step is not None:
            step.took_gradient = True  # or will: batch statistics are for training
        return self.model.train_features(params, x, self._weight_of(x), self._training_key())

    def head_outputs(self, params: Params, features: Float[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        return self.model.head_outputs(params, features)

    # steps of a method's own ---------------------------------------------------------------------------------------

    def params(self, theta: Float[Array, " d"]) -> Params:
        return self.model.params(theta)

    def vector(self, params: Params) -> Float[Array, " d"]:
        return self.model.vector(params)

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Shaped[Array, "b ..."]:
        step = self._root._step
        if not (step is not None if training is None else training):
            return self.model.logits(params, x)
        return self.model.train_outputs(params, x, self._weight_of(x), self._training_key())[0]

    def _weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        """Which rows of inputs are no padding: 1 for all that are no batch of the present step."""
        step = self._root._step
        weight = None if step is None else step.weight_of(x)
        return jnp.ones(len(x), self.model.dtype) if weight is None else weight

    def losses(self, outputs: Shaped[Array, "b ..."], y: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        return self.model.losses(outputs, y)

    def batch_loss(self, params: Params, batch: Batch, key: Array | None = None) -> Float[Array, ""]:
        return self._training_loss(params, batch, self._training_key() if key is None else key)[0]

    def _training_loss(self, params: Params, batch: Batch, key: Array | None) -> tuple[Float[Array, ""], Params]:
        if self._root._step is not None:
            self._root._step.took_gradient = True
        return training_loss(self.model, params, batch, key)

    def _training_key(self) -> Array | None:
        step = self._root._step
        return None if step is None else step.next_key()

    def batch_gradient(self, params: Params, batch: Batch, key: Array | None = None) -> Params:
        return self._gradient_and_statistics(params, batch, key)[0]

    def gradient_and_statistics(self, params: Params, batch: Batch) -> tuple[Params, Params]:
        """`batch_gradient` and `renew_statistics` of the same parameters and batch, in one pass."""
        self._mark_renewed()
        return self._gradient_and_statistics(params, batch)

    def _gradient_and_statistics(self, params: Params, batch: Batch, key: Array | None = None) -> tuple[Params, Params]:
        self.count_work(gradients=1)
        key = self._training_key() if key is None else key
        size, micro = batch.weight.shape[0], self.model.micro_batch
        if self.model.has_statistics:
            return jax.grad(self._training_loss, has_aux=True)(params, batch, key)
        if micro is None or size <= micro or size % micro:
            return jax.grad(self.batch_loss)(params, batch, key), params
        count = batch.weight.sum()
        parts = jax.tree.map(lambda leaf: leaf.reshape(size // micro, micro, *leaf.shape[1:]), batch)

        def add(total: Params, part: Batch) -> tuple[Params, None]:
            gradient = jax.grad(lambda p: mean_loss(self.model, p, part, count, key))(params)
            return jax.tree.map(jnp.add, total, gradient), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0], params

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        """The parameters with the running statistics that a training step on a batch leaves; all else is as given."""
        if not self.model.has_statistics:
            return params
        self._mark_renewed()
        return self.model.train_outputs(params, batch.x, batch.weight, self._training_key())[1]

    @property
    def has_statistics(self) -> bool:
        return self.model.has_statistics

    def with_statistics(self, params: Params, source: Params) -> Params:
        return self.model.with_statistics(params, source) if self.model.has_statistics else params

    def _mark_renewed(self) -> None:
        if self._root._step is not None:
            self._root._step.renewed = True

    def loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Batch, Int[Array, ""]], Carry],
        steps: Int[Array, ""] | int,
        batch_size: int,
        *,
        drop_last: bool = False,
        purpose: str = "batches",
        split: str = "train",
    ) -> Carry:
        n = self.count(split)
        steps = jnp.where(n > 0, jnp.asarray(steps, jnp.int32), 0)
        words = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        root, counted = self._root, list[Work]()
        # Every loop of one purpose drops out alike in a step, as it sees the same batch.
        name = "dropout" if purpose == "batches" else f"dropout of {purpose}"
        dropout = self.key(name) if self.model.stochastic else None

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            before, root._in_step = root.work, counted
            counted.clear()
            root._step = Step(None if dropout is None else jax.random.fold_in(dropout, index))
            out = step(inner, self._batch(words, index, batch_size, n, drop_last, split), index)
            self._require_statistics(root._step)
            root._in_step = root._step = None
            if root.work is not before:
                raise TypeError(
                    "inside Local.loop use batch_gradient, batch_loss and draw; whole-split passes go outside"
                )
            return out

        carry = self._repeat(steps, body, carry)
        batches = _batches(n, batch_size, drop_last)
        epochs = steps // batches
        examples = epochs * jnp.minimum(n, batches * batch_size) + jnp.minimum(
            (steps - epochs * batches) * batch_size, n
        )
        self._add(
            gradients=examples * sum(math.prod(times, start=gradients) for gradients, _, times in counted),
            forwards=examples * sum(math.prod(times, start=forwards) for _, forwards, times in counted),
        )
        return carry

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        root = self._root
        outer = root.work

        def one(arguments: tuple[Any, ...]) -> tuple[Any, Array]:
            root.work = jnp.zeros(2, jnp.int32)
            return function(*arguments), root.work

        out, work = self._map(one, rows)
        root.work = outer + work.sum(0)
        return out

    def fori_loop(self, times: Int[Array, ""] | int, function: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        root = self._root
        if root._in_step is not None:
            return self._loop_in_step(root._in_step, times, function, carry)

        def body(index: Int[Array, ""], both: tuple[Carry, Array]) -> tuple[Carry, Array]:
            inner, root.work = both
            inner = function(index, inner)
            return inner, root.work

        carry, root.work = self._repeat(jnp.asarray(times, jnp.int32), body, (carry, root.work))
        return carry

    def _require_statistics(self, step: Step) -> None:
        """Refuse to train by batch statistics without renewing those that evaluation uses."""
        if self.model.has_statistics and step.took_gradient and not step.renewed:
            raise ValueError(
                "this method takes steps of its own and does not renew running statistics, which this model's "
                "evaluation needs; use a model with group instead of batch normalisation"
            )

    def _loop_in_step(
        self, counted: list[Work], times: Int[Array, ""] | int, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        root, done = self._root, len(counted)

        outer = root._step
        assert outer is not None
        key = outer.next_key()

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            del counted[done:]  # the debug engine comes here every time, a tracer once
            root._step = Step(None if key is None else jax.random.fold_in(key, index))
            root._step.batches = outer.batches
            inner = function(index, inner)
            outer.took_gradient |= root._step.took_gradient
            outer.renewed |= root._step.renewed
            root._step = outer
            return inner

        root._enclosing = (*root._enclosing, times)
        carry = self._repeat(jnp.asarray(times, jnp.int32), body, carry)
        root._enclosing = root._enclosing[:-1]
        return carry

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        root = self._root
        if root._in_step is not None:
            root._in_step.append((gradients, forwards, root._enclosing))

    def _add(self, gradients: Any = 0, forwards: Any = 0) -> None:
        work = jnp.stack([jnp.asarray(gradients, jnp.int32), jnp.asarray(forwards, jnp.int32)])
        self._root.work = self._root.work + work

    def _repeat(self, times: Int[Array, ""], body: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        return jax.lax.fori_loop(0, times, body, carry)

    def _map(self, function: Callable[[Any], Any], rows: Any) -> Any:
        return jax.lax.map(function, rows)


def _batches(n: Int[Array, ""], batch_size: int, drop_last: bool = False) -> Int[Array, ""]:
    """Mini-batches in an epoch over n samples, at least 1 (a client smaller than a batch keeps it)."""
    return jnp.maximum(n // batch_size if drop_last else (n + batch_size - 1) // batch_size, 1)


def _passes(n: Int[Array, ""]) -> Int[Array, ""]:
    """Batches of a pass over n samples: none where there are none."""
    return (n + PASS_BATCH - 1) // PASS_BATCH


def _named(raw: UInt32[Array, " 2"], purpose: str) -> Array:
    return jax.random.fold_in(jax.random.wrap_key_data(raw, impl="threefry2x32"), zlib.crc32(purpose.encode()))

"""How one client learns: `LocalTrainer` over a pool of examples on the device."""

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped, UInt32

from fedtailor.client.losses import mean_loss, outputs, training_loss
from fedtailor.client.pool import SPLITS, ClientAddress, Pool, gathered, model_input
from fedtailor.client.shuffle import shuffled
from fedtailor.client.steps import train
from fedtailor.metrics import Loss, add_statistics, zero_statistic
from fedtailor.models import Model, Part
from fedtailor.protocol import SGD, Batch, BatchMetric, ModelPart, Params, Predictor, StepGradient

Carry = TypeVar("Carry")

PASS_BATCH = 128
"""Samples at a time in passes over a whole split (full gradients, losses, evaluation)."""

Count = Int[Array, ""] | int
"""A number that may be traced."""

Work = tuple[int, int, tuple[Count, ...]]
"""Gradients and forward passes that a step counts, and how often each loop around them repeats them."""


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
        self.key = key
        self.batches: list[Batch] = []
        self.took_gradient = False
        self.renewed = False
        self._draws = 0

    def next_key(self) -> Array | None:
        """A key for one more use of randomness in this step; None for models that need none."""
        self._draws += 1
        # Nearly all steps draw once, and then save the work of folding a number in.
        if self.key is None or self._draws == 1:
            return self.key
        return jax.random.fold_in(self.key, self._draws - 1)

    def weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"] | None:
        """The weights of inputs that the step has drawn; None for other inputs."""
        return next((batch.weight for batch in self.batches if batch.x is x), None)


class DeviceTrainer:
    """One client on the device (implements `fedtailor.protocol.LocalTrainer`; traced).

    Attributes:
        model: what is trained.
        pool: the examples of all clients.
        address: where this client's are.
        round: the round (0-based).
        size: training samples.
        work: [2] gradients and forward passes of single examples done so far.
        evaluating: whether test rows may be read.
    """

    def __init__(self, model: Model, pool: Pool, address: ClientAddress, round: Int[Array, ""]) -> None:
        self.model, self.pool, self.address, self.round = model, pool, address, round
        self.size = address.size[0]
        self.work: Int[Array, " 2"] = jnp.zeros(2, jnp.int32)
        self.evaluating = False
        # What narrows the training samples down; see `part`.
        self._views: tuple[Permutation, ...] = ()
        # A view of the client (`part`, `in_round`) is a copy that counts its work, and what a step of `loop` has done,
        # on the trainer that it is a view of.
        self._root: DeviceTrainer = self
        # While a step of `loop` is traced: what it knows, what it has counted, and how often the loops inside it
        # repeat what is traced now.
        self._step: Step | None = None
        self._in_step: list[Work] | None = None
        self._enclosing: tuple[Count, ...] = ()
        self.guarded = False  # whether examples may be read by private steps only
        self.private_steps: Int[Array, ""] | None = None  # how many were taken
        self._private_loops = 0
        self._mapped = False  # whether what is traced is repeated by `map` or `fori_loop`

    # data ---------------------------------------------------------------------------------------------------------

    def key(self, purpose: str) -> Array:
        return _named(self.address.key, purpose)

    def count(self, split: str) -> Int[Array, ""]:
        self._require_open(split)
        return self.size if split == "train" else self.address.size[SPLITS.index(split)]

    def part(self, first: Any, end: Any, purpose: str) -> "DeviceTrainer":
        first = jnp.asarray(first, jnp.int32)
        end = jnp.asarray(end, jnp.int32)
        # The key of all rounds, so that a part holds the same samples in every round.
        words = jax.random.bits(_named(self.address.fixed, purpose), (2,), jnp.uint32)
        part = copy.copy(self)
        part._views = (*self._views, Permutation(words, self.size, first))
        part.size = jnp.maximum(end - first, 0)
        return part

    def _require_open(self, split: str) -> None:
        """Keep methods away from the rows that they are measured on."""
        if split not in SPLITS or (split == "test" and not self._root.evaluating):
            raise ValueError(f"a method asks for the split {split!r}; it may look at 'train' and 'val' only")

    def in_round(self, round: Any) -> "DeviceTrainer":
        view = copy.copy(self)
        view.round = jnp.asarray(round, jnp.int32)
        key = jax.random.wrap_key_data(self.address.key, impl="threefry2x32")
        key = jax.random.fold_in(key, view.round)
        view.address = replace(self.address, key=jax.random.key_data(key))
        return view

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        return model_input(self.pool, x)

    def examples(self, positions: Int[Array, " b"], weight: Shaped[Array, " b"], split: str) -> Batch:
        """Gather examples from the pool.

        Args:
            positions: 0-based, below the split's size.
            weight: 1 for a sample, 0 for padding.
            split: "train", "val" or, in evaluations, "test".
        """
        self._require_open(split)
        if self._root.guarded:
            raise ValueError(
                "this method's clients look at their examples in other ways than by private steps, so that dp_noise "
                "would promise too much; choose a method whose clients only train (fedavg, fedprox, mr-mtl, ...)"
            )
        if split == "train":
            # from positions in the innermost part outwards, to positions in all of the client's samples
            for view in reversed(self._views):
                positions = view(positions)
        x, y = self._gathered(self.address.start[SPLITS.index(split)] + positions)
        batch = Batch(x, y, weight.astype(self.model.dtype))
        if self._root._step is not None:
            self._root._step.batches.append(batch)
        return batch

    def _gathered(self, places: Int[Array, " b"]) -> tuple[Shaped[Array, "b ..."], Shaped[Array, "b ..."]]:
        """Inputs and targets at some places of the pool's rows."""
        return gathered(self.pool, places)

    def draw(self, purpose: str, step: Any, batch_size: int, *, split: str = "train", drop_last: bool = False) -> Batch:
        n = self.count(split)
        words = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        return self._batch(words, jnp.asarray(step, jnp.int32), batch_size, n, drop_last, split)

    def _batch(
        self, words: Array, step: Int[Array, ""], batch_size: int, n: Int[Array, ""], drop_last: bool, split: str
    ) -> Batch:
        """The batch of one step: its part of the epoch's permutation. Positions past the end are padding, weight 0."""
        batches = batches_of(n, batch_size, drop_last)
        epoch = jax.lax.div(step, batches)  # `//` would round downwards: three kernels more in every step
        positions = (step - epoch * batches) * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        order = shuffled(jnp.clip(positions, 0, n - 1), n, words, epoch)
        return self.examples(order, positions < n, split)

    # work on vectors ------------------------------------------------------------------------------------------------

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        if sgd.steps is not None:
            return jnp.asarray(sgd.steps, jnp.int32)
        return sgd.epochs * batches_of(self.size, sgd.batch_size, sgd.drop_last)

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
        end = self.size if end is None else jnp.asarray(end, jnp.int32)
        count = end - first
        view = self if purpose is None else self.part(0, self.size, purpose)
        params = self.params(theta)

        # In blocks of one size, so that memory does not grow with the client and one program serves all sizes.
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
        """Measure a predictor on a split, in evaluation mode.

        Returns:
            Metric's name -> its statistic, summed over the split's samples.
        """
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
        if not self._in_training_mode(training):
            return self.model.features(params, x)
        if (step := self._root._step) is not None:
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
        if not self._in_training_mode(training):
            return self.model.logits(params, x)
        outputs, _ = self.model.train_outputs(params, x, self._weight_of(x), self._training_key())
        return outputs

    def _weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        """0 for inputs that only pad a batch of the present step, and must not enter batch statistics.

        Inputs that the step has not drawn are the method's own, all real."""
        step = self._root._step
        weight = None if step is None else step.weight_of(x)
        return jnp.ones(len(x), self.model.dtype) if weight is None else weight

    def _in_training_mode(self, asked: bool | None) -> bool:
        return self._root._step is not None if asked is None else asked

    def losses(self, outputs: Shaped[Array, "b ..."], y: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        return self.model.losses(outputs, y)

    def batch_loss(self, params: Params, batch: Batch, key: Array | None = None) -> Float[Array, ""]:
        return self._training_loss(params, batch, self._training_key() if key is None else key)[0]

    def _training_loss(self, params: Params, batch: Batch, key: Array | None) -> tuple[Float[Array, ""], Params]:
        # Noted for `_require_statistics`, which looks at the step when it has been traced.
        if self._root._step is not None:
            self._root._step.took_gradient = True
        return training_loss(self.model, params, batch, key)

    def _training_key(self) -> Array | None:
        """The randomness of the present step; None outside of `loop`, or for models that need none."""
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
        if self.model.has_statistics:
            return jax.grad(self._training_loss, has_aux=True)(params, batch, key)
        size, micro = batch.weight.shape[0], self.model.micro_batch
        if micro is None or size <= micro or size % micro:
            return jax.grad(self.batch_loss)(params, batch, key), params

        # The same gradient, accumulated over parts of the batch whose activations fit into the cache.
        count = batch.weight.sum()
        parts = jax.tree.map(lambda leaf: leaf.reshape(size // micro, micro, *leaf.shape[1:]), batch)

        def add(total: Params, part: Batch) -> tuple[Params, None]:
            gradient = jax.grad(lambda p: mean_loss(self.model, p, part, count, key))(params)
            return jax.tree.map(jnp.add, total, gradient), None

        zero = jax.tree.map(jnp.zeros_like, params)
        gradient, _ = jax.lax.scan(add, zero, parts)
        return gradient, params

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
        root = self._root
        counted: list[Work] = []
        # Every loop of one purpose drops out alike in a step, as it sees the same batch.
        name = "dropout" if purpose == "batches" else f"dropout of {purpose}"
        dropout = self.key(name) if self.model.stochastic else None

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            work_before = root.work
            # Traced once, and by the debug executor called in every step: the list is of one step in both cases.
            counted.clear()
            root._in_step = counted
            root._step = Step(None if dropout is None else jax.random.fold_in(dropout, index))
            batch = self._batch(words, index, batch_size, n, drop_last, split)
            out = step(inner, batch, index)
            self._require_statistics(root._step)
            root._in_step = root._step = None
            # Work counted here would be a value of the loop's inside, which must not leave it.
            if root.work is not work_before:
                raise TypeError(
                    "inside Local.loop use batch_gradient, batch_loss and draw; whole-split passes go outside"
                )
            return out

        carry = self._repeat(steps, body, carry)

        examples = examples_in(steps, n, batch_size, drop_last)
        self._add(
            gradients=examples * sum(math.prod(times, start=gradients) for gradients, _, times in counted),
            forwards=examples * sum(math.prod(times, start=forwards) for _, forwards, times in counted),
        )
        return carry

    def private_loop(
        self,
        carry: Carry,
        step: Callable[[Carry, Any, Int[Array, ""]], Carry],
        steps: Int[Array, ""] | int,
        batch_size: int,
        split: str,
    ) -> Carry:
        """`carry = step(carry, None, s)` for s = 0..steps-1, counted as private steps; `step` draws its own batch."""
        root, n = self._root, self.count(split)
        if root.guarded and (root._in_step is not None or root._mapped):
            raise ValueError("this method trains several models at once, which private steps do not account for")
        steps = jnp.where(n > 0, jnp.asarray(steps, jnp.int32), 0)
        carry = self._repeat(steps, lambda index, inner: step(inner, None, index), carry)
        if root.guarded:
            root.private_steps = steps if root.private_steps is None else root.private_steps + steps
        self._add(gradients=steps * jnp.minimum(n, batch_size))
        return carry

    def next_private_loop(self) -> int:
        """A number for each loop of private steps of a round: no two may draw the same noise."""
        self._root._private_loops += 1
        return self._root._private_loops

    @contextmanager
    def reading_privately(self) -> Iterator[None]:
        """While it is open examples may be read."""
        before, self._root.guarded = self._root.guarded, False
        try:
            yield
        finally:
            self._root.guarded = before

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        root = self._root
        work_before = root.work

        # Work must leave the mapped function as an output: it is a traced value of one element.
        def one(arguments: tuple[Any, ...]) -> tuple[Any, Array]:
            root.work = jnp.zeros(2, jnp.int32)
            return function(*arguments), root.work

        before, root._mapped = root._mapped, True
        out, work = self._map(one, rows)
        root._mapped = before
        root.work = work_before + work.sum(0)
        return out

    def fori_loop(self, times: Int[Array, ""] | int, function: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        root = self._root
        if root._in_step is not None:
            return self._loop_in_step(root._in_step, times, function, carry)

        # Work is carried along: it is a traced value of the loop's inside.
        def body(index: Int[Array, ""], both: tuple[Carry, Array]) -> tuple[Carry, Array]:
            inner, root.work = both
            inner = function(index, inner)
            return inner, root.work

        before, root._mapped = root._mapped, True
        carry, root.work = self._repeat(jnp.asarray(times, jnp.int32), body, (carry, root.work))
        root._mapped = before
        return carry

    def _require_statistics(self, step: Step) -> None:
        """Refuse to train by batch statistics without renewing those that evaluation uses."""
        if self.model.has_statistics and step.took_gradient and not step.renewed:
            raise ValueError(
                "this method takes steps of its own and does not renew running statistics, which this model's "
                "evaluation needs; use a model with group instead of batch normalisation"
            )

    def _loop_in_step(
        self, counted: list[Work], times: Count, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """`fori_loop` inside a step of `loop`: its work is listed once, with the number of times."""
        root = self._root
        counted_before = len(counted)
        outer = root._step
        assert outer is not None
        key = outer.next_key()

        def body(index: Int[Array, ""], inner: Carry) -> Carry:
            # The debug executor comes here every time, a tracer once: keep what one pass counts.
            del counted[counted_before:]
            # A step of its own in each pass, so that dropout draws anew; batches and duties are the outer step's.
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

    def _add(self, gradients: Count = 0, forwards: Count = 0) -> None:
        work = jnp.stack([jnp.asarray(gradients, jnp.int32), jnp.asarray(forwards, jnp.int32)])
        self._root.work = self._root.work + work

    # The debug executor overrides these two, to run them step by step in Python.

    def _repeat(self, times: Int[Array, ""], body: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        return jax.lax.fori_loop(0, times, body, carry)

    def _map(self, function: Callable[[Any], Any], rows: Any) -> Any:
        return jax.lax.map(function, rows)


def examples_in(steps: Count, n: Count, batch_size: int, drop_last: bool = False) -> Int[Array, ""]:
    """Examples in the first `steps` batches together: of whole epochs, and of the last one, which may be a part."""
    batches = batches_of(n, batch_size, drop_last)
    epochs = steps // batches
    in_epoch = jnp.minimum(n, batches * batch_size)
    in_last = jnp.minimum((steps - epochs * batches) * batch_size, n)
    return epochs * in_epoch + in_last


def batches_of(n: Count, batch_size: int, drop_last: bool = False) -> Int[Array, ""]:
    """Mini-batches in an epoch over n samples, at least 1 (a client smaller than a batch keeps it)."""
    whole = n // batch_size if drop_last else (n + batch_size - 1) // batch_size
    return jnp.maximum(whole, 1)


def _passes(n: Int[Array, ""]) -> Int[Array, ""]:
    """Batches of a pass over n samples: none where there are none."""
    return (n + PASS_BATCH - 1) // PASS_BATCH


def _named(raw: UInt32[Array, " 2"], purpose: str) -> Array:
    """The key of one purpose, from a client's raw key."""
    key = jax.random.wrap_key_data(raw, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))

"""One client's examples in the pool, in the orders in which a trainer sees them."""

import copy
import zlib
from dataclasses import dataclass, replace
from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int, Shaped, UInt32

from fedtailor.client.pool import SPLITS, ClientAddress, Pool, gathered
from fedtailor.client.shuffle import shuffled
from fedtailor.client.tracing_context import TracingContext
from fedtailor.models import Model
from fedtailor.protocol import Batch


@dataclass(frozen=True)
class Permutation:
    """A random order of n positions, of which a part of a client's data sees those from
    `first` on.

    Attributes:
        words: the random bits that the order follows from.
        n: how many positions there are.
        first: the first of them.
    """

    words: UInt32[Array, " 2"]
    n: Int[Array, ""]
    first: Int[Array, ""]

    def __call__(self, positions: Int[Array, " b"]) -> Int[Array, " b"]:
        positions = jnp.minimum(self.first + positions, self.n - 1)
        return shuffled(positions, self.n, self.words, jnp.int32(0))


class ClientData:
    """One client's examples and random keys: the half of `LocalTrainer` that does not
    train (traced).

    Attributes:
        model: what the examples are inputs of.
        pool: the examples of all clients.
        address: where this client's examples are.
        round: the round (0-based).
        size: training samples.
        trace: the work done so far, and whether examples may be read.
    """

    def __init__(
        self, model: Model, pool: Pool, address: ClientAddress, round: Int[Array, ""]
    ) -> None:
        self.model = model
        self.pool = pool
        self.address = address
        self.round = round
        self.size = address.size[0]
        self.context = TracingContext()
        # the orders that the training samples are a part of; see `part`
        self._permutations: tuple[Permutation, ...] = ()

    def key(self, purpose: str) -> Array:
        return _key_of(self.address.key, purpose)

    def count(self, split: str) -> Int[Array, ""]:
        self._require_open(split)
        return self.size if split == "train" else self.address.size[SPLITS.index(split)]

    def part(self, first: ArrayLike, end: ArrayLike, purpose: str) -> Self:
        first = jnp.asarray(first, jnp.int32)
        end = jnp.asarray(end, jnp.int32)
        # The key of all rounds, so that a part holds the same samples in every round.
        words = jax.random.bits(_key_of(self.address.fixed, purpose), (2,), jnp.uint32)
        part = copy.copy(self)
        part._permutations = (*self._permutations, Permutation(words, self.size, first))
        part.size = jnp.maximum(end - first, 0)
        return part

    def in_round(self, round: ArrayLike) -> Self:
        view = copy.copy(self)
        view.round = jnp.asarray(round, jnp.int32)
        key = jax.random.wrap_key_data(self.address.key, impl="threefry2x32")
        key = jax.random.fold_in(key, view.round)
        view.address = replace(self.address, key=jax.random.key_data(key))
        return view

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        return self.pool.normalization(x)

    def examples(
        self, positions: Int[Array, " b"], weight: Shaped[Array, " b"], split: str
    ) -> Batch:
        """Gather examples from the pool.

        Args:
            positions: 0-based, below the split's size.
            weight: 1 for a sample, 0 for padding.
            split: "train", "val" or, in evaluations, "test".

        Returns:
            The batch: inputs as the model takes them, targets and weights.
        """
        self._require_open(split)
        if self.context.private_steps_only:
            raise ValueError(
                "this method's clients look at their examples in other ways than by"
                " private steps, so that dp_noise would promise too much; choose a"
                " method whose clients only train (fedavg, fedprox, mr-mtl, ...)"
            )
        if split == "train":
            # Positions in the innermost part become positions in the part around it, and
            # so on to all of the client's samples.
            for permutation in reversed(self._permutations):
                positions = permutation(positions)
        x, y = self._gathered(self.address.start[SPLITS.index(split)] + positions)
        batch = Batch(x, y, weight.astype(self.model.dtype))
        # Batch normalisation asks the step for the weights of its inputs.
        if self.context.step is not None:
            self.context.step.batches.append(batch)
        return batch

    def _gathered(
        self, places: Int[Array, " b"]
    ) -> tuple[Shaped[Array, "b ..."], Shaped[Array, "b ..."]]:
        """Inputs and targets at some places of the pool's rows."""
        return gathered(self.pool, places)

    def room(self, batch_size: int) -> int:
        """The length of a batch's arrays: no split fills more than the largest one."""
        return min(batch_size, self.pool.largest)

    def draw(
        self,
        purpose: str,
        step: ArrayLike,
        batch_size: int,
        *,
        split: str = "train",
        drop_last: bool = False,
    ) -> Batch:
        n = self.count(split)
        words = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        return self.batch(
            words, jnp.asarray(step, jnp.int32), batch_size, n, drop_last, split
        )

    def batch(
        self,
        words: UInt32[Array, " 2"],
        step: Int[Array, ""],
        batch_size: int,
        n: Int[Array, ""],
        drop_last: bool,
        split: str,
    ) -> Batch:
        """The batch of one step: the next piece of the epoch's permutation.

        Args:
            words: random bits that all permutations of a loop follow from.
            step: the number of the step, 0-based.
            batch_size: samples in a batch.
            n: samples in the split.
            drop_last: whether epochs end before a batch that is not full.
            split: whose examples.

        Returns:
            `room(batch_size)` examples; what lies past the end of the split is padding,
            of weight 0.
        """
        batches = batches_in_epoch(n, batch_size, drop_last)
        # `//` would round downwards, which takes three kernels more in every step.
        epoch = jax.lax.div(step, batches)
        start = (step - epoch * batches) * batch_size
        positions = start + jnp.arange(self.room(batch_size), dtype=jnp.int32)
        order = shuffled(jnp.clip(positions, 0, n - 1), n, words, epoch)
        return self.examples(order, positions < n, split)

    def _require_open(self, split: str) -> None:
        """Refuse a method the examples that it is evaluated on."""
        if split not in SPLITS or (split == "test" and not self.context.evaluating):
            raise ValueError(
                f"a method asks for the split {split!r}; it may look at 'train' and"
                " 'val' only"
            )


def batches_in_epoch(
    n: Int[Array, ""], batch_size: int, drop_last: bool = False
) -> Int[Array, ""]:
    """Mini-batches in an epoch over n samples; at least 1, also of a client smaller
    than a batch.
    """
    whole = n // batch_size if drop_last else (n + batch_size - 1) // batch_size
    return jnp.maximum(whole, 1)


def examples_in_steps(
    steps: Int[Array, ""], n: Int[Array, ""], batch_size: int, drop_last: bool
) -> Int[Array, ""]:
    """Examples in the batches of all steps together: those of whole epochs, and of the
    epoch that the last step is in.
    """
    batches = batches_in_epoch(n, batch_size, drop_last)
    epochs = steps // batches
    in_epoch = jnp.minimum(n, batches * batch_size)
    in_last = jnp.minimum((steps - epochs * batches) * batch_size, n)
    return epochs * in_epoch + in_last


def _key_of(raw: UInt32[Array, " 2"], purpose: str) -> Array:
    """The random key of one purpose, from a client's raw key."""
    key = jax.random.wrap_key_data(raw, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))

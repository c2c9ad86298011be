"""One client's examples: where they are in the pool, and which examples a batch has."""

import copy
import zlib
from dataclasses import dataclass, replace
from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped, UInt32

from fedtailor._base.documentation import see
from fedtailor.engine.client.pool import SPLITS, ClientAddress, Pool, gather_examples
from fedtailor.engine.client.shuffle import shuffled
from fedtailor.engine.client.tracing_context import TracingContext
from fedtailor.models import Model
from fedtailor.protocol import Batch


@dataclass(frozen=True)
class Permutation:
    """The samples of a `part` of a client: a range of a random permutation of the client's
    samples.

    Called with the indices of samples in the part, it returns their indices among all of
    the client's samples.

    Attributes:
        bits: random bits, which determine the permutation.
        n: the number of samples in the permutation.
        first: the index in the permutation at which the part begins.
    """

    bits: UInt32[Array, " 2"]
    n: Int[Array, ""]
    first: Int[Array, ""]

    def __call__(self, indices: Int[Array, " b"]) -> Int[Array, " b"]:
        indices = jnp.minimum(self.first + indices, self.n - 1)
        return shuffled(indices, self.n, self.bits, jnp.int32(0))


class ClientData:
    """One client's examples and random keys: the half of `LocalTrainer` that does not
    train (traced). The methods without a docstring are documented there.

    Attributes:
        model: the network that takes the examples.
        pool: the examples of all clients.
        address: where this client's examples are in the pool, and its random keys.
        round: the round (0-based).
        size: the number of training samples.
        context: the work done so far, and which examples may be read now.
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
        # One permutation for each `part` around this view, the outermost first.
        self._permutations: tuple[Permutation, ...] = ()

    def key(self, purpose: str) -> Array:
        return _key_of(self.address.key, purpose)

    def count(self, split: str) -> Int[Array, ""]:
        self._require_readable(split)
        return self.size if split == "train" else self.address.size[SPLITS.index(split)]

    def total(self, split: str = "train") -> Array:
        weights = self.pool.weights
        if weights is None:
            return self.count(split)
        return self._sum_of_weights(split) * weights.scale

    @property
    def samples(self) -> Array:
        return self.size if self.pool.weights is None else self._sum_of_weights("train")

    def _sum_of_weights(self, split: str) -> Float[Array, ""]:
        """The sum of the weights of a split's samples, where samples have weights."""
        assert self.pool.weights is not None
        first = self.address.start[SPLITS.index(split)]
        total = self.pool.weights.totals[first]
        # An empty split has no entry of its own.
        return jnp.where(self.count(split) > 0, total, 0).astype(total.dtype)

    def part(self, first: ArrayLike, end: ArrayLike, purpose: str) -> Self:
        if self.pool.weights is not None:
            raise ValueError(
                "this method divides each client's training rows into parts, of which it"
                " knows the numbers of rows and no weights; choose another method, or"
                " leave out weights"
            )
        return self.any_part(first, end, purpose)

    def any_part(self, first: ArrayLike, end: ArrayLike, purpose: str) -> Self:
        """`part`, for passes that add up the weights that they meet."""
        first = jnp.asarray(first, jnp.int32)
        end = jnp.asarray(end, jnp.int32)
        # The key is the same in all rounds, so that a part keeps its samples.
        bits = jax.random.bits(_key_of(self.address.fixed, purpose), (2,), jnp.uint32)
        part = copy.copy(self)
        part._permutations = (*self._permutations, Permutation(bits, self.size, first))
        part.size = jnp.maximum(end - first, 0)
        return part

    @property
    def is_part(self) -> bool:
        """Whether this is a view of some of the client's training samples (`part`)."""
        return bool(self._permutations)

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
        self, indices: Int[Array, " b"], weight: Shaped[Array, " b"], split: str
    ) -> Batch:
        """Gather examples from the pool.

        Args:
            indices: of samples in the split, 0-based.
            weight: 1 for a sample, 0 for padding; multiplied by the samples' weights, if
                they have any.
            split: "train", "val" or, in evaluations, "test".

        Returns:
            The batch: inputs as the model takes them, targets and weights.
        """
        self._require_readable(split)
        if self.context.private_steps_only:
            raise ValueError(
                "this method's clients look at their examples in other ways than by"
                " private steps, so that dp_noise would promise too much; choose a"
                " method whose clients only train (fedavg, fedprox, mr-mtl, ...)"
                f"{see('errors#noise-that-would-promise-too-much')}"
            )
        if split == "train":
            # From indices in the innermost part to indices in the part around it, and so
            # on to indices among all of the client's samples.
            for permutation in reversed(self._permutations):
                indices = permutation(indices)
        pool_rows = self.address.start[SPLITS.index(split)] + indices
        x, y = gather_examples(self.pool, pool_rows)
        weight = weight.astype(self.model.precision.sums)
        if self.pool.weights is not None:
            weight = weight * self.pool.weights.values[pool_rows].astype(weight.dtype)
        batch = Batch(x, y, weight)
        # Batch normalisation looks up the weights of its inputs there.
        if self.context.step is not None:
            self.context.step.batches.append(batch)
        return batch

    def padded_size(self, batch_size: int) -> int:
        """The number of rows in the arrays of a batch: `batch_size`, but at most the size
        of the largest split of any client.
        """
        return min(batch_size, self.pool.largest)

    def smallest_batch(self, batch_size: int, drop_last: bool = False) -> int:
        """The smallest number of samples that the last batch of an epoch may have; a
        smaller one is left out of the epoch, and another permutation is drawn for the
        next.

        Batch normalisation has no variance of a single sample.
        """
        if drop_last:
            return batch_size
        return min(batch_size, 2) if self.model.has_statistics else 1

    def draw(self, purpose: str, step: ArrayLike, batch_size: int) -> Batch:
        bits = jax.random.bits(self.key(purpose), (2,), jnp.uint32)
        step = jnp.asarray(step, jnp.int32)
        smallest = self.smallest_batch(batch_size)
        return self.batch(bits, step, batch_size, self.size, smallest, "train")

    def batch(
        self,
        bits: UInt32[Array, " 2"],
        step: Int[Array, ""],
        batch_size: int,
        n: Int[Array, ""],
        smallest: int,
        split: str,
    ) -> Batch:
        """The batch of one step: a range of the permutation of its epoch.

        Args:
            bits: random bits, which determine the permutations of all epochs.
            step: the number of the step, 0-based.
            batch_size: the number of samples in a batch.
            n: the number of samples in the split.
            smallest: as `smallest_batch` returns it.
            split: "train", "val" or, in evaluations, "test".

        Returns:
            `padded_size(batch_size)` examples. Those past the end of the split are
            padding and have weight 0.
        """
        batches = batches_in_epoch(n, batch_size, smallest)
        # `step // batches`; rounding towards zero saves three kernels in every step.
        epoch = jax.lax.div(step, batches)
        start = (step - epoch * batches) * batch_size
        positions = start + jnp.arange(self.padded_size(batch_size), dtype=jnp.int32)
        indices = shuffled(jnp.clip(positions, 0, n - 1), n, bits, epoch)
        return self.examples(indices, positions < n, split)

    def _require_readable(self, split: str) -> None:
        """Refuse access to the test split outside of evaluations."""
        if split not in SPLITS or (split == "test" and not self.context.is_evaluating):
            raise ValueError(
                f"a method asks for the split {split!r}; it may look at 'train' and"
                " 'val' only"
            )


def batches_in_epoch(
    n: Int[Array, ""], batch_size: int, smallest: int = 1
) -> Int[Array, ""]:
    """Mini-batches in an epoch over n samples; 1 if the client has less than a batch.

    Args:
        smallest: of the last batch, which is left out if it would have fewer samples;
            `batch_size` = every partial batch is left out.
    """
    return jnp.maximum((n + batch_size - smallest) // batch_size, 1)


def examples_in_steps(
    steps: Int[Array, ""], n: Int[Array, ""], batch_size: int, smallest: int
) -> Int[Array, ""]:
    """The number of examples in the batches of the first `steps` steps together."""
    batches = batches_in_epoch(n, batch_size, smallest)
    full_epochs = steps // batches
    examples_per_epoch = jnp.minimum(n, batches * batch_size)
    remainder = jnp.minimum((steps - full_epochs * batches) * batch_size, n)
    return full_epochs * examples_per_epoch + remainder


def _key_of(raw: UInt32[Array, " 2"], purpose: str) -> Array:
    """Derive the random key for one purpose from a client's raw key."""
    key = jax.random.wrap_key_data(raw, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))

"""`LocalTrainer`: an algorithm's only access to one client's data.

It is the argument `local` of an algorithm's client functions. It counts their work, and
draws the same batches in every method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fedtailor.protocol.parts import ModelPart
from fedtailor.protocol.predictors import Predictor
from fedtailor.protocol.sgd import SGD

Carry = TypeVar("Carry")
Params = PyTree
"""A model as a pytree of parameters, which it is inside training loops. Everywhere else a
model is a vector theta [d].
"""
IntScalar = Int[Array, ""] | int
"""An integer that may be traced."""
StepGradient = Callable[[Params, "Batch", Int[Array, ""]], Params]
"""(params, batch, step) -> the gradient that a step of SGD uses."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """A mini-batch of b rows.

    Attributes:
        x: inputs [b, ...] as the model takes them, converted and normalised.
        y: targets [b, ...].
        weight: [b], 1 for a sample, 0 for padding. If samples have weights, these in a
            unit in which none but 0 is below 1.
    """

    x: Shaped[Array, "b ..."]
    y: Shaped[Array, "b ..."]
    weight: Float[Array, " b"]


class LocalTrainer(Protocol):
    """One client's data, and training on them.

    All losses and gradients are means over samples, never sums. Splits are "train",
    "val" and "test"; an algorithm may use "train" and "val" only.

    Most methods only need `sgd`, which takes a vector theta and returns a trained one. A
    method with training steps of its own uses `loop`, inside which a model is a tree
    (`params`, `vector`). JAX may trace all methods, once for all clients.

    Attributes:
        round: the number of this round, from 0; in `personal` and `init_unseen`, the
            number of rounds done.
        size: the number of training samples.
    """

    round: Int[Array, ""]
    size: Int[Array, ""]

    @property
    def samples(self) -> Shaped[Array, ""]:
        """n_i, the number of training samples; the sum of their weights if they have
        any.
        """
        ...

    # whole-model operations on vectors theta [d]
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
        """Mini-batch SGD from theta.

        Args:
            theta: the model to start from.
            sgd: learning rate, batch size, number of steps and the like.
            proximal: (mu, anchor): adds mu (w - anchor) to every gradient, the gradient
                of a proximal term (mu / 2) |w - anchor|^2.
            linear_term: c [d]: adds c to every gradient, such as SCAFFOLD's control
                variates.
            gradient: a function that computes the gradient of a step instead of
                `batch_gradient`, for example for a mixture of models. It must count its
                work itself (`count_work`), unless it calls `batch_gradient`.
            steps: the number of steps, instead of that in `sgd`. It is traced, and may
                differ from client to client.
            split: the split to train on.
            train_only: the part of the model to train. All other entries, including
                running statistics, do not change.

        Returns:
            The trained model.
        """
        ...

    def gradient(
        self,
        theta: Float[Array, " d"],
        first: ArrayLike = 0,
        end: ArrayLike | None = None,
        *,
        purpose: str | None = None,
    ) -> Float[Array, " d"]:
        """Gradient of the mean loss over training samples, in evaluation mode.

        Args:
            theta: the model.
            first, end: use the samples first, ..., end - 1; all samples by default.
            purpose: the name of a random permutation of the client's samples, to which
                `first` and `end` refer. Disjoint ranges of the same permutation are
                disjoint random subsets. None = the order of the data.

        Returns:
            The gradient [d]; zero for an empty range.
        """
        ...

    def loss(self, predictor: Predictor, split: str = "train") -> Float[Array, ""]:
        """Mean loss over a split, in evaluation mode; 0 for an empty split."""
        ...

    def count(self, split: str) -> Int[Array, ""]:
        """The number of samples in a split."""
        ...

    def total(self, split: str = "train") -> Shaped[Array, ""]:
        """The sum of `Batch.weight` over all samples of a split: their number, unless
        samples have weights.
        """
        ...

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        """The number of mini-batch steps that `sgd` takes on this client."""
        ...

    def key(self, purpose: str) -> Array:
        """A JAX random key for this client, this round and a purpose."""
        ...

    def part(self, first: ArrayLike, end: ArrayLike, purpose: str) -> "LocalTrainer":
        """This client with only some of its training samples.

        Args:
            first, end: use the samples first, ..., end - 1 of a random permutation; may
                be traced.
            purpose: the name of the permutation. It is the same in every round, so that
                disjoint ranges stay disjoint.

        Returns:
            A view of this client. Its work counts as this client's.
        """
        ...

    def in_round(self, round: ArrayLike) -> "LocalTrainer":
        """This client in another round, for example for an unseen client that repeats
        the rounds of the others.

        Args:
            round: the number of the round, from 0; may be traced.

        Returns:
            A view of this client with the learning rate and the random numbers of that
            round.
        """
        ...

    # parts of the model
    # ----------------------------------------------------------------------------------

    @property
    def parts_of_model(self) -> tuple[str, ...]:
        """The names of the parts of this client's model."""
        ...

    def part_of_model(self, name: str) -> ModelPart:
        """The part of the model that a name or pattern selects, such as "head".

        (`part` is a part of the data.)

        Raises:
            ValueError: the model has no such part; the message lists those that it has.
        """
        ...

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Float[Array, "b ..."]:
        """The input of the model's head (its last dense layer) for inputs x.

        If the model has running statistics, a step that computes features in training
        mode should also update these (`renew_statistics`).

        Args:
            params: a tree, or theta [d].
            x: inputs, as in a `Batch`.
            training: as for `logits`.

        Raises:
            ValueError: the model has no head.
        """
        ...

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Shaped[Array, "b ..."]:
        """The outputs of the model's head for features.

        `head_outputs(params, features(params, x))` is `logits(params, x)`.
        """
        ...

    # for steps of the method's own, on trees of parameters
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
        """Run training steps of the method's own, on the batches that `sgd` would draw.

        Args:
            carry: the initial carry, any pytree.
            step: (carry, batch, s) -> carry, for s = 0, ..., steps - 1; traced once.
            steps: the number of steps; may be traced. There are no steps on an empty
                split.
            batch_size: the number of samples in a batch. A batch has at most as many rows
                as the largest client has samples, rounded up to a power of two. Rows
                without a sample are padding, of weight 0.
            drop_last: whether to drop the last partial batch of an epoch.
            whole: whether every sample counts, as in a pass that trains nothing. By
                default a last batch of one sample is left out if the model has batch
                normalisation, which has no variance of it; and `steps(sgd)` does not
                count it.
            purpose: the name of the random order of samples. Any name other than
                "batches" gives batches that are independent of those of `sgd`.
            split: the split to draw from.

        Returns:
            The final carry.
        """
        ...

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        """Count the work of a step that calls `batch_loss` or `logits`, which do not count
        it themselves.

        Args:
            gradients: the number of batches whose gradient the step computes.
            forwards: the number of batches that take a forward pass only.
        """
        ...

    def count_passes(self, gradients: IntScalar = 0, forwards: IntScalar = 0) -> None:
        """Count passes over single examples that are not the client's own, outside of
        steps of `loop`.

        Args:
            gradients: the number of gradients of single examples.
            forwards: the number of forward passes of single examples without a gradient.
        """
        ...

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        """Convert and normalise examples that were sent in a message to inputs of the
        model.
        """
        ...

    def draw(self, purpose: str, step: ArrayLike, batch_size: int) -> Batch:
        """Draw one batch of training data, for methods that use several batches in a step.

        Args:
            purpose: the name of a sequence of batches.
            step: the index of the batch in this sequence.
            batch_size: as for `loop`.
        """
        ...

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        """Map a function over the leading axis, for clients that train several models.

        Use this instead of `jax.vmap` and `jax.lax.map`, as it counts the work of the
        function.

        Args:
            function: a function of one row of each argument.
            rows: trees of arrays [k, ...].

        Returns:
            The stacked results, a tree of arrays [k, ...].
        """
        ...

    def fori_loop(
        self, times: IntScalar, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """As `jax.lax.fori_loop(0, times, function, carry)`, and counts the work of the
        function.

        Inside a step of `loop` (for several updates on one batch), `times` must not depend
        on the loop; it may be a hyper-parameter, for example.
        """
        ...

    def params(self, theta: Float[Array, " d"]) -> Params:
        """Convert a vector theta [d] to a pytree of parameters. Call this once, before a
        loop.
        """
        ...

    def vector(self, params: Params) -> Float[Array, " d"]:
        """Convert a pytree of parameters to a vector theta [d]. Call this once, after a
        loop.
        """
        ...

    def batch_gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss over a batch in training mode, as a pytree.

        In a step of `loop`, every call draws new random numbers for dropout from the
        step's key. Running statistics have gradient zero. `sgd` updates them; a method
        with steps of its own calls `renew_statistics`.
        """
        ...

    def batch_loss(self, params: Params, batch: Batch) -> Float[Array, ""]:
        """Mean loss over a batch in training mode; differentiable in `params`.

        Its work is not counted: call `count_work`, or use `batch_gradient`.
        """
        ...

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        """The parameters with running statistics that are updated by a training step on
        this batch. All other entries do not change.

        It is for steps of the method's own on models with batch normalisation; without
        running statistics, it returns `params`.
        """
        ...

    @property
    def has_statistics(self) -> bool:
        """Whether the model keeps running statistics, as batch normalisation does.

        Evaluation mode normalises by them, and training mode by those of the batch.
        """
        ...

    def with_statistics(self, params: Params, source: Params) -> Params:
        """`params` with the running statistics of `source`."""
        ...

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Shaped[Array, "b ..."]:
        """Outputs of the model for inputs x.

        Args:
            params: a tree, or theta [d].
            x: inputs, as in a `Batch`.
            training: whether to use training mode; None = training mode inside a step of
                `loop`, evaluation mode outside. Set it to False for a model that a step
                uses but does not train.
        """
        ...

    def losses(
        self,
        outputs: Shaped[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"] | None = None,
    ) -> Float[Array, " b"]:
        """The loss of each example.

        Args:
            outputs: outputs of `logits`, or a mixture's log-probabilities.
            y: targets.
            weight: `batch.weight`, which losses that couple examples need.
        """
        ...

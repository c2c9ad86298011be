"""`LocalTrainer`: an algorithm's only access to one client's data.

An algorithm's client functions are given one as `local`. What they compute through it
is counted as work, and draws the same batches in every method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fedtailor.protocol.parts import ModelPart
from fedtailor.protocol.predictor import Predictor
from fedtailor.protocol.sgd import SGD

Carry = TypeVar("Carry")
Params = PyTree
"""A model as its pytree of parameters, as it is inside training loops. Everywhere else
a model is a vector theta [d].
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
        weight: [b], 1 for a sample, 0 for padding.
    """

    x: Shaped[Array, "b ..."]
    y: Shaped[Array, "b ..."]
    weight: Float[Array, " b"]


class LocalTrainer(Protocol):
    """One client's data, and training on them.

    All losses and gradients are means over samples, never sums. Splits are "train",
    "val" and "test"; an algorithm may use "train" and "val" only.

    Most methods need `sgd` alone, from a vector theta to a trained one. For steps of
    its own a method uses `loop`, inside which a model is a tree (`params`, `vector`).
    Everything may be traced by JAX, once for all clients.

    Attributes:
        round: the number of this round, from 0; in `personal` and `init_unseen`, the
            number of rounds done.
        size: the number of training samples.
    """

    round: Int[Array, ""]
    size: Int[Array, ""]

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
            gradient: computes the gradient of a step instead of `batch_gradient`, as
                for a mixture of models or several batches in a step. It must count its
                work itself (`count_work`), unless it uses `batch_gradient`.
            steps: the number of steps, instead of that in `sgd`. It is traced, and may
                differ from client to client.
            split: the split to train on.
            train_only: the part of the model to train. All other entries, also running
                statistics, stay the same to the bit.

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
            first, end: use the samples at positions first, ..., end - 1; all samples by
                default.
            purpose: the name of a random permutation of the client's samples, in which
                positions are counted. Disjoint ranges of the same permutation are an
                exact random partition. None = in the order of the data.

        Returns:
            The gradient, a vector as theta is; zero for an empty range.
        """
        ...

    def loss(self, predictor: Predictor, split: str = "train") -> Float[Array, ""]:
        """Mean loss over a split, in evaluation mode; 0 for an empty split."""
        ...

    def count(self, split: str) -> Int[Array, ""]:
        """Samples in a split."""
        ...

    def steps(self, sgd: SGD) -> Int[Array, ""]:
        """How many mini-batch steps `sgd` takes on this client."""
        ...

    def key(self, purpose: str) -> Array:
        """A JAX random key of this client, round and purpose."""
        ...

    def part(self, first: ArrayLike, end: ArrayLike, purpose: str) -> "LocalTrainer":
        """This client with some of its training samples only.

        Args:
            first, end: the samples at positions first, ..., end - 1 of a random
                permutation; may be traced.
            purpose: the name of the permutation. It is the same in every round, so that
                disjoint ranges stay disjoint.

        Returns:
            A view of this client; work done through it counts as this client's.
        """
        ...

    def in_round(self, round: ArrayLike) -> "LocalTrainer":
        """This client in another round, such as for an unseen client that catches up
        on the rounds of the others.

        Args:
            round: its number, from 0; may be traced.

        Returns:
            A view of this client with that round's learning rates and with random
            numbers of its own.
        """
        ...

    # parts of the model
    # ----------------------------------------------------------------------------------

    @property
    def parts_of_model(self) -> tuple[str, ...]:
        """The named parts that this client's model has."""
        ...

    def part_of_model(self, name: str) -> ModelPart:
        """The part of the model that a name or pattern selects, such as "head".

        (`part`, in contrast, is a part of the data.)

        Raises:
            ValueError: the model has no such part; the message lists those that it has.
        """
        ...

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Float[Array, "b ..."]:
        """The input of the model's head (its last dense layer) for inputs x.

        Of a model with running statistics, a step that computes features in training
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
        purpose: str = "batches",
        split: str = "train",
    ) -> Carry:
        """Training steps of the method's own, on the batches that `sgd` would draw.

        Args:
            carry: any pytree, which the first step is given.
            step: (carry, batch, s) -> carry for s = 0, ..., steps - 1; traced once.
            steps: the number of steps; may be traced. No step is taken on an empty
                split.
            batch_size: samples in a batch. A batch has at most as many rows as the
                largest client has samples, rounded up to a power of two. Rows without
                a sample are padding, of weight 0.
            drop_last: drop the last partial batch of an epoch.
            purpose: another name than "batches" gives other, independent batches.
            split: the split to draw from.

        Returns:
            What the last step returned.
        """
        ...

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        """Count the work that a step does through `batch_loss` or `logits`, which do
        not count it themselves.

        Args:
            gradients, forwards: numbers of batches of the loop around this call whose
                gradient or forward pass is computed.
        """
        ...

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        """Examples that were sent in a message, as inputs of the model: converted and
        normalised.
        """
        ...

    def draw(self, purpose: str, step: ArrayLike, batch_size: int) -> Batch:
        """One batch of training data, for methods that use several batches in a step.

        Args:
            purpose: the name of a sequence of batches.
            step: the number of the batch in this sequence.
            batch_size: as for `loop`.
        """
        ...

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        """Apply a function along the leading axis, for clients that train several
        models.

        Use this instead of `jax.vmap` or `jax.lax.map`: work done inside is counted.

        Args:
            function: takes one element of each of `rows`.
            rows: trees of arrays [k, ...].

        Returns:
            The outputs, stacked: every leaf is [k, ...].
        """
        ...

    def fori_loop(
        self, times: IntScalar, function: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """`carry = function(k, carry)` for k = 0..times-1 (traced): `jax.lax.fori_loop`
        whose work is counted.

        Inside a step of `loop` (for several updates on one batch), `times` must be
        known before the loop, such as a hyper-parameter.
        """
        ...

    def params(self, theta: Float[Array, " d"]) -> Params:
        """theta as a pytree of parameters; call this once, before a loop."""
        ...

    def vector(self, params: Params) -> Float[Array, " d"]:
        """Parameters back as a vector theta [d]; call this once, after a loop."""
        ...

    def batch_gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss over a batch in training mode, as a pytree.

        In a step of `loop`, dropout draws from the step's key, anew at every call.
        Running statistics have gradient zero: `sgd` updates them, and in steps of the
        method's own `renew_statistics` does.
        """
        ...

    def batch_loss(self, params: Params, batch: Batch) -> Float[Array, ""]:
        """Mean loss over a batch in training mode; differentiable in `params`.

        It is not counted as work: see `count_work`, or use `batch_gradient`.
        """
        ...

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        """The parameters with the running statistics that they have after a training
        step on this batch; all other entries are as given.

        For steps of the method's own on models with batch normalisation. Other models
        come back unchanged.
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
            training: whether in training mode; None = in a step of `loop`, but not
                outside. False is for a model that a step uses but does not train.
        """
        ...

    def losses(
        self, outputs: Shaped[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        """The loss of each example.

        Args:
            outputs: what `logits` gives, or a mixture's log-probabilities.
            y: targets.
        """
        ...

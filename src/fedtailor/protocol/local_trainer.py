"""`LocalTrainer`: an algorithm's only door to one client's data."""

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
"""A model as its pytree of parameters (inside training loops; outside a model is a
vector theta [d]).
"""
IntScalar = Int[Array, ""] | int
"""An integer that may be traced."""
StepGradient = Callable[[Params, "Batch", Int[Array, ""]], Params]
"""(parameters, batch, step) -> what a step of SGD descends along."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """A mini-batch: inputs [b, ...] as the model takes them, targets [b, ...], weight
    [b] (1 = sample, 0 = padding).
    """

    x: Shaped[Array, "b ..."]
    y: Shaped[Array, "b ..."]
    weight: Float[Array, " b"]


class LocalTrainer(Protocol):
    """One client's data and trainer. All losses and gradients are means over samples,
    never sums.

    Splits are "train", "val" and "test"; methods may use train and val only.

    Attributes:
        round: the round (0-based); in `personal` and `init_unseen`, the number of
            rounds done.
        size: training samples.
    """

    round: Int[Array, ""]
    size: Int[Array, ""]

    # whole-model operations on vectors theta [d]
    # -----------------------------------------------------------------

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
            proximal: (mu, anchor); adds mu (w - anchor) to every gradient (a proximal
                term).
            linear_term: c; adds c to every gradient (control variates).
            gradient: replaces `batch_gradient` (mixtures of models, several batches a
                step); it counts its work.
            steps: replaces the number of steps in `sgd`; traced, may differ from client
                to client.
            split: whose examples to train on.
            train_only: freezes all other entries, running statistics among them: they
                keep their bits.

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
            first, end: the range of positions [first, end); all samples by default.
            purpose: positions count in a random permutation of the client's own that
                this names (disjoint ranges are then an exact random partition); None =
                in the order of the data.

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
        """This client with fewer training samples.

        Args:
            first, end: the range of positions [first, end) in a random permutation of
                the samples; may be traced.
            purpose: names the permutation. It is the same in every round, so that
                disjoint ranges stay disjoint.

        Returns:
            A view of this client; work done through it counts as this client's.
        """
        ...

    def in_round(self, round: ArrayLike) -> "LocalTrainer":
        """This client in another round, for clients that arrive late and make up for
        rounds that others did.

        Args:
            round: 0-based; may be traced.

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
        """The part of this client's model of a name or pattern (`part` is a part of its
        data).

        Raises:
            ValueError: the model has no such part; the message lists those that it has.
        """
        ...

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Float[Array, "b ..."]:
        """What the model's head is given for inputs x; in a step of `loop` in training
        mode, else in evaluation mode.

        `params` is a tree, or theta [d]; `training` as for `logits`.

        A step that takes them in training mode from a model with running statistics
        renews these, too (`renew_statistics`).

        Raises:
            ValueError: the model has no head.
        """
        ...

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Shaped[Array, "b ..."]:
        """What the model's head makes of features: `logits` = `head_outputs` of
        `features`.
        """
        ...

    # for steps of the method's own, on trees of parameters
    # ----------------------------------------------------------

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
        """Steps of the method's own over the batches that `sgd` would draw.

        Args:
            carry: what the first step is given; any pytree.
            step: (carry, batch, s) -> carry, traced once; s = 0..steps-1.
            steps: how many; may be traced. No step is taken on an empty split.
            batch_size: samples in a batch. A batch has no more rows than the largest
                client has samples, rounded up to a power of two; those that no sample
                fills have weight 0.
            drop_last: drop the last partial batch of an epoch.
            purpose: another one than "batches" gives other, independent batches.
            split: whose examples.

        Returns:
            What the last step returned.
        """
        ...

    def count_work(self, gradients: int = 0, forwards: int = 0) -> None:
        """Count work that a step does through `batch_loss` or `logits`, in batches of
        the loop it stands in.
        """
        ...

    def inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        """Examples as they travel, made what the model takes (converted and
        normalised).
        """
        ...

    def draw(
        self, purpose: str, step: ArrayLike, batch_size: int, *, split: str = "train"
    ) -> Batch:
        """The batch number `step` of the sequence that `purpose` names (for methods
        with several batches a step).
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

        It may stand in a step of `loop` (several updates on one batch); `times` is then
        a number known before the loop, such as a hyper-parameter."""
        ...

    def params(self, theta: Float[Array, " d"]) -> Params:
        """The parameters as a pytree; do this once, before a loop."""
        ...

    def vector(self, params: Params) -> Float[Array, " d"]:
        """Back to a vector [d]; do this once, after a loop."""
        ...

    def batch_gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss over a batch in training mode, as a pytree.

        In a step of `loop`, dropout draws from the step's key, anew at every use;
        running statistics get a gradient of zero and are renewed by `sgd`, or by
        `renew_statistics` in steps of the method's own."""
        ...

    def batch_loss(self, params: Params, batch: Batch) -> Float[Array, ""]:
        """Mean loss over a batch in training mode; differentiable in `params` (not
        counted: use `batch_gradient` for gradients)."""
        ...

    def renew_statistics(self, params: Params, batch: Batch) -> Params:
        """The parameters with the running statistics that a training step on a batch
        leaves, and all else as given.

        For steps of the method's own on models with batch normalisation; other models
        come back as they are."""
        ...

    @property
    def has_statistics(self) -> bool:
        """Whether the model keeps running statistics, which its training mode replaces
        by those of a batch.
        """
        ...

    def with_statistics(self, params: Params, source: Params) -> Params:
        """`params` with the running statistics of `source`, such as `renew_statistics`
        makes.
        """
        ...

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], *, training: bool | None = None
    ) -> Shaped[Array, "b ..."]:
        """Outputs of the model for inputs x; in a step of `loop` in training mode, else
        in evaluation mode.

        `training` says otherwise: False for a model that a step reads and does not
        train."""
        ...

    def losses(
        self, outputs: Shaped[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        """The loss of each example, from outputs as `logits` gives them (or
        log-probabilities, of a mixture).
        """
        ...

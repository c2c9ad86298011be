"""Pipelines: sequences of transforms of the messages between clients and server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jaxtyping import Array, Float, PyTree

from fedtailor._base.choice import require
from fedtailor._base.entry_points import register_class
from fedtailor.protocol.cohort import Cohort, Population
from fedtailor.protocol.exchange import ClientRows
from fedtailor.protocol.local_trainer import LocalTrainer
from fedtailor.protocol.messages import ClientUpdate, Downlink, Inbox
from fedtailor.protocol.returned import check_decoded, check_encoded, check_made

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm

MODEL_KINDS = frozenset({"model", "gradient", "control"})
"""Kinds of message that are vectors of the model's size. The ledger counts all other
arrays (examples, weights of a mixture, ...) in bytes only, and single numbers as scalars."""

PRIVATE_STEPS = "private_steps"
"""The message with the number of noisy steps that a client has taken in the round, which
clients send in addition if `SGD` is private.
"""

Update = Mapping[str, ClientRows]

Stage = Literal["mean", "bound", "noise", "byzantine", "entries", "numbers"]
"""What a transform does to an update. An uplink has at most one transform of each stage,
in this order: noise must come after a bound and before compression. The server undoes them
in the opposite order, so that what takes the place of its mean comes last.
"""


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on the clients' updates, as the accounting of privacy needs it.

    Attributes:
        by: who adds it: the server to the sum, or each client to its own update.
        multiplier: its standard deviation, divided by the bound on an update's norm.
        delta: the probability that the guarantee may fail.
    """

    by: Literal["server", "client"]
    multiplier: float
    delta: float


class Transform:
    """One step of a pipeline: subclass it, decorate with `@hyperparameters`, and override
    the methods of a direction.

    Up, in rounds: JAX traces `encode` at the end of the client's part of the algorithm. The
    ledger counts the messages that `encode` returns. On the server, `decode` is called on
    the messages of all clients before the algorithm uses them. The server may keep a state
    for the transform (`init_server`), and send scalars for `encode` together with the
    models (`announce`).

    Down, in every exchange: the server calls `send` on the downlink of the algorithm. The
    ledger counts what `send` returns. JAX traces `receive` at the start of the client's
    part.

    A subclass that sets `name` registers itself.
    """

    name: ClassVar[str]
    """Its name in files and on the command line."""
    stage: ClassVar[Stage | None] = None
    """What it does to an update; None = it may be anywhere in a pipeline."""
    registry: ClassVar[dict[str, type["Transform"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            register_class(Transform.registry, cls.name, cls, "transform")

    def init(self, theta: Float[Array, " d"]) -> PyTree:
        """The initial state that a client keeps for this transform (error feedback).

        Args:
            theta: the common initial model.
        """
        return ()

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        """Transform a client's update before it is sent (traced).

        Args:
            update: kind -> array.
            inbox: what the client received in this exchange.
            state: the client's state of this transform (see `init`).
            local: the client's data, and training on them.

        Returns:
            The update to send, and the new state.
        """
        return update, state

    @property
    def runs_without_reporters(self) -> bool:
        """Whether the server also takes a step in a round in which nobody reports, as it
        must if it adds noise in every round.
        """
        return False

    def init_server(self, population: Population) -> PyTree:
        """The initial state that the server keeps for this transform, in a form that
        checkpoints can store.
        """
        return ()

    def announce(self, downlink: Downlink, state: PyTree) -> Downlink:
        """Add scalars that `encode` needs to the downlink of a round.

        Args:
            downlink: what the algorithm sends.
            state: the server's state of this transform (see `init_server`).
        """
        return downlink

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        """Transform the clients' updates before the algorithm uses them (on the host).

        Args:
            update: kind -> the arrays of all clients of the cohort.
            downlink: what the clients received.
            cohort: the clients.
            state: the server's state of this transform (see `init_server`).

        Returns:
            The update for `Algorithm.server`, and the new state.
        """
        return update, state

    @property
    def noise(self) -> Noise | None:
        """The noise that this transform adds for privacy; None = it adds none."""
        return None

    @property
    def keeps_sums(self) -> bool:
        """Whether what clients send after `encode` may be added up without `decode`, as
        it is behind the masks of secure aggregation.
        """
        return False

    @property
    def is_compression(self) -> bool:
        """Whether `decode` restores what `encode` has compressed, and does nothing else;
        the server then keeps no state for the transform.
        """
        return self.stage in ("entries", "numbers")

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        """The largest Euclidean norm of a client's change after `encode`, up to
        rounding. A coordinator refuses larger ones.

        Args:
            norm: the largest norm before `encode`; None = it is not bounded.
            size: the number of entries of all vectors that a client sends.
            announced: the clip norm that was announced to the clients in this round, if
                one was.

        Returns:
            The bound; None if there is none, or (the default) it is not known.
        """
        return None

    def send(self, downlink: Downlink) -> Downlink:
        """Transform a downlink before it is sent (on the host)."""
        return downlink

    def receive(self, inbox: Inbox) -> Inbox:
        """Transform what a client received before the algorithm uses it (traced)."""
        return inbox

    def check(self, algorithm: "Algorithm") -> None:
        """Refuse an algorithm whose messages this transform is not defined for.

        Raises:
            ValueError: it is not defined for them.
        """


Pipeline = tuple[Transform, ...]
"""Transforms in the order in which the sender applies them; the receiver undoes them in
the opposite order.
"""


def noise_of(
    pipeline: Pipeline, by: Literal["server", "client"] | None = None
) -> Noise | None:
    """The noise that a pipeline adds for privacy; None = it adds none.

    Args:
        pipeline: transforms of updates.
        by: who adds it; None = anybody.

    Raises:
        ValueError: several transforms add noise, which nothing accounts for together.
    """
    found = [transform.noise for transform in pipeline]
    noises = [noise for noise in found if noise is not None and by in (None, noise.by)]
    require(
        len(noises) <= 1,
        f"{len(noises)} transforms add noise to updates; use one, as the privacy of"
        " several together is not accounted for",
    )
    return noises[0] if noises else None


def init_pipeline(pipeline: Pipeline, theta: Float[Array, " d"]) -> tuple[PyTree, ...]:
    """The initial states that a client keeps for the transforms; see `Transform.init`."""
    return tuple(transform.init(theta) for transform in pipeline)


def encode(
    pipeline: Pipeline,
    update: ClientUpdate,
    inbox: Inbox,
    states: tuple[PyTree, ...],
    local: LocalTrainer,
) -> tuple[ClientUpdate, tuple[PyTree, ...]]:
    """Apply every transform's `encode` to a client's update (traced).

    Returns:
        The update to send, and each transform's new state.
    """
    new_states = []
    for transform, state in zip(pipeline, states, strict=True):
        update, new_state = check_encoded(
            transform, state, transform.encode(update, inbox, state, local)
        )
        new_states.append(new_state)
    return update, tuple(new_states)


def send(pipeline: Pipeline, downlink: Downlink) -> Downlink:
    """Apply every transform's `send` to a downlink (on the host)."""
    for transform in pipeline:
        downlink = check_made(transform, "send", Downlink, transform.send(downlink))
    return downlink


def receive(pipeline: Pipeline, inbox: Inbox) -> Inbox:
    """Apply every transform's `receive` to what a client received, in the opposite order
    (traced).
    """
    for transform in reversed(pipeline):
        inbox = check_made(transform, "receive", Inbox, transform.receive(inbox))
    return inbox


def announce(
    pipeline: Pipeline, downlink: Downlink, states: Sequence[PyTree]
) -> Downlink:
    """Add the scalars of every transform of the uplink to the downlink of a round."""
    for transform, state in zip(pipeline, states, strict=True):
        downlink = transform.announce(downlink, state)
    return downlink


def decode(
    pipeline: Pipeline,
    update: Update,
    downlink: Downlink,
    cohort: Cohort,
    states: Sequence[PyTree],
) -> tuple[Update, list[PyTree]]:
    """Apply every transform's `decode` to the clients' updates, in the opposite order (on
    the host).

    Returns:
        The update for `Algorithm.server`, and each transform's new state, in the order of
        the pipeline.
    """
    new_states = []
    for transform, state in zip(reversed(pipeline), reversed(states), strict=True):
        update, new_state = check_decoded(
            transform, transform.decode(update, downlink, cohort, state)
        )
        new_states.append(new_state)
    return update, new_states[::-1]

"""Pipelines: transforms of the messages between clients and server, one after another."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jaxtyping import Array, Float, PyTree

from fedtailor.protocol.cohort import Cohort, Population
from fedtailor.protocol.exchange import ClientRows
from fedtailor.protocol.local_trainer import LocalTrainer
from fedtailor.protocol.messages import ClientUpdate, Downlink, Inbox

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm

MODEL_KINDS = frozenset({"model", "gradient", "control"})
"""Kinds of message that are vectors of the model's size. Everything else (examples,
weights of a mixture, ...) counts in bytes only, and what is one number for each client
as a scalar."""

PRIVATE_STEPS = "private_steps"
"""What clients send beside their update where `SGD` is private: how many noisy steps
they have taken in the round.
"""

Update = Mapping[str, ClientRows]

Stage = Literal["bound", "noise", "entries", "numbers"]
"""What transforms do to an update, in the order in which they may follow each other:
noise must come after a bound and before compression, and only one transform can say how
numbers are written."""


class Transform:
    """One step of a pipeline: subclass it, decorate with `@hyperparameters`, and write
    what it does in a direction.

    Up, in rounds: `encode` is traced at the end of a client's part; what it returns
    travels and is what the ledger counts. `decode` is host code that the server calls
    on all clients' messages before the algorithm sees them. What the server keeps for
    it (`init_server`) may travel down beside the models (`announce`).

    Down, in every exchange: `send` is host code that the server calls on what the
    algorithm sends; what it returns travels and is counted. `receive` is traced at the
    start of a client's part.

    A subclass that sets `name` registers itself.
    """

    name: ClassVar[str]
    """Its name in files and on the command line."""
    stage: ClassVar[Stage | None] = None
    """What it does to an update; of each stage an uplink has one at most, in the order
    of the stages. None: anything, anywhere."""
    registry: ClassVar[dict[str, type["Transform"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            Transform.registry[cls.name] = cls

    def init(self, theta: Float[Array, " d"]) -> PyTree:
        """What a client keeps for this transform from round to round (error feedback),
        at the common initial model.
        """
        return ()

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        """What travels in place of `update` (traced).

        Args:
            update: what the client would send: kind -> array.
            inbox: what it was sent in this exchange.
            state: what it keeps for this transform (`init`).
            local: its data and trainer.

        Returns:
            The messages that travel, and the new state.
        """
        return update, state

    @property
    def runs_without_reporters(self) -> bool:
        """Whether the server takes a step also in a round in which nobody reports
        (noise that must always be there).
        """
        return False

    def init_server(self, population: Population) -> PyTree:
        """What the server keeps for this transform from round to round, as checkpoints
        take it.
        """
        return ()

    def announce(self, downlink: Downlink, state: PyTree) -> Downlink:
        """What travels down in a round in place of what the algorithm sends: numbers
        that `encode` needs.
        """
        return downlink

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        """What the algorithm's `server` sees of the messages that arrived, and what the
        server keeps.

        Args:
            update: kind -> what every client of the cohort sent.
            downlink: what they had been sent.
            cohort: the clients, and who of them reports.
            state: what the server kept.

        Returns:
            kind -> what the algorithm sees of every client, and the new state.
        """
        return update, state

    def send(self, downlink: Downlink) -> Downlink:
        """What travels down in place of `downlink`."""
        return downlink

    def receive(self, inbox: Inbox) -> Inbox:
        """What the client's part of the algorithm sees of what arrived (traced)."""
        return inbox

    def check(self, algorithm: "Algorithm") -> None:
        """Raise `ValueError` where the transform is not defined for what this algorithm
        sends.
        """


Pipeline = tuple[Transform, ...]
"""Transforms in the order in which a client applies them; the server undoes them in the
opposite order.
"""


def init_pipeline(pipeline: Pipeline, theta: Float[Array, " d"]) -> tuple[PyTree, ...]:
    """What a client keeps for every transform, at the common initial model."""
    return tuple(transform.init(theta) for transform in pipeline)


def encode(
    pipeline: Pipeline,
    update: ClientUpdate,
    inbox: Inbox,
    states: tuple[PyTree, ...],
    local: LocalTrainer,
) -> tuple[ClientUpdate, tuple[PyTree, ...]]:
    """Apply every transform's `encode` to what a client sends (traced).

    Returns:
        The messages that travel, and each transform's new state.
    """
    # Each transform is given what the one before it lets travel.
    new_states = []
    for transform, state in zip(pipeline, states, strict=True):
        update, new_state = transform.encode(update, inbox, state, local)
        new_states.append(new_state)
    return update, tuple(new_states)


def send(pipeline: Pipeline, downlink: Downlink) -> Downlink:
    """What travels down in place of `downlink` (on the host)."""
    for transform in pipeline:
        downlink = transform.send(downlink)
    return downlink


def receive(pipeline: Pipeline, inbox: Inbox) -> Inbox:
    """What a client's part of the algorithm sees of what arrived (traced)."""
    for transform in reversed(pipeline):
        inbox = transform.receive(inbox)
    return inbox


def announce(
    pipeline: Pipeline, downlink: Downlink, states: Sequence[PyTree]
) -> Downlink:
    """What an algorithm sends in a round, and what the transforms of the uplink send
    beside it.
    """
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
    """Undo every transform on what arrived, the last one first (on the host).

    Returns:
        What the algorithm's server sees, and each transform's new state, in the order
        of the pipeline.
    """
    new_states = []
    for transform, state in zip(reversed(pipeline), reversed(states), strict=True):
        update, new_state = transform.decode(update, downlink, cohort, state)
        new_states.append(new_state)
    return update, new_states[::-1]

"""`Algorithm`: a method as a handful of pure functions, written for ONE client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float

from fedtailor.protocol.cohort import Cohort, Population
from fedtailor.protocol.diagnostics import Diagnostic
from fedtailor.protocol.exchange import Answers
from fedtailor.protocol.local_trainer import LocalTrainer
from fedtailor.protocol.messages import ClientUpdate, Downlink, Inbox, Streams
from fedtailor.protocol.parts import ModelParts
from fedtailor.protocol.predictor import Predictor
from fedtailor.protocol.state import ClientState, ServerState, server_state

Init = Callable[[int], Float[Array, " d"]]
"""init(k) -> the k-th random initial model theta [d]; init(0) is the common theta^0 of
all methods.
"""


Travels = Literal["nothing", "a part", "one model", "one of several", "several"]
"""Which of the server's models a client receives in a round:

* "nothing": no model;
* "a part": some entries of the server's only model;
* "one model": the server's only model;
* "one of several": one of the server's models, its own or its group's;
* "several": several of the server's models, or all.
"""

Sees = Literal["nothing", "sums", "sums, numbers", "models", "data"]
"""What of the clients' messages the server must be able to read:

* "nothing": clients send nothing;
* "sums": weighted sums of the clients' vectors only, with weights that do not depend on
  the vectors. Secure aggregation can hide each client's vector;
* "sums, numbers": such sums, and a number or two of each client (its loss, which model
  it chose);
* "models": each client's model or gradient;
* "data": examples of clients, or a summary of each client's inputs.
"""


@dataclass(frozen=True)
class About:
    """What the tables of methods say, of the method with its default settings.

    Attributes:
        name: the name on the command line.
        paper: authors, title or code of the paper, and year.
        down: what the server sends to a client in a round.
        up: what a client sends to the server in a round.
        keeps: the state that a client stores between rounds.
        unseen: how a client that never took part in training gets its model.
        travels: which of the server's models a client receives in a round.
        sees: what of the clients' messages the server must be able to read; the default
            promises no privacy.
        validation: what a client decides by its validation data, and by what else if it
            has none; "" = nothing.
    """

    name: str
    paper: str
    down: str
    up: str
    keeps: str
    unseen: str
    travels: Travels = "one model"
    sees: Sees = "models"
    validation: str = ""


@server_state
class GlobalModel(ServerState):
    """One model for everybody."""

    model: Float[Array, "1 d"]
    """The model that clients train."""


class Algorithm:
    """Base of all methods: subclass it, decorate with `@hyperparameters`, set `about`,
    write `client` and `server`.

    The methods are called in this order:

    * before training: `init_server`; `init_client` on each client;
    * each round: `broadcast` on the server, `client` on each client, `server`;
    * to evaluate: `serve` on the server, `personal` on each client;
    * for a client that never took part: `serve` (with `cohort.seen` False), then
      `init_unseen` and `personal` on the client.

    `init_server`, `broadcast`, `server`, `serve` and `aggregate_probe` are host code;
    `init_client`, `client`, `personal`, `init_unseen` and `probe` are traced by JAX and
    run by each client of the cohort. A server state is a `ServerState` of the method's
    own, so that it can be written to a checkpoint; it holds its models as `model`
    [s, d], also if there is only one (s = 1).
    """

    about: ClassVar[About]
    registry: ClassVar[dict[str, type["Algorithm"]]] = {}
    participants: ClassVar[Literal["reporters", "all"]] = "reporters"
    """Who takes part in a round: the clients that report, or all clients (Local,
    pFedMe, L2GD).
    """

    # A class that says what it is can be found by its name: methods outside this
    # package need no other registration.
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "about" in cls.__dict__:
            Algorithm.registry[cls.about.name] = cls

    @property
    def probes(self) -> bool:
        """Whether a probe round precedes training (and the service of an unseen
        client).
        """
        return False

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        """Raise `ValueError` where this method is not defined for this population
        (before anything is computed).
        """

    def init_server(self, init: Init, population: Population) -> Any:
        """The server's state before the first round (a `ServerState`)."""
        return GlobalModel(init(0)[None])

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        """What the server sends to the clients of a training round."""
        raise NotImplementedError

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        """Aggregate what the clients of a round sent.

        Args:
            server: the state before the round.
            downlink: what was sent to the clients.
            answers: what they sent back. What clients sent that do not report
                (`cohort.reporting`) must not be used.
            cohort: the clients of the round.

        Returns:
            The state after the round.
        """
        raise NotImplementedError

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        """What the server sends to clients that shall predict (`personal`), by default
        the same as in a round.

        With `cohort.seen` they took part in training and have their state; otherwise
        they are new and start from what is sent here (`init_unseen`).
        """
        return self.broadcast(server, cohort)

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        """The state that never leaves the client; theta is the common initial model."""
        return ()

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        """`init_client` for methods whose state depends on the model's parts (what
        executors call).
        """
        return self.init_client(theta)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        """One client's part of a round.

        Args:
            state: what the client keeps (`init_client`).
            inbox: what the server sent to it.
            local: its data and trainer.

        Returns:
            Its new state, and what it sends to the server.
        """
        raise NotImplementedError

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        """What this client would predict with now; may train on train and val.

        Args:
            state: what the client keeps; it stays as it is.
            inbox: what `serve` sent to it.
            local: its data and trainer.

        Returns:
            By default the (first) model received.
        """
        return inbox["model"][0]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        """The state of a client that never took part, from what `serve` sent it."""
        return self.init_client(inbox["model"][0])

    # the optional round before training
    # ---------------------------------------------------------------------------

    def probe_downlink(self, server: Any, cohort: Cohort) -> Downlink:
        """What travels down in the probe round (default: the common initial model,
        `server.initial` [d]).
        """
        return Downlink({"model": Streams.everyone(server.initial, len(cohort))})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        """One client's answer to the probe."""
        raise NotImplementedError

    def aggregate_probe(self, server: Any, answers: Answers, cohort: Cohort) -> Any:
        """The server's state after the probe; `cohort` is the whole population."""
        raise NotImplementedError

    # what the method can tell about itself
    # -----------------------------------------------------------------------

    def diagnostics(self, server: Any) -> Sequence[Diagnostic]:
        """What reports draw of the server's state: weights between clients,
        silhouettes, a tree of splits, ...
        """
        return ()

    # schedules
    # ----------------------------------------------------------------------------------

    def phases(self) -> Sequence[tuple["Algorithm", int | None]]:
        """The methods of a schedule, which run one after another.

        Returns:
            (method, rounds) for each; None = the rounds that are left.
        """
        return [(self, None)]

    def global_model(self, server: Any) -> Float[Array, " d"]:
        """The model that the next phase of a schedule starts from.

        Returns:
            By default the first of `server.model`.

        Raises:
            ValueError: the method's server holds no model.
        """
        model = getattr(server, "model", None)
        if model is None:
            raise ValueError(
                f"{self.about.name} has no global model that another method could start"
                " from"
            )
        return model[0]

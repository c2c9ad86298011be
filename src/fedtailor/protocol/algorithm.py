"""`Algorithm`: a method as a handful of pure functions, written for ONE client.

The words of this file:

* theta [d]: a model, with all its parameters in one vector.
* stream: one of the s vectors of one kind that the server sends in a round. FedAvg has
  one stream, its global model; a clustered method has one for each cluster. Streams of
  models are a matrix [s, d].
* seen client: one of the population, which may take part in training. Unseen client
  (newcomer): one that never takes part, and is only served after training.
* cohort: the c clients of one exchange of messages with the server, in the order of their
  ids.
* reporter: a client of the cohort whose answer the server uses in this round (a
  "participating" or "sampled" client in the literature). A cohort may have clients that
  do not report; see `Algorithm.participants`.
* kind: the name of an array in a message, such as "model" or "control".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from jaxtyping import Array, Float

from fedtailor._base.about import About, InCommon, Sees
from fedtailor._base.choice import require_one_of
from fedtailor._base.entry_points import register_class
from fedtailor.protocol.cohort import Cohort, Population
from fedtailor.protocol.diagnostics import Diagnostic
from fedtailor.protocol.exchange import Answers
from fedtailor.protocol.local_trainer import LocalTrainer
from fedtailor.protocol.messages import ClientUpdate, Downlink, Inbox, Streams
from fedtailor.protocol.parts import ModelParts
from fedtailor.protocol.predictors import Predictor
from fedtailor.protocol.state import ClientState, ServerState, server_state

Participants = Literal["reporters", "all"]
Init = Callable[[int], Float[Array, " d"]]
"""init(k) -> the k-th random initial model theta [d]. init(0) is the initial model theta^0
of all methods.
"""


@server_state
class GlobalModel(ServerState):
    """One model for all clients."""

    model: Float[Array, "1 d"]
    """The model that clients train."""


class Algorithm:
    """Base of all methods: subclass it, decorate with `@hyperparameters`, set `about`,
    write `broadcast`, `client` and `server`.

    A run calls these functions in this order. JAX traces those of the client, and each
    client of the cohort runs them for itself. Those of the server run once, in Python:

    =================  ======  =========================================================
    check              server  may refuse the population, before anything else
    init_server        server  makes the server's state
    init_client        client  makes the client's state, if it keeps one
    ---- before round 1, if `probes` ---------------------------------------------------
    probe_downlink     server  what all clients receive
    probe              client  what a client answers, such as a gradient
    aggregate_probe    server  makes a new server state of the answers
    ---- in every round ----------------------------------------------------------------
    asks_again         server  whether clients answer the probe once more before it
    broadcast          server  what the clients of the cohort receive
    client             client  trains; returns its new state and what it sends
    server             server  aggregates the answers into the next server state
    ---- at every evaluation and after training, for seen clients ----------------------
    serve              server  what a client receives to predict with
    personal           client  the model that it predicts with
    ---- likewise, for unseen clients --------------------------------------------------
    probe              client  as above, if `probes`; the server reads `cohort.probes`
    serve              server  as above, with `cohort.seen` False
    init_unseen        client  makes a client state from what was received
    personal           client  the model that it predicts with
    =================  ======  =========================================================

    The server sends a `Downlink`. Each client receives its part of it as an `Inbox`:
    `inbox["model"]` is [k, d], the k models for this client. Most methods send one,
    `inbox.only("model")`.

    Each method defines its own `ServerState`, which checkpoints can store. By convention
    its models are the field `model` [s, d]. Functions return a new state instead of
    changing the old one.
    """

    about: ClassVar[About]
    registry: ClassVar[dict[str, type["Algorithm"]]] = {}
    participants: ClassVar[Participants] = "reporters"
    """Which clients are the cohort of a round, and run `client`: "reporters", or "all" seen
    clients, including those that do not report (Local, pFedMe, L2GD).
    """

    modes: ClassVar[tuple[str, ...]] = ()
    """The words that `Downlink.mode` may have, besides the empty one. A client on a
    machine of its own refuses others.
    """

    # A subclass that sets `about` can be found by its name. Methods outside this
    # package need no other registration.
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(cls.participants, str):
            name = f"{cls.__name__}.participants"
            require_one_of(cls.participants, get_args(Participants), name, repr)
        if "about" in cls.__dict__:
            register_class(Algorithm.registry, cls.about.name, cls, "method")
        # What a method says of its server's part holds for that server only. A subclass
        # with another one says it again, or promises nothing.
        if "server" in cls.__dict__:
            for promise in ("server_sees", "server_only_averages", "sums_per_round"):
                if promise not in cls.__dict__:
                    setattr(cls, promise, Algorithm.__dict__[promise])

    @property
    def server_sees(self) -> Sees:
        """What `server` must know of the clients' messages, with these settings.

        Secure aggregation is for methods whose server needs "sums". By default this is
        what `about` says, or "models" where `about` is that of another server.
        """
        kinds = type(self).__mro__
        described = next(
            (kind for kind in kinds if "about" in kind.__dict__), Algorithm
        )
        serving = next(kind for kind in kinds if "server" in kind.__dict__)
        return self.about.server_sees if issubclass(described, serving) else "models"

    @property
    def in_common(self) -> InCommon:
        """What the clients' networks must have in common, with these settings."""
        return self.about.in_common

    @property
    def server_only_averages(self) -> bool:
        """Whether `server` uses nothing but a mean of one model from each reporter, with
        these settings. Noise on this mean then covers all that it uses.
        """
        return False

    @property
    def sums_per_round(self) -> int:
        """How many sums over the same vectors `server` needs in a round, if it needs
        sums; each hides a client among fewer others.
        """
        return 1

    @property
    def sums_show_clients(self) -> str:
        """Why sums that hide each client by their weights show one all the same, with these
        settings; empty if they do not.

        Several sums do if one vector is another times a number of the client's own: both
        may have the same weights, and a combination of them then has others. One does if all
        clients but one may send back what they received, because of their rows.
        """
        return ""

    def numbers_per_round(self, model: ModelParts) -> int:
        """How many numbers a client sends in a round, at most (a few single numbers
        need not be counted). It says so before it trains.
        """
        return model.size

    @property
    def sent_to_each(self) -> frozenset[str]:
        """The kinds of streams, and the names of numbers, of which `broadcast` sends each
        client its own, such as the model of its cluster. Whatever else is sent, secure
        sums are of clients that were sent the same.
        """
        return frozenset()

    @property
    def sends_class_counts(self) -> bool:
        """Whether a client's messages say how many of its rows each class has, or which
        classes have several. Whole numbers of single clients can follow from a sum with
        unequal weights.
        """
        return False

    @property
    def work_tells_of_rows(self) -> bool:
        """Whether how many gradients and forward passes a client computes depends on what
        is in its rows, and not only on their number. Where masks or noise hide what a
        client sends, it does not say this number then.
        """
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether it is right where training rows have weights, with these settings: its
        clients take means with `Batch.weight` and `LocalTrainer.total`, and its server
        with `Cohort.shares`, and neither with numbers of rows.
        """
        return True

    @property
    def probes(self) -> bool:
        """Whether all clients answer a probe before training, and unseen clients before
        they are served.
        """
        return False

    @property
    def probe_tells_columns(self) -> bool:
        """Whether answers to a probe are sums of a client's inputs, targets or features."""
        return False

    @property
    def probe_needs_all(self) -> bool:
        """Whether a probe fails if a client does not answer it in time. Otherwise
        `aggregate_probe` is given the answers of those at hand, and asks again.
        """
        return True

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        """Refuse a population for which this method is not defined. This is called before
        anything is computed.

        Raises:
            ValueError: the method is not defined for these clients or this model.
        """

    def init_server(self, init: Init, population: Population) -> Any:
        """The server's state before the first round.

        Args:
            init: init(k) is the k-th random initial model [d]; init(0) is the model
                that all methods start from.
            population: the seen clients.

        Returns:
            A `ServerState`; by default the one model init(0).
        """
        return GlobalModel(init(0)[None])

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        """What the server sends at the beginning of a round.

        Args:
            server: the server's state before the round.
            cohort: the clients of the round.

        Returns:
            The arrays of each kind, and which client receives which of them. For one
            model it is `Downlink({"model": Streams.everyone(server.model, len(cohort))})`.
        """
        raise NotImplementedError

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        """Aggregate the answers of a round.

        If `server_sees` is "sums", it is also called before the clients train, with
        answers that say which sums it asks for. These are then added up while the clients
        train, and no model of a single client is kept.

        Args:
            server: the server's state before the round.
            downlink: what `broadcast` sent.
            answers: what the clients sent. `answers["model"]` holds the models of all
                clients of the cohort, which `aggregation.mix` averages.
            cohort: the clients of the round. Answers of clients that do not report
                (`cohort.reporting` is False) must not be used.

        Returns:
            The server's state after the round.
        """
        raise NotImplementedError

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        """What the server sends to clients before they predict, at every evaluation and
        after training.

        Args:
            server: the server's state, which does not change.
            cohort: the clients. If `cohort.seen` is False, they have not taken part in
                training: they are unseen, or were never sampled by a method with client
                states. `init_unseen` then also receives the downlink, and
                `cohort.probes` holds their answers to the probe.

        Returns:
            A downlink; by default that of `broadcast`.
        """
        return self.broadcast(server, cohort)

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        """The client's state before its first round. It never leaves the client.

        Args:
            theta: the common initial model.

        Returns:
            Any tree of arrays; by default (), no state.
        """
        return ()

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        """As `init_client`, for methods whose state depends on the model's parts.

        Executors call this function, which by default calls `init_client`.
        """
        return self.init_client(theta)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        """One client's part of a round: local training.

        Args:
            state: the client's state (see `init_client`).
            inbox: what the client received from `broadcast`.
            local: the client's data, and training on them.

        Returns:
            The client's new state, and its update: kind -> array, such as {"model":
            theta}.
        """
        raise NotImplementedError

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        """The model (or mixture of models) with which this client predicts.

        It may fine-tune on the splits "train" and "val". It changes no state, so that
        evaluating during training does not change the training.

        Args:
            state: the client's state; for an unseen client, that of `init_unseen`.
            inbox: what the client received from `serve`.
            local: the client's data, and training on them.

        Returns:
            A predictor; by default the first model that was received.
        """
        return inbox.only("model")

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        """The state of an unseen client, for `personal`.

        Args:
            inbox: what the client received from `serve`.
            local: the client's data, and training on them.

        Returns:
            A state; by default `init_client` of the first model that was received.
        """
        return self.init_client(inbox.only("model"))

    # the probe: an optional exchange before training that tells the server about the
    # clients (UCFL: how similar their gradients are)
    # ----------------------------------------------------------------------------------

    def probe_downlink(self, server: Any, cohort: Cohort) -> Downlink:
        """What the server sends in the probe; by default the common initial model
        `server.initial` [d].
        """
        return Downlink({"model": Streams.everyone(server.initial, len(cohort))})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        """One client's answer to the probe, such as a gradient. The client has no state
        yet.
        """
        raise NotImplementedError

    def aggregate_probe(self, server: Any, answers: Answers, cohort: Cohort) -> Any:
        """The server's state after the probe.

        Args:
            server: the state of `init_server`.
            answers: the clients' answers to the probe.
            cohort: all seen clients; all of them report if `probe_needs_all`.
        """
        raise NotImplementedError

    def asks_again(self, server: Any) -> bool:
        """Whether all clients answer the probe once more before the next round, at a
        model that has been trained; by default they answer it once.

        Args:
            server: the server's state, which the last answers are part of.
        """
        return False

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        """The smallest and the largest number in messages of the clients that are not
        vectors of the model's size, by kind. A coordinator refuses others; kinds that are
        not named may hold any finite number.

        Args:
            size: the number of training samples of the client.
        """
        return {}

    # reports
    # ----------------------------------------------------------------------------------

    def diagnostics(self, server: Any) -> Sequence[Diagnostic]:
        """Numbers of the server's state after training that reports show, such as the
        weights between clients or a tree of cluster splits.
        """
        return ()

    # schedules
    # ----------------------------------------------------------------------------------

    def phases(self) -> Sequence[tuple["Algorithm", int | None]]:
        """The methods of a schedule, which run one after another (see `Then`).

        Returns:
            (method, rounds) for each method; rounds None = all remaining rounds. By
            default this method alone.
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

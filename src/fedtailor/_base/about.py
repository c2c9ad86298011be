"""`About`: the description of a method in tables of methods."""

from dataclasses import dataclass
from typing import Literal, get_args

from fedtailor._base.choice import require_one_of

ModelsReceived = Literal["nothing", "a part", "one model", "one of several", "several"]
"""Which of the server's models a client receives in a round:

* "nothing";
* "a part": some entries of the only model, such as its body;
* "one model": the only model, whole;
* "one of several": one of the server's models, for this client or for its cluster;
* "several": several models."""

Sees = Literal["nothing", "sums", "sums, numbers", "models", "data"]
"""What the server must know of the clients' messages for its part of a round:

* "nothing";
* "sums": weighted sums over clients, with weights that do not depend on the summed
  vectors, so that secure aggregation can hide each client's vector;
* "sums, numbers": weighted sums of vectors, and one or two numbers of each client, such
  as its loss or the index of the model that it chose;
* "models": the model or gradient of each client;
* "data": examples of clients, or a summary of each client's inputs."""


InCommon = Literal["the network", "nested widths", "the number of features", "nothing"]
"""What the networks of all clients must have in common:

* "the network": they are one;
* "nested widths": they are of one kind, and each is the upper left of the widest one;
* "the number of features": inputs of the last layer;
* "nothing"."""


@dataclass(frozen=True)
class About:
    """A method with its default settings, as tables of methods describe it.

    Attributes:
        name: the name on the command line.
        paper: authors, year and title of the paper.
        down: what the server sends to a client in a round, such as "1 model".
        up: what a client sends to the server in a round.
        client_keeps: what a client keeps from round to round (`Algorithm.init_client`), such
            as "its personal model"; it never leaves the client.
        unseen_clients_get: what an unseen client predicts with, such as "the global
            model".
        models_received: the class of `down`; tables group methods by it.
        server_sees: what the server must know of the clients' messages. The default
            "models" makes no promise to the clients.
        sums_if: the settings with which the server needs sums only, if it does not with
            its default settings (`Algorithm.server_sees` knows the settings).
        in_common: what the clients' networks must have in common.
        validation: what a client chooses on its validation data, and how it chooses
            without such data; "" = the method does not use validation data.
    """

    name: str
    paper: str
    down: str
    up: str
    client_keeps: str
    unseen_clients_get: str
    models_received: ModelsReceived = "one model"
    server_sees: Sees = "models"
    sums_if: str = ""
    validation: str = ""
    in_common: InCommon = "the network"

    def __post_init__(self) -> None:
        for name, words in (
            ("models_received", ModelsReceived),
            ("server_sees", Sees),
            ("in_common", InCommon),
        ):
            require_one_of(
                getattr(self, name), get_args(words), f"{name} of {self.name!r}", repr
            )

"""Different networks for different clients.

A model of such clients is a vector with the parameters of all networks, one after another,
so that all vectors have one length. A client computes with its own network's entries, and
the others stay as they were. Executors group clients by network (`Model.member_of`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Array

from fedtailor._base.choice import require
from fedtailor.models.architecture import Architecture, InPrecision, Network
from fedtailor.models.precision import DType, Precision
from fedtailor.models.wrapper import Wrapper


@dataclass(frozen=True)
class ByClient(Wrapper):
    """One of several networks, see `by_client`. `inner` is the one that computes.

    Attributes:
        members: the networks.
        use: the index of `inner` among them.
        clients: pairs of a client's name and the index of its network, sorted; empty for
            the network of one client.
        default: the index of the network of clients that are not named; None = all
            clients are named.
    """

    members: tuple[Architecture, ...]
    use: int = 0
    clients: tuple[tuple[str, int], ...] = ()
    default: int | None = None

    @property
    def place(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"{self.use}."

    def __str__(self) -> str:
        if not self.is_several:
            return str(self.inner)
        counts = Counter(index for _, index in self.clients)
        parts = []
        for index, member in enumerate(self.members):
            whose = [f"{counts[index]} clients"] if counts[index] else []
            if index == self.default:
                whose.append("all others" if counts else "all clients")
            parts.append(f"{member} of {' and '.join(whose)}")
        return "; ".join(parts)

    @property
    def is_several(self) -> bool:
        """Whether clients still have to be told which network is theirs."""
        return bool(self.clients) or self.default is not None

    def member(self, index: int) -> "ByClient":
        """The network of the clients of one of the members."""
        return replace(
            self, inner=self.members[index], use=index, clients=(), default=None
        )

    def index_of(self, client: str) -> int:
        """The index of a client's network.

        Raises:
            ValueError: the client has none.
        """
        index = dict(self.clients).get(client, self.default)
        if index is None:
            raise ValueError(
                f"client {client!r} has no network; name it in models.by_client, or give"
                " a default"
            )
        return index

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        return tuple(member.build(input_shape, outputs, key) for member in self.members)

    def inner_network(self, network: Network) -> Network:
        return network[self.use]

    def with_inner(self, network: Network, inner: Network) -> Network:
        return (*network[: self.use], inner, *network[self.use + 1 :])

    def in_precision(self, dtype: DType | Precision) -> Architecture:
        return self if dtype == "float32" else InPrecision(self, dtype)


def by_client(
    networks: Mapping[str, Architecture], default: Architecture | None = None
) -> ByClient:
    """Different networks for different clients.

    It is for methods whose clients need no network in common: `Local` and `FedMD`; for
    `FedProto`, `FedTGP`, `FedGH` and `LGFedAvg`, whose networks need as many features
    (inputs of the last layer); and for `HeteroFL`, whose networks are nested. All others
    refuse it.

    A client's vector has the parameters of all networks, of which it trains its own, so
    that k networks take about k times the memory of one.

    Args:
        networks: client name -> its network.
        default: the network of all other clients, newcomers among them; None = every
            client is named.

    Raises:
        ValueError: a value is not a network that can be part of a compiled program, or
            there is none.

    Example:
        >>> small, large = ft.models.mlp(16), ft.models.mlp((64, 16))
        >>> networks = ft.models.by_client(
        ...     dict.fromkeys(federation.names[:5], large), default=small
        ... )
        >>> mixed = ft.run(ft.FedProto(), federation, networks, rounds=2)
        >>> mixed.personal(federation.names[0]).predict(federation.client(0).test.x).shape
        (18,)
    """
    given: list[Any] = [*networks.values(), *([] if default is None else [default])]
    require(len(given) > 0, "by_client needs a network for each client, or a default")
    for network in given:
        require(
            isinstance(network, Architecture),
            f"a client's network is of the kind {type(network).__name__};"
            " fedtailor.models makes networks, such as mlp(64)",
        )
        require(
            network.frozen is None
            and not network.held
            and not (isinstance(network, Wrapper) and network.freezes),
            "a client's own network cannot have frozen arrays",
        )
        require(
            not isinstance(network, InPrecision | ByClient),
            "give by_client plain networks; its own in_precision sets the type of all",
        )
    members = tuple(dict.fromkeys(given))
    clients = tuple(
        sorted((name, members.index(network)) for name, network in networks.items())
    )
    return ByClient(
        inner=members[0],
        members=members,
        clients=clients,
        default=None if default is None else members.index(default),
    )

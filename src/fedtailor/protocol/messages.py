"""What travels: a `Downlink` from the server, an `Inbox` as one client sees it, a
`ClientUpdate` back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray

ClientUpdate = dict[str, Array]
"""What one client sends: kind -> array. Vectors are models, gradients, controls; shape
() counts as a scalar.
"""


Scalars = float | NDArray[np.floating] | NDArray[np.integer] | Array
"""One number for all clients of a cohort, or one for each [c]."""


@dataclass(frozen=True)
class Streams:
    """`s` distinct things of one kind, and who receives which.

    Attributes:
        values: the streams, [s, ...]: models [s, d], controls [s, d], examples [s, n,
            ...].
        recipients: [c, k] rows of `values` that each client of the cohort receives; -1
            = nothing at this position.
        already_held: whether the clients have these values already, so that the ledger
            charges nothing (UCFL's first round starts from the model of the probe).
    """

    values: Shaped[Array, "s ..."]
    recipients: Int[np.ndarray, "c k"]
    already_held: bool = False

    @staticmethod
    def everyone(
        theta: Float[Array, "*one d"], clients: int, already_held: bool = False
    ) -> "Streams":
        """One stream for all clients of the cohort.

        Args:
            theta: a vector [d], or a matrix [1, d] of one.
            clients: the size of the cohort.
            already_held: as in `Streams`.

        Returns:
            Streams [1, d], of which every client receives row 0.
        """
        # stream 0 is the only one there is
        values = theta.reshape(1, -1) if theta.ndim == 1 else theta
        return Streams(values, np.zeros((clients, 1), np.int32), already_held)

    @staticmethod
    def one_each(values: Shaped[Array, "c ..."]) -> "Streams":
        """A stream of its own for each client of the cohort, in the order of the
        cohort.
        """
        own = np.arange(len(values), dtype=np.int32)
        return Streams(values, own[:, None])

    @staticmethod
    def all_to_all(
        values: Shaped[Array, "s ..."], clients: int, already_held: bool = False
    ) -> "Streams":
        """Every stream to every client of the cohort (arguments as for `everyone`)."""
        streams = np.arange(len(values), dtype=np.int32)
        return Streams(values, np.tile(streams, (clients, 1)), already_held)


@dataclass(frozen=True)
class Downlink:
    """Everything the server sends in one exchange.

    Attributes:
        streams: kind ("model", "control", "example", ...) -> `Streams`. Kinds "inputs"
            and "labels" carry examples.
        scalars: a number for everybody, or one for each client of the cohort [c];
            counted apart from bytes.
        reply: whether clients are asked to answer: one bool or [c]. Who reports is
            `cohort.reporting & reply`.
    """

    streams: Mapping[str, Streams] = field(default_factory=dict)
    scalars: Mapping[str, Scalars] = field(default_factory=dict)
    reply: bool | NDArray[np.bool_] = True


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """One client's view of a `Downlink` (traced).

    `inbox["model"]` is [k, d]: the rows addressed to this client, zeros where nothing
    was sent.

    Attributes:
        values: kind -> [k, ...].
        received: kind -> [k] bool: which of the k rows were sent.
        scalars: name -> number.
        reply: whether the server will use this client's answer.
    """

    values: dict[str, Shaped[Array, "k ..."]]
    received: dict[str, Bool[Array, " k"]]
    scalars: dict[str, Array]
    reply: Bool[Array, ""]

    def __getitem__(self, kind: str) -> Shaped[Array, "k ..."]:
        return self.values[kind]

    def only(self, kind: str) -> Shaped[Array, "..."]:
        """What was sent of a kind of which each client receives one: a model [d], not
        [1, d].
        """
        return self.values[kind][0]

"""What travels: `Down` from the server, `Inbox` as one client sees it, `up` (a plain dict) back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray

Up = dict[str, Array]
"""What one client sends: kind -> array. Vectors are models, gradients, controls; shape () counts as a scalar.
On the server the arrays are stacked over the cohort: [c, ...]."""


@dataclass(frozen=True)
class Sent:
    """`s` distinct things of one kind, and who receives which.

    Attributes:
        values: the streams, [s, ...]: models [s, d], controls [s, d], examples [s, n, ...].
        to: [c, k] rows of `values` that each client of the cohort receives; -1 = nothing in this place.
        held: whether the clients already hold these values, so that the ledger charges nothing (UCFL's first round
            starts from the model of the probe).
    """

    values: Shaped[Array, "s ..."]
    to: Int[np.ndarray, "c k"]
    held: bool = False

    @staticmethod
    def everyone(theta: Float[Array, "*one d"], clients: int, held: bool = False) -> "Sent":
        """One stream for all clients of the cohort: a vector [d], or the only row of [1, d]."""
        return Sent(theta.reshape(1, -1) if theta.ndim == 1 else theta, np.zeros((clients, 1), np.int32), held)

    @staticmethod
    def all_to_all(values: Shaped[Array, "s ..."], clients: int, held: bool = False) -> "Sent":
        """Every stream to every client of the cohort."""
        return Sent(values, np.tile(np.arange(len(values), dtype=np.int32), (clients, 1)), held)


@dataclass(frozen=True)
class Down:
    """Everything the server sends in one exchange.

    Attributes:
        sent: kind ("model", "control", "example", ...) -> `Sent`. A name "inputs"/"labels" pair may carry examples.
        note: scalars: a number for everybody, or one for each client of the cohort [c]; counted apart from bytes.
        reply: whether clients are asked to answer: one bool or [c]. Reporters are `cohort.report & reply`.
    """

    sent: Mapping[str, Sent] = field(default_factory=dict)
    note: Mapping[str, float | NDArray[np.floating] | NDArray[np.integer] | Array] = field(default_factory=dict)
    reply: bool | NDArray[np.bool_] = True


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """One client's view of a `Down` (traced).

    `inbox["model"]` is [k, d]: the rows addressed to this client, zeros where nothing was sent.

    Attributes:
        values: kind -> [k, ...].
        got: kind -> [k] bool: which places hold something.
        note: name -> scalar.
        reply: whether the server will use this client's answer.
    """

    values: dict[str, Shaped[Array, "k ..."]]
    got: dict[str, Bool[Array, " k"]]
    note: dict[str, Array]
    reply: Bool[Array, ""]

    def __getitem__(self, kind: str) -> Shaped[Array, "k ..."]:
        return self.values[kind]

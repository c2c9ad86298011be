"""Clients' answers, whose weighted sums the executor holds as the server asked for
them, and not the single arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.protocol.axes import sums_type
from fedtailor.protocol.exchange import ClientRows


@dataclass(frozen=True)
class WeightedSum:
    """Sums over the clients of a cohort that a server is going to ask for.

    Attributes:
        kind: of the messages that are added up.
        index: if each client sends several arrays of this kind, which of them; None = it
            sends one.
        weights: [s, c] the weight of each client in each of the s sums.
    """

    kind: str
    index: int | None
    weights: Float[np.ndarray, "s c"]


class ExpectedSums(Protocol):
    """Says which sums a server will ask for, before the clients train."""

    def __call__(
        self, messages: Mapping[str, jax.ShapeDtypeStruct]
    ) -> Sequence[WeightedSum] | None:
        """The sums, in the order in which the server asks for them.

        Args:
            messages: kind -> shape and type of what each client sends.

        Returns:
            The sums; None if the server needs more of the clients than sums whose weights
            are known before.
        """
        ...

    def give_up(self) -> None:
        """Called if the server asked for something else after all."""
        ...


class SummedRows(ClientRows):
    """One array of every client of a cohort, whose weighted sums were added up
    while the clients trained.

    It replaces `ClientRows`. If the server asks for other sums, or for the array of a
    single client, the clients' work is done once more.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        known: Sequence[tuple[WeightedSum, Shaped[Array, "s ..."]]],
        rows: Callable[[], ClientRows],
        index: int | None = None,
    ) -> None:
        """The arrays of c clients.

        Args:
            shape: (c, ...), the shape of what they sent.
            dtype: its type.
            known: sums of this kind of message, and their values.
            rows: computes the arrays of all clients.
            index: as `WeightedSum.index`.
        """
        # Not by the base class, a frozen dataclass, as `values` and `row` are properties.
        vars(self).update(
            _shape=shape, _dtype=dtype, _known=known, _rows=rows, _index=index
        )

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _known: Sequence[tuple[WeightedSum, Shaped[Array, "s ..."]]]
    _rows: Callable[[], ClientRows]
    _index: int | None

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def item(self, index: int) -> "SummedRows":
        shape = (self._shape[0], *self._shape[2:])
        return SummedRows(shape, self._dtype, self._known, self._rows, index)

    def sums(self, weights: Float[np.ndarray, "s c"]) -> Shaped[Array, "s ..."] | None:
        """Weighted sums over the clients, in the type in which they are added; None if
        they were not added up.
        """
        for asked, total in self._known:
            if asked.index == self._index and np.array_equal(asked.weights, weights):
                return total
        return None

    def rows(self) -> ClientRows:
        """The arrays of all clients, for which they work once more."""
        rows = self._rows()
        return rows if self._index is None else rows.item(self._index)

    # Properties instead of the base class's fields.
    @property
    def values(self) -> Shaped[Array | np.ndarray, "r ..."]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows().values

    @property
    def row(self) -> NDArray[np.int64]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows().row


class MoreThanSums(Exception):
    """A server asked for more than sums, while it was asked which ones it needs."""


class UnknownRows(SummedRows):
    """Arrays that no client has made yet, in order to learn which sums of them a server
    needs. All sums are zero.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        note: Callable[[int | None, NDArray[np.float64]], None],
        index: int | None = None,
    ) -> None:
        """The arrays of c clients.

        Args:
            shape: (c, ...), the shape of what they will send.
            dtype: its type.
            note: is called with the index and the weights [s, c] of each sum.
            index: as `WeightedSum.index`.
        """

        def refuse() -> ClientRows:
            raise MoreThanSums

        super().__init__(shape, dtype, (), refuse, index)
        vars(self).update(_note=note)

    _note: Callable[[int | None, NDArray[np.float64]], None]

    def item(self, index: int) -> "UnknownRows":
        shape = (self._shape[0], *self._shape[2:])
        return UnknownRows(shape, self._dtype, self._note, index)

    def sums(self, weights: Float[np.ndarray, "s c"]) -> Shaped[Array, "s ..."]:
        self._note(self._index, weights)
        shape = (len(weights), *self._shape[1:])
        return jax.device_put(np.zeros(shape, sums_type(self)))

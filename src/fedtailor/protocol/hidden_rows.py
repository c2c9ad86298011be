"""Answers of clients that the server sees as weighted sums only."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import NDArray

from fedtailor.protocol.exchange import ClientRows

Sums = tuple[Float[np.ndarray, "s n"], Bool[np.ndarray, " s"]]
"""s weighted sums of vectors [n], and which of them are known. A sum is unknown if all
clients with a weight in it have left.
"""


class HiddenRows(ClientRows):
    """One vector of every client of a cohort; the server gets weighted sums of them
    only.

    It replaces `ClientRows`, and `mix` accepts it. Reading the vector of a single client
    is refused.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        add_up: Callable[[NDArray[np.float64], int | None], Sums],
        sent_shape: Callable[[], tuple[int, int]],
        index: int | None = None,
    ) -> None:
        """The vectors of c clients.

        Args:
            shape: (c, ...), the shape of what they sent.
            dtype: its type.
            add_up: (weights [s, c], index) -> the sums.
            sent_shape: returns how many masked vectors each client has sent so far, and
                the length of each.
            index: if each client sent several arrays, which of them this object holds;
                None = each client sent one array.
        """
        # Not by the base class, a frozen dataclass, as its field `values` must not exist.
        vars(self).update(
            _shape=shape,
            _dtype=dtype,
            _add_up=add_up,
            _sent_shape=sent_shape,
            _index=index,
            row=np.arange(shape[0]),
        )

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _add_up: Callable[[NDArray[np.float64], int | None], Sums]
    _sent_shape: Callable[[], tuple[int, int]]
    _index: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def sent(self) -> jax.ShapeDtypeStruct:
        """Every client has sent a masked vector of 32-bit numbers for each sum."""
        return jax.ShapeDtypeStruct((self._shape[0], *self._sent_shape()), np.uint32)

    def item(self, index: int) -> "HiddenRows":
        return HiddenRows(
            (self._shape[0], *self._shape[2:]),
            self._dtype,
            self._add_up,
            self._sent_shape,
            index,
        )

    def sums(
        self, weights: Float[np.ndarray, "s c"]
    ) -> tuple[Shaped[np.ndarray, "s ..."], Bool[np.ndarray, " s"]]:
        """Weighted sums over clients.

        If a client leaves before its vector is added, its weight becomes 0, and those of
        the others grow so that each row of weights keeps its sum.

        Args:
            weights: 0 for clients that do not report; no row may be all zero.

        Returns:
            The sums [s, ...] in double precision, and which of them are known [s].
        """
        # A client sends its array as one vector.
        sums, is_known = self._add_up(weights, self._index)
        return sums.reshape(len(weights), *self._shape[1:]), is_known

    # A property instead of the base class's field.
    @property
    def values(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refused.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "the method's server asks for single clients' vectors, and"
            " secure_aggregation shows it sums only"
        )

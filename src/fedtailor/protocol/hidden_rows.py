"""What clients sent where nobody may see a single client's vector: only weighted sums
over clients can be had.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import NDArray

from fedtailor.protocol.exchange import ClientRows

Sums = tuple[Float[np.ndarray, "s n"], Bool[np.ndarray, " s"]]
"""Weighted sums of vectors of n entries, and which of them there are: of the others all
clients with weight left.
"""


class HiddenRows(ClientRows):
    """One vector of every client of a cohort, of which the server gets weighted sums
    and nothing else.

    It stands where `ClientRows` does, and `mix` takes it. Whatever asks for a single
    client's vector is refused.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        add_up: Callable[[NDArray[np.float64], int | None], Sums],
        travelled: Callable[[], tuple[int, int]],
        number: int | None = None,
    ) -> None:
        """The vectors of c clients.

        Args:
            shape: (c, ...) of what they sent.
            dtype: its type.
            add_up: from weights [s, c] and a number (see `item`) to the sums.
            travelled: says how many masked vectors each client has sent so far, and of
                how many numbers each.
            number: of clients that each sent several arrays: which of them is meant;
                None = the only one.
        """
        # Past the base class, a frozen dataclass: its field `values` must not exist here.
        vars(self).update(
            _shape=shape,
            _dtype=dtype,
            _add_up=add_up,
            _travelled=travelled,
            _number=number,
            row=np.arange(shape[0]),
        )

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _add_up: Callable[[NDArray[np.float64], int | None], Sums]
    _travelled: Callable[[], tuple[int, int]]
    _number: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def sent(self) -> jax.ShapeDtypeStruct:
        """What travelled: of every client a masked vector of 32-bit numbers for each
        sum.
        """
        return jax.ShapeDtypeStruct((self._shape[0], *self._travelled()), np.uint32)

    def item(self, number: int) -> "HiddenRows":
        return HiddenRows(
            (self._shape[0], *self._shape[2:]),
            self._dtype,
            self._add_up,
            self._travelled,
            number,
        )

    def sums(
        self, weights: Float[np.ndarray, "s c"]
    ) -> tuple[Shaped[np.ndarray, "s ..."], Bool[np.ndarray, " s"]]:
        """Weighted sums over clients.

        A client that is lost before its vector is added weighs nothing, and the others
        weigh more, so that each row of weights keeps its sum.

        Args:
            weights: each row is not all zero; of clients that do not report it is 0.

        Returns:
            The sums [s, ...] in double precision, and which of them there are.
        """
        # on the wire a client's array is one vector
        sums, is_known = self._add_up(weights, self._number)
        return sums.reshape(len(weights), *self._shape[1:]), is_known

    # A field that cannot be read.
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

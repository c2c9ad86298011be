"""Parts of a model, as methods see them: which entries of theta [d] are trained, sent
or kept.
"""

from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

Vector = TypeVar("Vector", Array, NDArray[Any])


class ModelPart(Protocol):
    """Some entries of theta [d], in the order of theta (`fedtailor.models.Part`)."""

    @property
    def name(self) -> str:
        """The name or pattern that selects it, such as "head"."""
        ...

    @property
    def size(self) -> int:
        """The number of entries, d_part."""
        ...

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each piece of theta [d] that belongs to it, in order."""
        ...

    @property
    def indices(self) -> NDArray[np.int64]:
        """The indices of its entries in theta [d_part]."""
        ...

    @property
    def complement(self) -> "ModelPart":
        """All other entries of theta."""
        ...

    def take(self, theta: Vector) -> Vector:
        """The part's entries of one model [d], or of stacked ones [..., d].

        Returns:
            [..., d_part].
        """
        ...

    def put(self, theta: Vector, values: Vector) -> Vector:
        """Replace the part's entries.

        Args:
            theta: one model [d], or stacked ones [..., d].
            values: the new entries [..., d_part]; leading axes broadcast.

        Returns:
            New models [..., d], whose other entries are those of `theta`.
        """
        ...

    def tree_mask(self, params: Any) -> Any:
        """The part as a tree of bools, one for each array of `params`."""
        ...


class ModelParts(Protocol):
    """What the server's part of a method may know about the model
    (`fedtailor.models.Model`).
    """

    @property
    def size(self) -> int:
        """The number of entries of theta, d."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the model's parts that are neither empty nor all of it."""
        ...

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one example's features.

        Raises:
            ValueError: the model has no head.
        """
        ...

    @property
    def outputs(self) -> int:
        """The number of its outputs, such as classes."""
        ...

    @property
    def has_statistics(self) -> bool:
        """Whether theta holds running statistics."""
        ...

    @property
    def statistics(self) -> ModelPart:
        """The running statistics; an empty part for most models."""
        ...

    @property
    def classification(self) -> bool:
        """Whether its outputs are class scores."""
        ...

    def part(self, name: str) -> ModelPart:
        """The part that a name, such as "head", "everything" or "nothing", or a pattern
        on parameter paths selects.

        Raises:
            ValueError: the model has no such part; the message lists those that it has.
        """
        ...

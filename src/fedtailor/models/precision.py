"""`Precision`: the types in which a model's numbers are kept, computed and added up."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

DType = Literal["float32", "float64", "bfloat16"]

FileDType = Literal["float32", "bfloat16", "mixed"]
"""The precisions that files and the command line name; float64 needs a switch of JAX."""


@dataclass(frozen=True)
class Precision:
    """The types of a model's numbers.

    Attributes:
        parameters: of the vector theta: in messages, in files and at the server.
        compute: of the network's activations and their derivatives.
        sums: of losses, metrics, the steps of local training, and averages over clients.

    Example:
        >>> ft.models.Precision("bfloat16", "bfloat16").sums
        'float32'
    """

    parameters: DType = "float32"
    compute: DType = "float32"
    sums: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in ("float32", "float64", "bfloat16"):
                raise ValueError(
                    f"{field.name} is {value!r}; choose 'float32', 'float64' or"
                    " 'bfloat16'"
                )
        if str(self.sums) == "bfloat16":
            raise ValueError(
                "sums of bfloat16 lose all but their largest parts; choose 'float32'"
            )

    @classmethod
    def of(cls, dtype: "DType | Precision") -> "Precision":
        """The precision of a model's `dtype`: parameters and computation are of this
        type, and sums of bfloat16 are taken in float32.

        Raises:
            ValueError: there is no such type.
        """
        if isinstance(dtype, Precision):
            return dtype
        if dtype not in ("float32", "float64", "bfloat16"):
            raise ValueError(
                f"dtype is {dtype!r}; choose 'float32', 'float64' or 'bfloat16'"
            )
        return cls(dtype, dtype, "float32" if dtype == "bfloat16" else dtype)

    @property
    def is_mixed(self) -> bool:
        """Whether networks compute in a type other than that of sums."""
        return self.compute != self.sums


def dtype_of(name: FileDType) -> DType | Precision:
    """A model's `dtype` from its name in files and on the command line. With "mixed",
    parameters stay in float32, and networks compute in bfloat16.
    """
    return Precision(compute="bfloat16") if name == "mixed" else name


def plain_dtype(dtype: DType | Precision) -> Any:
    """A model's `dtype` as a value of JSON."""
    return asdict(dtype) if isinstance(dtype, Precision) else dtype


def dtype_from_plain(plain: Any) -> Any:
    """The `dtype` that a value of a file describes.

    Raises:
        ValueError: there is no such type.
    """
    if not isinstance(plain, Mapping):
        return plain
    names = [field.name for field in fields(Precision)]
    return Precision(**{name: plain[name] for name in names if name in plain})

"""Array shapes and dtypes, checked at every call of fedtailor's functions.

Only annotations that speak of arrays are checked: what a user may get wrong otherwise
is the library's own to refuse.
"""

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The type checker that jaxtyping applies to every function."""
    if (
        function.__name__ == "__init__"
    ):  # JAX rebuilds pytrees with whatever stands in an array's place
        return function
    function.__annotations__ = {
        name: hint
        for name, hint in function.__annotations__.items()
        if _of_arrays(hint)
    }
    return beartype(function)


def _of_arrays(hint: Any) -> bool:
    """Whether a jaxtyping array such as Float[Array, " d"] occurs in an annotation."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(
        map(_of_arrays, get_args(hint))
    )

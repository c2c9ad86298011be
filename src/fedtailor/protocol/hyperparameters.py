"""`@hyperparameters`: the settings of a method as a frozen dataclass that is also a JAX
pytree.

Numbers that may change from call to call (`float`, and `int` fields annotated
`TracedInt`) are leaves, so that another learning rate or number of epochs costs no new
compilation; everything else (booleans, names, batch sizes, structure) is static. A
`ZeroIsStatic` is a float whose value 0.0 is structure: momentum 0.0 compiles to a
program without a buffer.
"""

import dataclasses
import math
import typing
from collections.abc import Iterable
from typing import Annotated, Any, TypeGuard, TypeVar, dataclass_transform

import jax
import numpy as np

_TRACED = "fedtailor: traced"
_SWITCH = "fedtailor: zero is structure"
_STRUCTURE = "_fedtailor_structure"
_ENDLESS = "fedtailor: may be infinite"

TracedInt = Annotated[int, _TRACED]
"""An integer on which no array shape depends: traced, so that changing it does not
recompile.
"""

ZeroIsStatic = Annotated[float, _SWITCH]
"""A float that switches a term off when it is exactly 0.0 (see `is_off`)."""

MayBeInfinite = Annotated[float, _ENDLESS]
"""A float for which infinity has a meaning (a threshold that nothing reaches); all
others must be finite.
"""

T = TypeVar("T")

Structure = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The static part of a pytree of hyper-parameters: the names of its leaves, and (name,
value) of all other fields.
"""


def is_off(value: object) -> TypeGuard[float]:
    """Whether a `ZeroIsStatic` is off; decided while tracing, so a switched-off term
    costs nothing.
    """
    return isinstance(value, float) and value == 0.0


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds: one line that says what is
    wrong and what to do.
    """
    if not condition:
        raise ValueError(message)


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree (class decorator; subclasses need it
    again).

    Returns:
        `cls` itself; its instances have the leaves that the module's docstring says.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    _accept_integers_as_floats(cls, hints)
    # Equality is identity: JAX compares the static part of the tree, and leaves may be
    # arrays, which do not compare.
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    # The fields whose annotations allow a leaf; their values decide, too.
    names = [field.name for field in dataclasses.fields(typing.cast(Any, made))]
    floats = {name for name in names if _mentions(hints[name], float)}
    traced_ints = {name for name in names if _mentions(hints[name], _TRACED)}
    switches = {name for name in names if _mentions(hints[name], _SWITCH)}

    def is_leaf(name: str, value: object) -> bool:
        # bool before int, of which it is a subclass
        if value is None or isinstance(value, bool | str):
            return False
        if name in switches and is_off(value):
            return False
        if isinstance(value, int):
            return name in traced_ints
        if isinstance(value, float):
            return name in floats
        if is_hyperparameters(value):
            return True
        return isinstance(
            value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
        )

    def structure_of(value: Any) -> Structure:
        # An instance that JAX rebuilt keeps the structure of the original: its leaves may
        # be placeholders, whose types say nothing.
        known = vars(value).get(_STRUCTURE)
        if known is not None:
            return known
        dynamic = tuple(name for name in names if is_leaf(name, getattr(value, name)))
        static = tuple(
            (name, getattr(value, name)) for name in names if name not in dynamic
        )
        return dynamic, static

    def flatten(value: Any) -> tuple[list[Any], Structure]:
        structure = structure_of(value)
        dynamic, _ = structure
        return [getattr(value, name) for name in dynamic], structure

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Structure]:
        leaves, structure = flatten(value)
        dynamic, _ = structure
        keys = map(jax.tree_util.GetAttrKey, dynamic)
        return list(zip(keys, leaves, strict=True)), structure

    def unflatten(structure: Structure, leaves: Iterable[Any]) -> T:
        dynamic, static = structure
        # Not through __init__: leaves may be tracers, which cannot be validated.
        value = object.__new__(made)
        attributes = vars(value)
        attributes.update(zip(dynamic, leaves, strict=True))
        attributes.update(static)
        attributes[_STRUCTURE] = structure
        return value

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    made.__is_hyperparameters__ = True  # type: ignore[attr-defined]
    return made


def is_hyperparameters(value: object) -> bool:
    """Whether `value` is an instance of a class decorated with `@hyperparameters`."""
    return getattr(type(value), "__is_hyperparameters__", False) is True


def _mentions(hint: Any, wanted: Any) -> bool:
    """Whether an annotation is `wanted`, or names it in a union or as `Annotated`
    metadata.
    """
    if hint is wanted or (isinstance(hint, str) and hint == wanted):
        return True
    # The arguments of a Literal are values, not annotations.
    if typing.get_origin(hint) is typing.Literal:
        return False
    parts = (*typing.get_args(hint), *getattr(hint, "__metadata__", ()))
    return any(_mentions(part, wanted) for part in parts)


def _accept_integers_as_floats(cls: Any, hints: dict[str, Any]) -> None:
    """Add to `__post_init__`: integers given for float fields become floats, so that
    `SGD(lr=1)` is the same program as `SGD(lr=1.0)`; NaN and infinity are refused.
    """
    names = [
        name
        for name, hint in hints.items()
        if _mentions(hint, float) and not _mentions(hint, int)
    ]
    finite = [name for name in names if not _mentions(hints[name], _ENDLESS)]
    validate = getattr(cls, "__post_init__", None)

    def post_init(self: Any) -> None:
        for name in names:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
        if validate is not None:
            validate(self)
        for name in finite:
            value = getattr(self, name)
            require(
                not isinstance(value, float) or math.isfinite(value),
                f"{name} is {value}; it must be a finite number",
            )

    cls.__post_init__ = post_init

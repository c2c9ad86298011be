"""`@hyperparameters`: the settings of a method as a frozen dataclass that is also a JAX
pytree.

    @hyperparameters
    class Settings:
        lr: float                       # leaf: another value needs no new compilation
        epochs: TracedInt               # leaf, too
        batch_size: int                 # static, as shapes depend on it
        momentum: ZeroIsStatic = 0.0    # leaf, but static while it is exactly 0.0

JAX traces the leaves of the pytree. All other fields (`str`, `bool`, `None` and plain
`int`) are static: they are part of the pytree's structure, and another value needs a new
compilation. With momentum 0.0 the program has no momentum buffer.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, TypeGuard, TypeVar, dataclass_transform

import jax
import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.field_docs import DocWithFields, doc_without_fields

# Markers in the metadata of `Annotated` types.
_TRACED = "fedtailor: traced"
_ZERO_IS_STATIC = "fedtailor: zero is structure"
_MAY_BE_INFINITE = "fedtailor: may be infinite"

_STRUCTURE = "_fedtailor_structure"
"""The attribute of an instance rebuilt by JAX that holds the original's structure."""

TracedInt = Annotated[int, _TRACED]
"""An integer on which no array shape depends. It is traced, so that another value needs no
new compilation.
"""

ZeroIsStatic = Annotated[float, _ZERO_IS_STATIC]
"""A float that switches a term off when it is exactly 0.0 (see `is_off`)."""

MayBeInfinite = Annotated[float, _MAY_BE_INFINITE]
"""A float that may be infinite, such as a threshold that is never reached. All other
floats must be finite.
"""

T = TypeVar("T")

Structure = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The static part of a pytree of hyper-parameters: the names of its leaves, and (name,
value) of all other fields.
"""


def is_off(value: object) -> TypeGuard[float]:
    """Whether a `ZeroIsStatic` field is exactly 0.0, as a Python float.

    This is known while JAX traces, so that the compiled program can leave the term out.
    """
    return isinstance(value, float) and value == 0.0


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree (class decorator).

    Its subclasses must be decorated again.

    Returns:
        `cls` itself. Which of its fields are leaves is explained at the top of the
        module.
    """
    annotations = typing.get_type_hints(cls, include_extras=True)
    _add_checks(cls, annotations)
    # Instances are compared by identity, since leaves may be arrays, whose comparison
    # is not a bool. JAX compares the static part of the tree by itself.
    new_class = dataclasses.dataclass(frozen=True, eq=False)(cls)
    new_class.__doc__ = DocWithFields(doc_without_fields(new_class))  # type: ignore[assignment]
    # Annotations determine which fields may be leaves; values determine which of these
    # are leaves.
    names = [field.name for field in dataclasses.fields(typing.cast(Any, new_class))]
    floats = {name for name in names if _contains(annotations[name], float)}
    traced_ints = {name for name in names if _contains(annotations[name], _TRACED)}
    static_at_zero = {
        name for name in names if _contains(annotations[name], _ZERO_IS_STATIC)
    }

    def is_leaf(name: str, value: object) -> bool:
        # A bool is also an int, so it is tested first.
        if value is None or isinstance(value, bool | str):
            return False
        if name in static_at_zero and is_off(value):
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
        # An instance that JAX rebuilt keeps the structure of the original, since its
        # leaves may be placeholders, from whose types no structure can be inferred.
        original = vars(value).get(_STRUCTURE)
        if original is not None:
            return original
        dynamic = tuple(name for name in names if is_leaf(name, getattr(value, name)))
        static = tuple(
            (name, getattr(value, name)) for name in names if name not in dynamic
        )
        return dynamic, static

    def flatten(value: Any) -> tuple[list[Any], Structure]:
        structure = structure_of(value)
        dynamic, _ = structure
        return [getattr(value, name) for name in dynamic], structure

    def unflatten(structure: Structure, leaves: Iterable[Any]) -> T:
        dynamic, static = structure
        # Without `__init__`, as leaves may be tracers, which cannot be validated.
        value = object.__new__(new_class)
        attributes = vars(value)
        attributes.update(zip(dynamic, leaves, strict=True))
        attributes.update(static)
        attributes[_STRUCTURE] = structure
        return value

    jax.tree_util.register_pytree_node(new_class, flatten, unflatten)
    new_class.__is_hyperparameters__ = True  # type: ignore[attr-defined]
    return new_class


def require_decorated(kind: type) -> None:
    """Refuse a class that is not decorated itself: the mark of its base is inherited, and
    does not say how to trace the class.

    Raises:
        ValueError: with the class.
    """
    require(
        "__is_hyperparameters__" in vars(kind),
        f"the class {kind.__name__} is not decorated; write @hyperparameters above it"
        f"{see('write-an-algorithm#1-the-file')}",
    )


def is_hyperparameters(value: object) -> bool:
    """Whether `value` is an instance of a class decorated with `@hyperparameters`."""
    return getattr(type(value), "__is_hyperparameters__", False) is True


def _contains(annotation: Any, item: Any) -> bool:
    """Whether `item` is an annotation itself, a member of its union, or a marker in the
    metadata of its `Annotated`.
    """
    if annotation is item or (isinstance(annotation, str) and annotation == item):
        return True
    # The arguments of a Literal are values, not annotations.
    if typing.get_origin(annotation) is typing.Literal:
        return False
    metadata = getattr(annotation, "__metadata__", ())
    members = (*typing.get_args(annotation), *metadata)
    return any(_contains(member, item) for member in members)


def _add_checks(cls: Any, annotations: dict[str, Any]) -> None:
    """Add checks to `__post_init__`.

    Values of a kind other than their fields' are refused. Integers in float fields are
    converted, so that `SGD(lr=1)` and `SGD(lr=1.0)` are the same program, and NaN and
    infinity are refused.
    """
    names = [
        name
        for name, annotation in annotations.items()
        if _contains(annotation, float) and not _contains(annotation, int)
    ]
    finite = [
        name for name in names if not _contains(annotations[name], _MAY_BE_INFINITE)
    ]
    validate = getattr(cls, "__post_init__", None)

    def post_init(self: Any) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # A number or word that was taken out of an array.
            if isinstance(value, np.generic):
                value = value.item()
                object.__setattr__(self, field.name, value)
            # A subclass checks the fields that it adds.
            if field.name in annotations and value is not field.default:
                _check_kind(field.name, value, annotations[field.name])
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


_KIND_NAMES = {
    float: "a number",
    int: "a whole number",
    bool: "True or False",
    str: "a word",
    types.NoneType: "None",
}
_PLAIN = (str, int, float, types.NoneType, tuple, list, dict, set, type)


def _check_kind(name: str, value: object, annotation: Any) -> None:
    """Refuse a plain value, a class or other settings in a field of another kind, and a
    word that is none of the field's.

    Arrays pass, as JAX puts its own instead of numbers.
    """
    if is_hyperparameters(value):
        require_decorated(type(value))
    members = _members(annotation)
    is_plain = isinstance(value, _PLAIN) or is_hyperparameters(value)
    if not members or not is_plain or any(_is_of(value, it) for it in members):
        return
    if isinstance(value, type) and value in members:
        raise ValueError(
            f"{name} is the class {value.__name__}; make one of it: {value.__name__}()"
        )
    *others, last = map(_in_words, members)
    allowed = f"{', '.join(others)} or {last}" if others else last
    raise ValueError(f"{name} is {value!r}; it must be {allowed}")


def _members(annotation: Any) -> list[Any]:
    """The classes that an annotation names, and the values of its `Literal`; none if it
    admits any value.
    """
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _members(annotation.__origin__)
    if origin is typing.Literal:
        return list(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        members = [_members(member) for member in typing.get_args(annotation)]
        return [it for member in members for it in member] if all(members) else []
    is_class = isinstance(annotation, type) and origin is None
    # `Any` is a class, too, and every value is an object.
    return [annotation] if is_class and annotation not in (Any, object) else []


def _in_words(member: Any) -> str:
    """What a message calls one of `_members`."""
    if not isinstance(member, type):
        return repr(member)
    other = f"of the class {member.__name__}, such as {member.__name__}()"
    return _KIND_NAMES.get(member, other)


def _is_of(value: object, member: Any) -> bool:
    """Whether a value is one of `_members`, or of its class."""
    if not isinstance(member, type):
        # True == 1, and a word may be of a subclass of str.
        is_bool = isinstance(value, bool), isinstance(member, bool)
        return is_bool[0] == is_bool[1] and value == member
    # A bool is also an int, and an int may stand for a float.
    if isinstance(value, bool):
        return member is bool
    if member is float:
        return isinstance(value, int | float)
    return isinstance(value, member)

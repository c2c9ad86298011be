"""`@server_state`: the state that a method's server keeps from round to round, as a class
with typed fields.
"""

import dataclasses
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
from jaxtyping import PyTree

T = TypeVar("T")

ClientState = PyTree
"""The state that a client keeps from round to round: any pytree of arrays, () for none."""


class ServerState:
    """Base of server states: subclass it and decorate with `@server_state`.

    Fields hold arrays, numbers, strings, None, and lists, tuples, dicts or other server
    states of these, so that they can be written to a checkpoint. By convention the
    server's models are the field `model` [s, d], and the common initial model at which a
    probe is made is the field `initial` [d].
    """

    registry: ClassVar[dict[str, type["ServerState"]]] = {}

    def replace(self, **changes: Any) -> Self:
        """A copy of the state with some fields changed."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType] (subclasses are dataclasses)


@dataclass_transform(frozen_default=True)
def server_state(cls: type[T]) -> type[T]:
    """Make a subclass of `ServerState` a frozen dataclass that checkpoints can write
    and read (class decorator).
    """
    state_class = dataclasses.dataclass(frozen=True, eq=False)(cls)
    # Every field is data to JAX, so that the paths of a checkpoint are the names of the
    # fields.
    names = [field.name for field in dataclasses.fields(state_class)]  # pyright: ignore[reportArgumentType]
    jax.tree_util.register_dataclass(state_class, data_fields=names, meta_fields=[])
    ServerState.registry[state_name(state_class)] = state_class  # pyright: ignore[reportArgumentType]
    return state_class


def state_name(cls: type) -> str:
    """The name of a class of states in checkpoints."""
    return f"{cls.__module__}.{cls.__qualname__}"

"""`@server_state`: what a method's server keeps from round to round, as a class with
typed fields.
"""

import dataclasses
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
from jaxtyping import PyTree

T = TypeVar("T")

ClientState = PyTree
"""What a client keeps from round to round: any pytree of arrays, () for nothing."""


class ServerState:
    """Base of server states: subclass it and decorate with `@server_state`.

    Fields hold arrays, numbers, strings, None, and lists, tuples, dicts or other server
    states of these, so that they can be written to a checkpoint. By convention the
    server's models stand under `model`, [s, d], and the common initial model that a
    probe is made at under `initial`, [d].
    """

    registry: ClassVar[dict[str, type["ServerState"]]] = {}

    def replace(self, **changes: Any) -> Self:
        """The same state with some fields changed."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType] (subclasses are dataclasses)


@dataclass_transform(frozen_default=True)
def server_state(cls: type[T]) -> type[T]:
    """Make a subclass of `ServerState` a frozen dataclass that checkpoints can write
    and read (class decorator).
    """
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    # Every field is data to JAX, so that the paths of a checkpoint are the names of the
    # fields.
    names = [field.name for field in dataclasses.fields(made)]  # pyright: ignore[reportArgumentType]
    jax.tree_util.register_dataclass(made, data_fields=names, meta_fields=[])
    ServerState.registry[state_name(made)] = made  # pyright: ignore[reportArgumentType]
    return made


def state_name(cls: type) -> str:
    """What a checkpoint calls a class of states."""
    return f"{cls.__module__}.{cls.__qualname__}"

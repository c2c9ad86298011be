"""The executor of one client that arrives after training."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.executors.device_executor import DeviceExecutor
from fedtailor.engine.executors.kinds import executor_kind
from fedtailor.engine.executors.settings import Settings
from fedtailor.models import Model


def newcomer_executor(
    federation: Federation,
    model: Model,
    x: NDArray[Any],
    y: NDArray[Any],
    name: str,
    group: int | None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> DeviceExecutor:
    """An executor whose only client never takes part in training.

    Args:
        federation: the federation that was trained. It determines the shapes of inputs
            and targets, and the normalisation of inputs.
        model: the model that was trained.
        x: the client's inputs [n, ...].
        y: its targets [n, ...].
        name: its name, which no client of the federation has.
        group: its true group; None if the data have no groups.
        settings: how to use the devices; one device is used.

    Returns:
        An executor whose `unseen` table is this client, and whose `seen` table is
        empty.

    Raises:
        ValueError: the examples do not fit the federation, or it has a client of that
            name.
    """
    require(
        name not in federation.names,
        f"client {name!r} is already in the federation; use personal({name!r})",
    )
    require(
        len(x) == len(y) > 0,
        f"{len(x)} inputs and {len(y)} targets; both must be of the same length, at"
        " least 1",
    )
    require(
        x.shape[1:] == federation.input_shape,
        f"inputs have shape {x.shape[1:]}, expected {federation.input_shape}",
    )
    # The client gets a federation of its own, so that executors need no code for newcomers.
    guest = Federation(
        x=x.astype(federation.x.dtype),
        y=y.astype(federation.y.dtype),
        train=Ragged.of([np.arange(len(x))]),
        val=Ragged.empty(1),
        test=Ragged.empty(1),
        names=(name,),
        groups=None if group is None else np.array([group]),
        classes=federation.classes,
        shift=federation.shift,
        scale=federation.scale,
        name=federation.name,
    )
    executor_class = executor_kind(settings)
    executor = executor_class(guest, model, replace(settings, devices=1))
    # A federation must have a seen client, but the server treats this one as unseen.
    executor.seen, executor.unseen = executor.unseen, executor.seen
    return executor

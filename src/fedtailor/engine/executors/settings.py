"""Settings of executors. None of them changes results beyond rounding."""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from fedtailor._base.choice import require
from fedtailor._base.runtime import local_devices
from fedtailor._base.xla_flags import wait_without_limit
from fedtailor.engine.executors.map_clients import AXIS


@dataclass(frozen=True)
class Settings:
    """Where and how clients are trained.

    Attributes:
        devices: how many of this process's devices to use; None = all devices of all
            processes.
        chunk: the number of clients that a device trains at the same time; None = 1 on
            CPUs, and on accelerators as many as fit into the free memory.
        canonical: aggregate on one device in the order of client ids, so that results are
            bitwise equal for any number of devices.
        debug: train one client at a time without compilation; errors name the client and
            the step.
        state_limit: in bytes. If the clients' states need more, they are kept in a file,
            and only those of the cohort are read. Results are equal to the bit. The file
            of a run with a run directory is in that directory.
        state_dir: the directory of that file for runs without a run directory. The file
            has no name and is deleted when the process ends. None = the directory of
            temporary files, which may be a disk in memory.

    Example:
        >>> slow = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=1,
        ...     settings=ft.Settings(debug=True),
        ... )
    """

    devices: int | None = None
    chunk: int | None = None
    canonical: bool = False
    debug: bool = False
    state_limit: int = 2**30
    state_dir: Path | str | None = None

    def __post_init__(self) -> None:
        require(
            self.devices is None or self.devices >= 1,
            f"devices is {self.devices}; it must be 1 or more",
        )
        require(
            self.chunk is None or self.chunk >= 1,
            f"chunk is {self.chunk}; it must be 1 or more",
        )
        require(
            self.state_limit >= 0,
            f"state_limit is {self.state_limit} bytes; it must be 0 or more",
        )

    def mesh(self) -> Mesh:
        """The devices, as a mesh with the one axis "clients".

        Raises:
            ValueError: more devices asked for than JAX has.
        """
        wait_without_limit()  # before the first call of JAX here, which starts XLA
        # A number of devices refers to those of this process. Without a number, all
        # processes use their devices together.
        own_only = self.debug or self.devices is not None
        is_alone = jax.process_count() == 1
        available = local_devices() if own_only or is_alone else jax.devices()
        count = 1 if self.debug else self.devices or len(available)
        require(
            count <= len(available),
            f"{count} devices asked for, but JAX has {len(available)}",
        )
        return Mesh(np.array(available[:count]), (AXIS,))

    @property
    def trains_in_chunks(self) -> bool:
        """Whether a device trains several clients at the same time."""
        return jax.default_backend() != "cpu" if self.chunk is None else self.chunk > 1

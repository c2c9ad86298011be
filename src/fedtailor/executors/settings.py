"""How clients are run; none of this changes results beyond rounding."""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from fedtailor.executors.map_clients import AXIS
from fedtailor.protocol import require


@dataclass(frozen=True)
class Settings:
    """Where and how clients are trained.

    Attributes:
        devices: how many of this process's devices to use; None = all, of all
            processes.
        chunk: clients trained at once on one device; None = 1 on CPUs, elsewhere as
            many as the free memory holds.
        canonical: aggregate on one device in the order of client ids: bitwise equal
            results for any number of devices.
        debug: one client at a time without compilation; errors name the client and the
            step.
        state_limit: bytes; the clients' states of a population that need more are kept
            in a file, from which only the cohort's are read: results stay the same to
            the bit. A run directory keeps its own file.
        state_dir: where that file is (it has no name and goes with the process) when
            there is no run directory; None = where temporary files go, which may be a
            disk in memory.
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
        # A number of devices counts those of this process alone; without one, the
        # devices of all processes work together.
        own_only = self.debug or self.devices is not None
        available = jax.local_devices() if own_only else jax.devices()
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

"""What the clients of an exchange need of the memory."""

from dataclasses import asdict, dataclass

STEP_VECTORS = 4
"""Vectors of a model's size that a device needs while it trains one client: parameters,
their gradient, momentum and the result.
"""


@dataclass(frozen=True)
class RoundMemory:
    """Bytes that an exchange needs, in addition to the examples and the server's own state.

    Attributes:
        clients: rows of the program, padding included.
        devices: how many there are. On CPUs they share one memory.
        model: of one model.
        streams: what the server sends, a copy on every device.
        states: the clients' states, before and after.
        training: for the clients that are trained at the same time.
        answers: what the clients send, a row for each; or their sums on every device.
        are_sums: whether answers are added up while the clients train.
    """

    clients: int
    devices: int
    model: int
    streams: int
    states: int
    training: int
    answers: int
    are_sums: bool

    @property
    def total(self) -> int:
        return self.streams + self.states + self.training + self.answers

    def as_dict(self) -> dict[str, int | bool]:
        """All numbers by name, and their total."""
        return {**asdict(self), "total": self.total}

    def in_words(self, task: str) -> dict[str, str]:
        """What is printed about an exchange with a task of the clients."""
        what = "a probe" if task == "probe" else "a round"
        kind = "sums of the answers" if self.are_sums else "answers of all clients"
        sizes = {
            "one model": self.model,
            "sent to the clients": self.streams,
            "states before and after": self.states,
            "clients that train at the same time": self.training,
            kind: self.answers,
            f"{what} needs, without data and program": self.total,
        }
        return {
            "clients": f"{self.clients:,} (padding included)",
            "devices": str(self.devices),
            **{name: f"{size / 2**20:,.1f} MiB" for name, size in sizes.items()},
        }


def gib(size: float) -> str:
    """Bytes, for messages."""
    return f"{size / 2**30:,.{0 if size > 10 * 2**30 else 2}f} GiB"

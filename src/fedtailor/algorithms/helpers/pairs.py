"""Methods that compare every client with every other one."""

from fedtailor._base.memory import check_memory
from fedtailor.protocol import Population

PAIR_BYTES = 8


def check_pairs(population: Population, method: str) -> None:
    """Require that a number for each pair of clients fits into this machine's memory.

    Raises:
        ValueError: it does not; the message is one line.
    """
    clients = len(population)
    check_memory(
        float(clients) ** 2,
        PAIR_BYTES,
        f"{method}, which compares each of {clients:,} clients with each other,",
    )

"""The runs of a comparison shared by several processes, which see one directory.

Nothing but the run directories says who does what. A process begins with its own share
of the runs, and then takes whatever is left over. A run that another process trains is
locked: it is passed over and looked at again later. If that process is killed, its lock
is gone, and the next one that looks goes on from the run's last checkpoint.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedtailor.engine.storage import InUse

SECONDS_BETWEEN_LOOKS = 2.0

ShardedTask = Callable[[], "Iterable[ShardedTask]"]
"""Trains a run, unless it is finished, and returns what follows from it.

Raises `InUse` if another process trains the run.
"""


@dataclass(frozen=True)
class Shard:
    """The part of the runs with which one of several processes begins.

    Attributes:
        number: of the process, from 1.
        count: of processes.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """ "2/3" is the second of three processes.

        Raises:
            ValueError: the text is something else.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise ValueError(
                f"shard is {text!r}; give the number of the process and how many there"
                " are, such as 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(number, count)

    def order(self, tasks: Iterable[ShardedTask]) -> list[ShardedTask]:
        """Its own tasks, and after them those of the others, the last of them first."""
        tasks = list(tasks)
        own = tasks[self.number - 1 :: self.count]
        others = [
            task
            for number, task in enumerate(tasks)
            if number % self.count != self.number - 1
        ]
        return own + others[::-1]


def do_all(
    tasks: Iterable[ShardedTask], wait: Callable[[float], None] = time.sleep
) -> None:
    """Do all tasks, and what follows from them, together with other processes.

    Returns when all are done, by whichever process. While others do all that is left,
    it waits for them, as one of them may be killed.
    """
    left = deque(tasks)
    while left:
        in_use: list[ShardedTask] = []
        has_worked = False
        while left:
            task = left.popleft()
            try:
                left.extend(task())
            except InUse:
                in_use.append(task)
            else:
                has_worked = True
        left.extend(in_use)
        if left and not has_worked:
            wait(SECONDS_BETWEEN_LOOKS)

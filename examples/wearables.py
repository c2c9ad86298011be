"""Activity recognition for 24 people, from a made table to a decision, in a minute.

Each person wears a sensor of three axes. Who wears it on the other wrist sees two axes
turned around, which is the known difference between two groups; and everybody has a pace
of their own. `python examples/wearables.py [DIR]` writes the table and runs the command
line on it.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from fedtailor.cli import main

PEOPLE, ROWS, RATE = 24, 1600, 25.0
ACTIVITIES = {"sitting": (0.0, 0.1), "walking": (1.8, 1.0), "stairs": (1.4, 1.2)}
"""Activity -> steps a second, and how strongly the sensor moves."""


def made_table(seed: int = 0) -> pl.DataFrame:
    """A long table: person, time in seconds, three channels, activity."""
    rng = np.random.default_rng(seed)
    parts = []
    for person in range(PEOPLE):
        pace, other_wrist = rng.uniform(0.8, 1.2), person % 2 == 1
        begin = 0.0
        for activity, (frequency, strength) in ACTIVITIES.items():
            time = begin + np.arange(ROWS) / RATE
            phase = 2 * np.pi * frequency * pace * time
            up = strength * np.sin(phase)
            # Stairs differ from walking in where the axes lean, not in how they swing.
            forward = 0.5 * strength * np.sin(2 * phase)
            lean = {"sitting": 0.0, "walking": 0.6, "stairs": -0.6}[activity]
            sign = -1.0 if other_wrist else 1.0
            channels = np.stack([up, sign * (forward + lean), sign * (0.3 * up + lean)])
            channels += rng.normal(0, 0.4, channels.shape)
            parts.append(
                pl.DataFrame(
                    {
                        "person": f"p{person:02}",
                        "t": time.round(3),
                        **{f"a{axis}": channels[axis].round(4) for axis in range(3)},
                        "activity": activity,
                    }
                )
            )
            begin = time[-1] + 60.0  # a pause, which no window crosses
    return pl.concat(parts)


def compare(directory: Path) -> int:
    """Write the table and compare methods on its windows."""
    path = directory / "wearables.csv"
    made_table().write_csv(path)
    return main(
        [
            *("compare", str(path), "--client", "person", "--target", "activity"),
            *("--time", "t", "--window", "64", "--step", "32", "--val", "0.1"),
            *("--model", "conv1d:channels=16", "--algorithms", "local", "fedavg"),
            *("finetune", "ditto", "--rounds", "12", "--lr", "0.03", "0.1"),
            *("--out", str(directory / "results")),
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(compare(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        raise SystemExit(compare(Path(made)))

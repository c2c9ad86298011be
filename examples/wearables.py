"""Activity recognition for 24 people, from a made table to a decision, in a minute.

Each person wears a sensor of three axes. Who wears it on the other wrist sees two axes
turned around, which is the known difference between two groups; and everybody has a pace
of their own. `python examples/wearables.py [DIR]` writes the table, runs the command line
on it, and draws what two people's sensors show (`wearables.png`).
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedtailor.cli import main

PEOPLE, ROWS, RATE = 24, 1600, 25.0
ACTIVITIES = {"sitting": (0.0, 0.1), "walking": (1.8, 1.0), "stairs": (1.4, 1.2)}
"""Activity -> steps a second, and how strongly the sensor moves."""
WRISTS = ("one wrist", "the other")


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


def picture(table: pl.DataFrame) -> None:
    """Draw two seconds and a half of walking of one person of each group."""
    figure, panels = plt.subplots(2, 1, figsize=(7, 4), sharex=True)
    walking = table.filter(pl.col("activity") == "walking")
    for panel, person, wrist in zip(panels, ("p00", "p01"), WRISTS, strict=True):
        window = walking.filter(pl.col("person") == person).head(64)
        for axis in range(3):
            panel.plot(
                window["t"] - window["t"][0], window[f"a{axis}"], label=f"a{axis}"
            )
        panel.set_ylabel(f"{person}, {wrist}")
    panels[0].legend(loc="upper right", ncols=3)
    panels[1].set_xlabel("seconds of walking (one window of 64 rows)")
    figure.tight_layout()
    figure.savefig("wearables.png", dpi=120)


def run(directory: Path) -> int:
    """The whole example, with the table and the results in a directory."""
    code = compare(directory)
    picture(pl.read_csv(directory / "wearables.csv"))
    return code


if __name__ == "__main__":
    made = Path(sys.argv[1] if len(sys.argv) > 1 else "wearables")
    made.mkdir(parents=True, exist_ok=True)
    raise SystemExit(run(made))

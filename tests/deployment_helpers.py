"""Data of the tests of models in use: a small table, and a scenario without one."""

import numpy as np

import fedtailor as ft
from fedtailor.lab.scenarios.scenario import Scenario

NAMES = ("Ada Lovelace", "Grace Hopper", "Emmy Noether")
OPTIONS = {
    "client": "site",
    "target": "verdict",
    "unseen": ("Emmy Noether",),
    "test": 0.3,
    "val": 0.2,
}


def write_table(path, rows=90, seed=0):
    """Three clients; a number, one with gaps, a category, and a verdict that follows
    from the first.
    """
    rng = np.random.default_rng(seed)
    lines = ["site,age,mass,town,verdict"]
    for number in range(rows):
        age = rng.normal(50, 9)
        mass = "" if number % 7 == 3 else f"{rng.normal(70, 5):.2f}"
        verdict = "ill" if age + rng.normal(0, 4) > 50 else "well"
        lines.append(
            f"{NAMES[number % 3]},{age:.2f},{mass},{'Oslo' if number % 4 else 'Rome'},{verdict}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def blobs(seed=0, *, clients: int = 3, missing: str | None = None):
    """A scenario's builder: points of two classes."""
    x = np.random.default_rng(seed).normal(size=(clients * 12, 4)).astype(np.float32)
    names = [f"client {number % clients} of the blobs" for number in range(len(x))]
    return ft.federation.from_arrays(
        x, (x[:, 0] > 0).astype(np.int32), names, test=0.25, val=0, seed=seed
    )


BLOBS = Scenario("blobs", "points", blobs, ft.models.mlp(3), 2)

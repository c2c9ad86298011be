"""Which three methods to train on a population, from one probe.

A recommendation says with what to start, and what the methods send.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtailor.diagnosis.summary import ALPHA, Diagnosis
from fedtailor.protocol import require

METHODS = ("local", "fedavg", "finetune", "ditto", "apfl", "ucfl", "ifca")
"""The methods that `starting_point` knows.

They are those that the recommendation chooses from, and those it was checked on.
"""

WEAKEST, STRONGEST = 0.1, 2.0
"""Between these a starting pull of Ditto lies: what Li et al. 2021 searched."""

CURVATURE = 0.25
"""The largest curvature of the logistic loss in its score.

lambda* is meant for a curvature of 1, and grows with it.
"""

ALONE = "what sharing has to beat, and it sends nothing"

UNSURE = 1.2
"""A mean ratio of gradients' distances.

From here on clients that no test tells apart may still differ.
"""


@dataclass(frozen=True)
class Recommendation:
    """A method to train.

    Attributes:
        method: its name.
        settings: hyper-parameters to start from; the others as the scenario or the
            method has them.
        because: why, in half a sentence.
        bytes_down: sent by the server in a round, a model for many clients once
            (multicast).
        bytes_down_unicast: the same, sent to each client.
        bytes_up: sent by all clients together in a round. Rounds before the first mix,
            and the probe, are left out.
    """

    method: str
    settings: dict[str, Any]
    because: str
    bytes_down: int
    bytes_down_unicast: int
    bytes_up: int


@dataclass(frozen=True)
class Race:
    """The methods worth training.

    Attributes:
        entries: the recommended methods.
        sentence: which they are, and that validation data are to choose between them.
        doubt: what the numbers cannot tell; "" where they can.
    """

    entries: tuple[Recommendation, ...]
    sentence: str
    doubt: str


def streams_of(diagnosis: Diagnosis) -> int | None:
    """The number of streams to start with: groups within which nobody is told apart.

    Returns:
        None unless there are two groups or more, with two clients or more on average.
    """
    groups = len(np.unique(diagnosis.groups))
    return groups if 2 <= groups <= len(diagnosis.groups) / 2 else None


def starting_strength(diagnosis: Diagnosis) -> float:
    """The pull that Ditto starts with.

    It is the median of lambda* over clients times `CURVATURE`, within what is usual.
    """
    strength = CURVATURE * np.median(diagnosis.gain.strength)
    return float(np.clip(strength, WEAKEST, STRONGEST))


def starting_point(method: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """The hyper-parameters that the diagnosis has something to say about.

    Raises:
        ValueError: the method is none of `METHODS`.
    """
    require(
        method in METHODS,
        f"nothing is known about {method!r}; the methods are {', '.join(METHODS)}",
    )
    streams = streams_of(diagnosis)
    if method == "ditto":
        return {"lam": float(f"{starting_strength(diagnosis):.2g}")}
    if method == "ucfl":
        return {"streams": "auto" if streams is None else streams}
    if method == "ifca":
        return {"clusters": 2 if streams is None else streams, "start": "farthest"}
    return {}


def recommend(diagnosis: Diagnosis, model_bytes: int) -> Race:
    """Three methods, one of them training alone.

    Training alone is among them since tests that tell nobody apart are no evidence that
    clients are alike.

    * Clients fall into groups (`streams_of`): one model for each group by weights
      (ucfl) or by choice (ifca).
    * Otherwise: one model for all (fedavg), and models of clients' own held near a
      common one (ditto).

    Args:
        diagnosis: of the population.
        model_bytes: of one model as it travels.
    """
    differ = bool((diagnosis.told_apart("gradients") < ALPHA).any())
    streams = streams_of(diagnosis)
    if streams is not None:
        because = {
            "ucfl": f"{streams} groups, weights from the probe",
            "ifca": f"{streams} groups, clients choose by their loss",
        }
    else:
        because = {
            "fedavg": "one model for all",
            "ditto": "models of clients' own, held near the common one",
        }
        if not differ:
            because["fedavg"] = "no pair of clients is told apart"
    because["local"] = ALONE
    entries = tuple(
        _entry(method, reason, diagnosis, model_bytes)
        for method, reason in because.items()
    )
    doubt = "" if differ else _doubt(diagnosis)
    names = ", ".join(entry.method for entry in entries)
    return Race(entries, f"Train {names} and let validation data choose.", doubt)


def _entry(
    method: str, because: str, diagnosis: Diagnosis, size: int
) -> Recommendation:
    """A method with what it sends in a round in which all clients take part."""
    settings = starting_point(method, diagnosis)
    if method == "local":
        return Recommendation(method, settings, because, 0, 0, 0)
    clients = len(diagnosis.groups)
    streams = settings.get("streams", settings.get("clusters", 1))
    # A client of IFCA looks at all models.
    models_each = streams if method == "ifca" else 1
    return Recommendation(
        method,
        settings,
        because,
        bytes_down=streams * size,
        bytes_down_unicast=models_each * clients * size,
        bytes_up=clients * size,
    )


def _doubt(diagnosis: Diagnosis) -> str:
    """What the samples are too few to show, where no pair is told apart."""
    ratio = diagnosis.gradients.ratio
    mean = float(np.mean(ratio[np.triu_indices(len(ratio), 1)]))
    if mean < UNSURE:
        return ""
    return (
        "These samples cannot tell whether clients differ: no pair is told apart, yet"
        f" gradients lie {mean:.2g} times as far apart as sampling explains, on"
        " average."
    )

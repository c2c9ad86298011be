"""Which three methods to train on a population, with what to start and what they send,
from one probe.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtailor.diagnosis.summary import ALPHA, Diagnosis
from fedtailor.protocol import require

METHODS = ("local", "fedavg", "finetune", "ditto", "apfl", "ucfl", "ifca")
"""The methods that `starting_point` knows: those that the recommendation chooses from,
and those it was checked on.
"""

WEAKEST, STRONGEST = 0.1, 2.0
"""Between these a starting pull of Ditto lies: what Li et al. 2021 searched."""

CURVATURE = 0.25
"""The largest curvature of the logistic loss in its score: lambda* is meant for a
curvature of 1, and grows with it.
"""

ALONE = "what sharing has to beat, and it sends nothing"

UNSURE = 1.2
"""Mean ratio of gradients' distances from which on clients that no test tells apart may
still differ.
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
    """The number of streams to start with: groups within which nobody is told apart;
    None where these are no groups.

    Groups are taken for such where there are two or more, with two clients or more on
    average.
    """
    groups = len(np.unique(diagnosis.groups))
    return groups if 2 <= groups <= len(diagnosis.groups) / 2 else None


def starting_strength(diagnosis: Diagnosis) -> float:
    """The pull that Ditto starts with: the median of lambda* over clients times
    `CURVATURE`, within what is usual.
    """
    return float(
        np.clip(CURVATURE * np.median(diagnosis.gain.strength), WEAKEST, STRONGEST)
    )


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
    """Three methods, one of them training alone: tests that tell nobody apart are no
    evidence that clients are alike.

    * Clients fall into groups (`streams_of`): one model for each group by weights
      (ucfl) or by choice (ifca).
    * Otherwise: one model for all (fedavg), and models of clients' own held near a
      common one (ditto).

    Args:
        diagnosis: of the population.
        model_bytes: of one model as it travels.
    """
    apart = diagnosis.told_apart("gradients") < ALPHA
    streams = streams_of(diagnosis)
    doubt = "" if apart.any() else _doubt(diagnosis)
    if streams is not None:
        why = {
            "ucfl": f"{streams} groups, weights from the probe",
            "ifca": f"{streams} groups, clients choose by their loss",
            "local": ALONE,
        }
    else:
        why = {
            "fedavg": (
                "one model for all"
                if apart.any()
                else "no pair of clients is told apart"
            ),
            "ditto": "models of clients' own, held near the common one",
            "local": ALONE,
        }
    clients = len(diagnosis.groups)
    entries = tuple(
        _entry(method, because, diagnosis, clients, model_bytes)
        for method, because in why.items()
    )
    names = ", ".join(entry.method for entry in entries)
    return Race(entries, f"Train {names} and let validation data choose.", doubt)


def _entry(
    method: str, because: str, diagnosis: Diagnosis, clients: int, size: int
) -> Recommendation:
    """A method with what it sends in a round in which all clients take part."""
    settings = starting_point(method, diagnosis)
    if method == "local":
        return Recommendation(method, settings, because, 0, 0, 0)
    streams = settings.get("streams", settings.get("clusters", 1))
    each = streams if method == "ifca" else 1  # a client of ifca looks at all models
    return Recommendation(
        method, settings, because, streams * size, each * clients * size, clients * size
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

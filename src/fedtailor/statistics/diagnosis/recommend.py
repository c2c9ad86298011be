"""Recommends three methods to train on a population, from its diagnosis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.statistics.diagnosis.summary import ALPHA, Diagnosis

MIN_STRENGTH, MAX_STRENGTH = 0.1, 2.0
"""Range of Ditto's initial strength, as in the grid of Li et al. 2021."""

CURVATURE = 0.25
"""The largest curvature of the logistic loss with respect to its logit.

lambda* is defined for a curvature of 1 and is proportional to it.
"""

LOCAL_REASON = "what sharing has to beat, and it sends nothing"

CLEAR_SHARE = 0.9
"""Groups are clear if at least this share of the pairs between them is told apart."""

INCONCLUSIVE_RATIO = 1.2
"""Mean ratio of distances above which insignificant tests are inconclusive."""


@dataclass(frozen=True)
class RaceEntry:
    """A method to train, with its traffic in a round.

    Attributes:
        method: name of the method.
        settings: initial hyper-parameters. All others keep the default of the scenario
            or the method.
        because: the reason for the recommendation, in a few words.
        bytes_down: bytes sent by the server, where a model for several clients counts
            once (multicast).
        bytes_down_unicast: bytes sent by the server, counted for each client.
        bytes_up: bytes sent by all clients together. Rounds before the first mix, and
            the probe, are not counted.
    """

    method: str
    settings: dict[str, Any]
    because: str
    bytes_down: int
    bytes_down_unicast: int
    bytes_up: int


@dataclass(frozen=True)
class Race:
    """The methods to train, among which validation data decide.

    Attributes:
        entries: the recommended methods.
        sentence: the recommendation in one sentence.
        doubt: a warning if the diagnosis is inconclusive, otherwise "".
    """

    entries: tuple[RaceEntry, ...]
    sentence: str
    doubt: str


def streams_of(diagnosis: Diagnosis) -> int | None:
    """The initial number of streams: the number of groups that differ significantly.

    Returns:
        None if there is a single group, if groups have fewer than two clients on
        average, or if fewer pairs are told apart than there are pairs of clients side by
        side (half as many as clients): of many pairs, a few that are told apart say
        something of those clients and nothing of groups.
    """
    groups, clients = len(np.unique(diagnosis.groups)), len(diagnosis.groups)
    if not 2 <= groups <= clients / 2:
        return None
    # Clusters of weights do not come from tests of pairs.
    if diagnosis.silhouette is None and _few_told_apart(diagnosis):
        return None
    return groups


def differ_unseen(diagnosis: Diagnosis) -> bool:
    """Whether all clients together differ, and tests of pairs do not show how."""
    return diagnosis.gradients.overall_p < ALPHA and _few_told_apart(diagnosis)


def are_clear(diagnosis: Diagnosis) -> bool:
    """Whether nearly all pairs of clients of different groups are told apart.

    Otherwise clients differ by degrees, and where one group ends is a matter of chance.
    """
    if diagnosis.silhouette is not None:
        return True
    first, second = np.triu_indices(len(diagnosis.groups), 1)
    of_two = diagnosis.groups[first] != diagnosis.groups[second]
    found = _told_apart(diagnosis)[of_two]
    return bool(len(found)) and float(found.mean()) >= CLEAR_SHARE


def _few_told_apart(diagnosis: Diagnosis) -> bool:
    """Whether fewer pairs are told apart than half as many as there are clients."""
    return bool(_told_apart(diagnosis).sum() < len(diagnosis.groups) / 2)


def _told_apart(diagnosis: Diagnosis) -> NDArray[np.bool_]:
    """Which pairs of clients are told apart by gradients."""
    return diagnosis.adjusted_p_values("gradients") < ALPHA


def starting_strength(diagnosis: Diagnosis) -> float:
    """Ditto's initial regularization strength.

    It is the median of lambda* over clients times `CURVATURE`, clipped to the range
    from `MIN_STRENGTH` to `MAX_STRENGTH`.
    """
    strength = CURVATURE * np.median(diagnosis.gain.strength)
    return float(np.clip(strength, MIN_STRENGTH, MAX_STRENGTH))


def _of_ditto(diagnosis: Diagnosis) -> dict[str, Any]:
    return {"lam": float(f"{starting_strength(diagnosis):.2g}")}


def _of_ucfl(diagnosis: Diagnosis) -> dict[str, Any]:
    streams = streams_of(diagnosis)
    return {"streams": "auto" if streams is None else streams}


def _of_ifca(diagnosis: Diagnosis) -> dict[str, Any]:
    streams = streams_of(diagnosis)
    return {"clusters": 2 if streams is None else streams, "start": "farthest"}


def _of_others(diagnosis: Diagnosis) -> dict[str, Any]:
    return {}


_SETTINGS: Mapping[str, Callable[[Diagnosis], dict[str, Any]]] = {
    "local": _of_others,
    "fedavg": _of_others,
    "finetune": _of_others,
    "ditto": _of_ditto,
    "apfl": _of_others,
    "ucfl": _of_ucfl,
    "ifca": _of_ifca,
}
"""Method -> the hyper-parameters that a diagnosis determines."""

METHODS = tuple(_SETTINGS)
"""The methods that `starting_point` supports."""


def starting_point(method: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """The hyper-parameters of a method that the diagnosis determines.

    Raises:
        ValueError: the method is not one of `METHODS`.
    """
    require(
        method in _SETTINGS,
        f"nothing is known about {method!r}; the methods are {', '.join(METHODS)}",
    )
    return _SETTINGS[method](diagnosis)


def recommend_race(diagnosis: Diagnosis, model_bytes: int) -> Race:
    """Recommends three methods, one of which is local training.

    Local training is always included, since a test without significance is no evidence
    that clients are equal.

    * If clients fall into groups (see `streams_of`), one trains a model per group, by
      weights (ucfl). If the groups are clear (see `are_clear`), another one does so by
      the clients' choice (ifca), else it trains personal models close to a common one
      (ditto).
    * Otherwise they train one model for all (fedavg), and personal models close to a
      common one (ditto).

    Args:
        diagnosis: diagnosis of the population.
        model_bytes: size of one model in a message.
    """
    told_apart = bool(_told_apart(diagnosis).any())
    streams = streams_of(diagnosis)
    if streams is not None:
        reasons = {
            "ucfl": f"{streams} groups, weights from the probe",
        }
        if are_clear(diagnosis):
            reasons["ifca"] = f"{streams} groups, clients choose by their loss"
        else:
            reasons["ditto"] = "groups are not clear: clients may differ by degrees"
    else:
        reasons = {
            "fedavg": "one model for all",
            "ditto": "models of clients' own, held near the common one",
        }
        if not told_apart:
            reasons["fedavg"] = "no pair of clients is told apart"
    reasons["local"] = LOCAL_REASON
    entries = tuple(
        _recommendation(method, reason, diagnosis, model_bytes)
        for method, reason in reasons.items()
    )
    is_sure = told_apart or streams is not None
    doubt = "" if is_sure else _inconclusive_message(diagnosis)
    names = ", ".join(entry.method for entry in entries)
    return Race(entries, f"Train {names} and let validation data choose.", doubt)


def _recommendation(
    method: str, because: str, diagnosis: Diagnosis, size: int
) -> RaceEntry:
    """A method with its traffic in a round in which all clients take part."""
    settings = starting_point(method, diagnosis)
    if method == "local":
        return RaceEntry(method, settings, because, 0, 0, 0)
    clients = len(diagnosis.groups)
    streams = settings.get("streams", settings.get("clusters", 1))
    # A client of IFCA receives all models.
    models_per_client = streams if method == "ifca" else 1
    return RaceEntry(
        method,
        settings,
        because,
        bytes_down=streams * size,
        bytes_down_unicast=models_per_client * clients * size,
        bytes_up=clients * size,
    )


def _inconclusive_message(diagnosis: Diagnosis) -> str:
    """A warning if nothing differs significantly but ratios are large, else ""."""
    if diagnosis.gradients.overall_p < ALPHA:
        return ""
    ratio = diagnosis.gradients.ratio
    mean_ratio = float(np.mean(ratio[np.triu_indices(len(ratio), 1)]))
    if mean_ratio < INCONCLUSIVE_RATIO:
        return ""
    return (
        "These samples cannot tell whether clients differ: no pair is told apart, yet"
        f" gradients lie {mean_ratio:.2g} times as far apart as sampling explains, on"
        " average."
    )

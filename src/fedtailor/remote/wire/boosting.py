"""What travels to boost trees over machines (`fedtailor.statistics.boosting`).

A step is one sum of all clients behind masks. Its first message, which asks for public
keys, holds what clients take without an answer (thresholds, a finished tree) and the
questions that follow, whose answers are one vector.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor._base.choice import require
from fedtailor.statistics.boosting import BoostingRequest, BoostingSettings, Tree
from fedtailor.statistics.boosting.bins import BISECTIONS
from fedtailor.statistics.boosting.tree import (
    FIELDS,
    Move,
    most_leaves,
    most_splits,
)

BOOST = "boost"
"""Task: take the last step of boosting, which asks for no sum. And the key of a request's
description of the method: a step, in the first stage of its sum or in the last task; or
True, in other stages.
"""

SUMMED = ("start", "counts", "gradients", "split", "loss")
"""Kinds of `BoostingRequest` that are answered by a sum."""

HALVINGS = 3
"""Halvings of the search for bins that one step decides."""

FINISH = "finish"
"""The kind of the last step: keep this number of rounds of trees, and make the own model."""

_Number = Annotated[int, Field(ge=0, lt=2**31)]
_Move = tuple[_Number, _Number, _Number, _Number, bool]
"""The attributes of a `Move`."""


class Step(BaseModel):
    """One `BoostingRequest` without its arrays, or the end.

    Attributes:
        kind, output, moves: see `BoostingRequest`.
        rounds: of the end, rounds of trees that are kept.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    kind: Literal[
        "start",
        "counts",
        "bins",
        "baseline",
        "gradients",
        "split",
        "tree",
        "loss",
        "finish",
    ]
    output: _Number = 0
    moves: tuple[_Move, ...] = ()
    rounds: _Number = 0


class Steps(BaseModel):
    """What stands under `BOOST` in a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    steps: Annotated[list[Step], Field(min_length=1)]


def most_steps(settings: BoostingSettings, outputs: int) -> int:
    """The most steps of a run: beyond them a client answers nothing."""
    # the root, and splits of which each may be asked for by itself
    in_tree = 1 + most_splits(settings)
    return 3 + BISECTIONS // HALVINGS + settings.trees * (outputs * in_tree + 1)


def plain_steps(
    requests: Sequence[BoostingRequest],
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A step as plain values and arrays, which `read_steps` reads."""
    steps, arrays = [], {}
    for place, request in enumerate(requests):
        moves = tuple(astuple(move) for move in request.moves)
        step = Step(kind=request.kind, output=request.output, moves=moves)
        steps.append(step.model_dump(exclude_defaults=True))
        for name, value in _flat(request.arrays).items():
            arrays[f"{place}/{name}"] = value
    return {"steps": steps}, arrays


def plain_end(rounds: int) -> dict[str, Any]:
    """The last step, which has no arrays."""
    step = Step(kind=FINISH, rounds=rounds)
    return {"steps": [step.model_dump(exclude_defaults=True)]}


def read_steps(
    plain: Any,
    arrays: Mapping[str, NDArray[Any]],
    inputs: int,
    outputs: int,
    settings: BoostingSettings,
) -> list[BoostingRequest | Step]:
    """The requests of a step, and its end as a `Step`.

    A step asks for one sum, or for the loss after a round of trees and the root of the
    next tree. So its answer is not larger than the job makes it, however many steps a
    message names.

    Args:
        plain: what stands under `BOOST`.
        arrays: those of the message.
        inputs, outputs: of the job.
        settings: of the job.

    Raises:
        ValueError: they are not what `plain_steps` writes for such data.
    """
    try:
        read = Steps.model_validate_json(json.dumps(plain))
    except (ValidationError, TypeError):
        raise ValueError("the step of boosting is not well formed") from None
    # A boosting that is resumed begins with all its trees.
    most = settings.trees * outputs + 4
    require(
        len(read.steps) <= most,
        f"a message names {len(read.steps)} steps of boosting; {most} are used",
    )
    summed = [step.kind for step in read.steps if step.kind in SUMMED]
    require(
        len(summed) < 2 or summed == ["loss", "gradients"],
        f"a step of boosting asks for {len(summed)} sums; it is one, or the loss and the"
        " root of the next tree",
    )
    # By the place of their step.
    given: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        place, _, own_name = name.partition("/")
        given.setdefault(place, {})[own_name] = array
    result: list[BoostingRequest | Step] = []
    for place, step in enumerate(read.steps):
        moves = tuple(Move(*it) for it in step.moves)
        require(
            step.output < outputs and all(move.input < inputs for move in moves),
            "a step of boosting names an input or output that does not exist",
        )
        require(
            bool(moves) == (step.kind == "split"),
            "moves belong to a split of boosting, and only to it",
        )
        if step.kind == FINISH:
            require(
                place == len(read.steps) - 1, "a step of boosting follows the last one"
            )
            result.append(step)
            continue
        own = given.pop(str(place), {})
        read_arrays = _read_arrays(step.kind, own, inputs, outputs, settings)
        result.append(BoostingRequest(step.kind, step.output, moves, read_arrays))
    require(not given, "a step of boosting has an array too many")
    return result


def _flat(arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of a request, by names of their own."""
    flat = {}
    for name, value in arrays.items():
        if name == "tree":
            flat |= {field: np.asarray(getattr(value, field)) for field in FIELDS}
        elif name == "thresholds":
            flat["ends"] = np.concatenate([np.zeros(0), *value])
            flat["bins"] = np.array([len(ends) for ends in value], np.int64)
        else:
            flat[name] = np.asarray(value, np.float64)
    return flat


def _read_arrays(
    kind: str,
    own: Mapping[str, NDArray[Any]],
    inputs: int,
    outputs: int,
    settings: BoostingSettings,
) -> dict[str, Any]:
    """The arrays of a request of a kind.

    Raises:
        ValueError: one is missing, superfluous, or of another shape or type.
    """
    expected = {
        "counts": {"candidates"},
        "bins": {"ends", "bins"},
        "baseline": {"baseline"},
        "tree": set(FIELDS),
    }
    require(
        set(own) == expected.get(kind, set()),
        f"a step of boosting ({kind}) has other arrays than it needs",
    )
    if not own:
        return {}
    if kind == "tree":
        tree = Tree(**own)
        tree.check(inputs)
        require(
            tree.leaves <= most_leaves(settings)
            and len(tree.input) == 2 * tree.leaves - 1,
            "a tree has more leaves than the job's",
        )
        return {"tree": tree}
    if kind == "bins":
        bins, ends = own["bins"], own["ends"]
        is_valid = (
            bins.shape == (inputs,)
            and bins.dtype == np.int64
            and ends.dtype == np.float64
            and ends.ndim == 1
            and bool(((bins >= 0) & (bins < settings.most_bins)).all())
            and bins.sum() == len(ends)
            and bool(np.isfinite(ends).all())
        )
        require(is_valid, "the thresholds of boosting are not well formed")
        thresholds = np.split(ends, np.cumsum(bins)[:-1])
        require(
            all(bool((np.diff(it) > 0).all()) for it in thresholds),
            "the thresholds of boosting do not ascend",
        )
        return {"thresholds": thresholds}
    (name,) = own
    shape = (outputs,) if kind == "baseline" else (inputs, None)
    array = own[name]
    is_valid = (
        array.dtype == np.float64
        and array.ndim == len(shape)
        and array.shape[0] == shape[0]
        and array.shape[-1] <= (settings.most_bins - 1) * (2**HALVINGS - 1)
        and bool(np.isfinite(array).all())
    )
    require(is_valid, f"the array {name} of boosting is not well formed")
    return {name: array}


def expected_size(
    request: BoostingRequest, inputs: int, classes: int | None, width: int
) -> tuple[int, ...]:
    """The shape of the sum that a request asks for.

    Args:
        request: the request.
        inputs: of the model.
        classes: their number; None for numbers.
        width: bins of the input that has most.
    """
    if request.kind == "start":
        return (1 + (1 if classes is None else classes),)
    if request.kind == "counts":
        return request.arrays["candidates"].shape
    if request.kind == "loss":
        return (2,)
    histogram = (inputs, width, 3)
    return (len(request.moves), *histogram) if request.kind == "split" else histogram

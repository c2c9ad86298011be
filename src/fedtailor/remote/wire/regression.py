"""What travels to fit a regression over machines (`fedtailor.statistics.regression`).

Each step is one sum of all clients behind masks. Its first message, which asks for public
keys, holds the question; the answer is one vector.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fedtailor._base.choice import require
from fedtailor.statistics.regression import RegressionRequest

REGRESS = "regress"
"""The key of a request's description of the method: a question, in the first stage of its
sum; or True, in other stages.
"""


class Question(BaseModel):
    """What stands under `REGRESS` in a request: a `RegressionRequest` without its
    arrays.

    Attributes:
        kind: see `RegressionRequest`. Products of clients' scores, for robust errors,
            are none: with the scores they show single clients' numbers.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    kind: Literal["kept", "start", "spread", "begin", "step"]


def plain_question(request: RegressionRequest) -> dict[str, Any]:
    """A request as plain values, which `read_question` reads."""
    return Question.model_validate({"kind": request.kind}).model_dump()


def read_question(
    plain: Any, arrays: Mapping[str, NDArray[Any]], inputs: int
) -> RegressionRequest:
    """Read a question.

    Args:
        plain: what stands under `REGRESS`.
        arrays: those of the message.
        inputs: of the job, before some are chosen.

    Raises:
        ValueError: it is not one about such inputs.
    """
    try:
        read = Question.model_validate_json(json.dumps(plain))
    except (ValidationError, TypeError):
        raise ValueError("the question of a regression is not well formed") from None
    shapes: dict[str, tuple[int, ...]] = {}
    if read.kind == "spread":
        shapes = {"shift": (inputs,), "y_shift": (1,)}
    if read.kind == "begin":
        kept = arrays.get("kept", np.zeros(0))
        is_valid = (
            kept.dtype == np.int64
            and kept.ndim == 1
            and bool(((kept >= 0) & (kept < inputs)).all())
            and bool((np.diff(kept) > 0).all())
        )
        require(is_valid, "the inputs of a regression are not well formed")
        shared = np.size(arrays.get("shared", ()))
        require(
            len(kept) > 0 and shared in (len(kept), len(kept) + 1),
            "a regression has other coefficients than inputs",
        )
        shapes = {
            "kept": kept.shape,
            "shift": kept.shape,
            "scale": kept.shape,
            "y_units": (2,),
            "shared": (shared,),
        }
    if read.kind == "step":
        shared = np.size(arrays.get("shared", ()))
        shapes = {"shared": (shared,)}
    require(
        set(arrays) == set(shapes),
        f"a question of a regression ({read.kind}) has other arrays than it needs",
    )
    for name, shape in shapes.items():
        array = arrays[name]
        is_valid = array.shape == shape and (
            name == "kept"
            or (array.dtype == np.float64 and bool(np.isfinite(array).all()))
        )
        require(is_valid, f"the array {name} of a regression is not well formed")
    scales = [*arrays.get("scale", ()), *arrays.get("y_units", ())[1:]]
    require(all(scale > 0 for scale in scales), "a unit of a regression is not above 0")
    return RegressionRequest(read.kind, dict(arrays))

"""A client's part of a regression over machines: its rows, and the questions that it
answers about them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.remote.client.steps import StepsClient
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.job.regression import ClientDesign
from fedtailor.remote.wire.refusals import Refusal, refuse_unless, refusing
from fedtailor.remote.wire.regression import REGRESS, read_question
from fedtailor.statistics.regression import (
    MOST_QUESTIONS,
    RegressionRequest,
    RegressionRows,
)

_FOLLOWS = {
    "kept": ("",),
    "start": ("kept",),
    "spread": ("start",),
    "begin": ("spread",),
    "step": ("begin", "step"),
}
"""What may have come directly before a question of a kind."""


class RegressionClient(StepsClient[RegressionRequest]):
    """Answers the questions of a regression about a client's rows.

    Args:
        plan: what this client agreed to, with a regression and sums behind masks.
        design: the client's rows.
    """

    def __init__(self, plan: Plan, design: ClientDesign) -> None:
        assert plan.regression is not None and plan.sums is not None
        self._regression, self._design = plan.regression, design
        super().__init__(REGRESS, "the regression", MOST_QUESTIONS)
        self._begin()

    def _begin(self) -> None:
        self._rows = RegressionRows(
            self._design.rows,
            self._regression.model,
            own_intercept=self._regression.intercept == "fixed",
            missing=self._design.missing,
        )
        self._before = ""
        self._shared = 0

    def _read(
        self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> list[RegressionRequest]:
        return [read_question(dict(plain), arrays, self._design.rows.x.shape[1])]

    def _take(self, step: RegressionRequest) -> NDArray[np.uint32]:
        refuse_unless(
            self._before in _FOLLOWS[step.kind],
            Refusal.MALFORMED,
            f"a question of a regression ({step.kind}) came after"
            f" {self._before or 'nothing'}",
        )
        if step.kind == "begin":
            self._shared = len(step.arrays["shared"])
            settings = self._regression
            has_common = settings.intercept == "common" and settings.model != "cox"
            own = len(step.arrays["kept"]) + has_common
            refuse_unless(
                self._shared == own,
                Refusal.MALFORMED,
                f"a regression has {self._shared} coefficients instead of {own}",
            )
        refuse_unless(
            step.kind != "step" or len(step.arrays["shared"]) == self._shared,
            Refusal.MALFORMED,
            "a step of a regression has other coefficients than its beginning",
        )
        is_linear = self._regression.model == "linear"
        refuse_unless(
            step.kind != "begin"
            or is_linear
            or (step.arrays["y_units"] == [0, 1]).all(),
            Refusal.MALFORMED,
            "a regression of other targets than numbers has other units than theirs",
        )
        self._before = step.kind
        with refusing(Refusal.SUM_RANGE):
            return self._rows.words(step)

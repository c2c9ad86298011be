"""Secure aggregation in a simulation: the server is shown sums of updates only."""

from dataclasses import replace

from fedtailor.aggregation.secure_sums import SecureSums, hidden_update
from fedtailor.aggregation.sum_shares import SumHistory
from fedtailor.protocol import Answers, Cohort, HiddenRows


class SimulatedSums:
    """Hides the answers of a run's rounds, and remembers which sums it has shown."""

    def __init__(self, settings: SecureSums) -> None:
        self._settings = settings
        self._history = SumHistory(settings.scope)

    def hide(self, answers: Answers, cohort: Cohort) -> Answers:
        """The answers of a round as the server may see them: sums of the clients'
        updates.
        """
        is_hidden = any(
            isinstance(rows, HiddenRows) for rows in answers.update.values()
        )
        # The clients of an executor of machines hide their updates themselves.
        if is_hidden or not answers.update:
            return answers
        answers.require_finite()
        update = hidden_update(
            answers.update, cohort, answers.reporting, self._settings, self._history
        )
        return replace(answers, update=update)

"""The unit of a run's targets, and the metrics of a run that asks for none."""

from fedtailor.federation import Federation
from fedtailor.tables import Table


def target_units(federation: Federation) -> tuple[float, float]:
    """How the targets of models become the user's own.

    Returns:
        (shift, scale): the user's target is y * scale + shift.
    """
    # Only a table's preprocessing standardises targets, and only those of regressions.
    if not isinstance(federation, Table) or federation.classes is not None:
        return 0.0, 1.0
    preprocessing = federation.preprocessing
    if preprocessing is None:
        return 0.0, 1.0
    return preprocessing.target_shift, preprocessing.target_scale


def default_metrics(federation: Federation) -> tuple[str, ...]:
    """The metrics of a run whose user asks for none.

    Returns:
        For a regression on a table, errors in the unit of its target, which the loss on
        standardised targets is not; else nothing, and the model says by what it is
        judged.
    """
    is_table_regression = isinstance(federation, Table) and federation.classes is None
    return ("rmse", "mae") if is_table_regression else ()

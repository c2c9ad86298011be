"""The unit of a run's targets, and the default metrics of runs on tables."""

from fedtailor.federation import Federation
from fedtailor.tables import Table


def target_units(federation: Federation) -> tuple[float, float]:
    """The transformation from a model's targets y to the user's own targets.

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


def table_metrics(federation: Federation) -> tuple[str, ...]:
    """The metrics of a run whose user requests none.

    Returns:
        For a regression on a table, errors in the unit of its target, because the loss is
        in the unit of standardised targets. Otherwise nothing: the run is judged by the
        metric of its model.
    """
    is_table_regression = isinstance(federation, Table) and federation.classes is None
    return ("rmse", "mae") if is_table_regression else ()

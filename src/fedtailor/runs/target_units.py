"""The unit of a run's targets, and what a run is judged by where nothing is asked
for.
"""

from fedtailor.federation import Federation
from fedtailor.tables import Table


def target_units(federation: Federation) -> tuple[float, float]:
    """How the targets of models become the user's own.

    Returns:
        (shift, scale): the user's target is y * scale + shift.
    """
    if (
        isinstance(federation, Table)
        and federation.preprocessing is not None
        and federation.classes is None
    ):
        return (
            federation.preprocessing.target_shift,
            federation.preprocessing.target_scale,
        )
    return 0.0, 1.0


def default_metrics(federation: Federation) -> tuple[str, ...]:
    """What a run on these data measures, and is judged by, where the user asks for
    nothing.

    Returns:
        Of a regression on a table, errors in the unit of its target, which a loss of
        standardised targets is not; else nothing, and the model says by what it is
        judged.
    """
    return (
        ("rmse", "mae")
        if isinstance(federation, Table) and federation.classes is None
        else ()
    )

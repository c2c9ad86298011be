"""A federation from a file of your own: one row for each example, a column that names its client."""

from fedtailor.experiments.scenario import Scenario, defaults_with
from fedtailor.federation import Federation, from_frame, standardize
from fedtailor.models import logistic
from fedtailor.protocol import SGD, require


def table(
    seed: int = 0,
    *,
    path: str = "",
    client: str = "client",
    target: str = "label",
    features: tuple[str, ...] | None = None,
    test: float = 0.2,
    val: float = 0.1,
) -> Federation:
    """The rows of a CSV or Parquet file, by client; every feature is standardised over all clients' training rows.

    A client with one row only trains; one with two has no validation row.

    Args:
        seed: of the splits.
        path: the file (.csv, .tsv, .parquet, also .csv.gz).
        client: column that names the row's client.
        target: column to predict: whole numbers or text for classes, other numbers for a regression.
        features: numeric columns; None = all others.
        test, val: fractions of each client's rows.

    Raises:
        ValueError: the file or a column is missing, of no known kind, has gaps or is no number.
    """
    require(path != "", "the scenario `table` needs your file: set its parameters path, client and target")
    chosen = None if features is None else list(features)
    return standardize(from_frame(path, client=client, label=target, features=chosen, test=test, val=val, seed=seed))


LOCAL = SGD(lr=0.02, epochs=5, batch_size=32)
"""Small steps: they also suit a regression on dozens of correlated features."""
SCENARIOS = (
    Scenario(
        "table",
        "a file of your own, CSV or Parquet, with a column that names the client",
        table,
        logistic(),
        50,
        {},
        defaults_with(LOCAL),
        source="Your own data",
        data="your file",
    ),
)

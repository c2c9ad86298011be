"""Compares a method per client, chosen on validation data, with one method for all."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtailor.statistics.decision.frames import Frame
from fedtailor.statistics.decision.intervals import Interval, two_way_interval
from fedtailor.statistics.decision.winner import dense_values


@dataclass(frozen=True)
class Choice:
    """Methods that were chosen on validation data and evaluated on test data.

    Attributes:
        chosen: one row for each seed and client, with the columns `seed`, `client`,
            `method` (the method chosen for the client), `val` and `test` (its values),
            `single` (the one method chosen for all clients in that seed) and
            `single_test` (its test value).
        value: mean test value over clients and seeds with a method per client.
        single_value: mean test value over clients and seeds with one method for all.
        gain: the interval of the mean gain of a method per client over one method for
            all, see `two_way_interval`. A positive gain means better.

    Example:
        >>> from fedtailor.statistics.decision import choose_by_validation
        >>> choose_by_validation(values, values, higher_is_better=True).conclusion()
        'No difference is shown between a method chosen for each client ...
    """

    chosen: Frame
    value: float
    single_value: float
    gain: Interval

    def conclusion(self) -> str:
        """States the result in one sentence."""
        if self.gain.verdict == "cannot tell":
            return (
                "No difference is shown between a method chosen for each client and one"
                " method for all."
            )
        word = "better" if self.gain.verdict == "helps" else "worse"
        return (
            f"Choosing a method for each client by its validation data is {word} than"
            " one method for all."
        )


def choose_by_validation(
    val: pl.DataFrame,
    test: pl.DataFrame,
    *,
    higher_is_better: bool,
    confidence: float = 0.95,
) -> Choice:
    """Chooses a method for each client and seed on the client's validation data.

    Test data are used only to evaluate the choice. In each seed, the one method for all
    is the method with the best mean over clients on validation data. Ties on a client's
    validation data go to the method with the better mean. A method without a value
    (because it diverged) is never chosen. Clients without validation or test data are
    ignored.

    Args:
        val: validation values, one row for each method, seed and client, with the
            columns `method`, `seed`, `client` and `value`.
        test: test values, in the same form.
        higher_is_better: direction of the metric.
        confidence: confidence level of the interval of the gain.

    Returns:
        The chosen methods, and their gain over one method for all.

    Raises:
        ValueError: a column is missing, a value occurs twice, or no client has both
            validation and test data.

    Example:
        >>> from fedtailor.statistics.decision import choose_by_validation
        >>> choose_by_validation(values, values, higher_is_better=True).chosen.columns
        ['seed', 'client', 'method', 'val', 'test', 'single', 'single_test']
    """
    keys = ["method", "seed", "client"]
    joined = val.join(test, on=keys, suffix="_test")
    values = pl.col("value", "value_test").cast(pl.Float64)
    joined = joined.filter(pl.all_horizontal(values.is_finite())).sort(*keys)
    if not len(joined):
        raise ValueError(
            "no client has both validation and test values; nothing can be chosen"
        )
    methods, val_table = dense_values(joined.select(*keys, "value"))
    _, test_table = dense_values(joined.select(*keys, value="value_test"))
    seeds = np.unique(joined["seed"].to_numpy())
    clients = np.unique(joined["client"].to_numpy())
    sign = 1 if higher_is_better else -1
    # [methods, seeds, clients]; higher is better, -inf where a method has no value.
    scores = np.where(np.isnan(val_table), -np.inf, sign * val_table)
    records = []
    gains = np.full(scores.shape[1:], np.nan)
    for s, seed in enumerate(seeds):
        has_value = np.isfinite(scores[:, s]).any(axis=0)
        if not has_value.any():
            continue
        # A method without a value for one of these clients has the mean -inf, so it
        # is not the one method for all.
        means = scores[:, s, has_value].mean(axis=1)
        ranking = np.argsort(-means, kind="stable")
        single = ranking[0]
        for c in np.flatnonzero(has_value):
            # argmax breaks ties in favour of the method with the better mean.
            best = ranking[np.argmax(scores[ranking, s, c])]
            best_test = test_table[best, s, c]
            single_test = test_table[single, s, c]
            gains[s, c] = (best_test - single_test) * sign
            record = {
                "seed": seed,
                "client": clients[c],
                "method": methods[best],
                "val": val_table[best, s, c],
                "test": best_test,
                "single": methods[single],
                "single_test": single_test,
            }
            records.append(record)
    chosen = pl.DataFrame(
        records,
        schema={
            "seed": val.schema["seed"],
            "client": val.schema["client"],
            "method": pl.String,
            "val": pl.Float64,
            "test": pl.Float64,
            "single": pl.String,
            "single_test": pl.Float64,
        },
    )
    # The method for all may lack some test values; use the same clients for both means.
    comparable = chosen.filter(pl.col("single_test").is_not_nan())
    value = float(np.mean(comparable["test"].to_numpy()))
    single_value = float(np.mean(comparable["single_test"].to_numpy()))
    return Choice(chosen, value, single_value, two_way_interval(gains, confidence))

"""A method for each client, chosen by validation, against one method for all."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtailor.decision.intervals import Interval, two_way_interval
from fedtailor.decision.winner import dense_values


@dataclass(frozen=True)
class Choice:
    """The methods chosen by validation data, judged by test data.

    Attributes:
        chosen: a line for each seed and client: `seed`, `client`, `method` (chosen for
            the client), `val`, `test` (its values), `single` (the method chosen for all
            clients in that seed) and `single_test`.
        value: mean test value over clients and seeds, with each client's own method.
        single_value: the same, with one method for all.
        gain: `value` less `single_value` (positive is better), over clients and seeds
            as in `two_way_interval`.
    """

    chosen: pl.DataFrame
    value: float
    single_value: float
    gain: Interval

    def sentence(self) -> str:
        """The result in a sentence."""
        if self.gain.verdict == "cannot tell":
            return (
                "Choosing a method for each client is not shown to differ from one"
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
    """Choose a method for each client and seed by its validation data.

    Test data only judge the choice. The one method for all is the one with the best mean over clients on validation
    data, in each seed. Of methods that are equal on a client's validation data, the
    better one on all clients' is chosen. A method without a value (it diverged) is not
    chosen; clients without validation or test data are left out.

    Args:
        val, test: a line for each method, seed and client: columns `method`, `seed`,
            `client`, `value`.
        higher_is_better: direction of the metric.
        confidence: of the interval of the gain.

    Returns:
        What was chosen, and what it gains over one method for all.

    Raises:
        ValueError: a column is missing, a cell stands there twice, or no client has
            both validation and test data.
    """
    keys = ["method", "seed", "client"]
    both = val.join(test, on=keys, suffix="_test")
    values = pl.col("value", "value_test").cast(pl.Float64)
    both = both.filter(pl.all_horizontal(values.is_finite())).sort(*keys)
    if not len(both):
        raise ValueError(
            "no client has both validation and test values; nothing can be chosen"
        )
    methods, val_table = dense_values(both.select(*keys, "value"))
    _, test_table = dense_values(both.select(*keys, value="value_test"))
    seeds = np.unique(both["seed"].to_numpy())
    clients = np.unique(both["client"].to_numpy())
    sign = 1 if higher_is_better else -1
    # Higher is better; minus infinity where a method has no value.
    # [methods, seeds, clients]
    score = np.where(np.isnan(val_table), -np.inf, sign * val_table)
    lines = []
    gains = np.full(score.shape[1:], np.nan)
    for s, seed in enumerate(seeds):
        is_present = np.isfinite(score[:, s]).any(axis=0)
        if not is_present.any():
            continue
        # A method that lacks a client that others have cannot be the one method for
        # all: its mean is minus infinity.
        means = score[:, s, is_present].mean(axis=1)
        best_first = np.argsort(-means, kind="stable")
        single = best_first[0]
        for c in np.flatnonzero(is_present):
            # Of equal scores argmax takes the first, the method of better mean.
            best = best_first[np.argmax(score[best_first, s, c])]
            best_test = test_table[best, s, c]
            single_test = test_table[single, s, c]
            gains[s, c] = (best_test - single_test) * sign
            line = {
                "seed": seed,
                "client": clients[c],
                "method": methods[best],
                "val": val_table[best, s, c],
                "test": best_test,
                "single": methods[single],
                "single_test": single_test,
            }
            lines.append(line)
    chosen = pl.DataFrame(
        lines,
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
    # Both means over the same clients: the method for all may lack test values of some.
    judged = chosen.filter(pl.col("single_test").is_not_nan())
    value = float(np.mean(judged["test"].to_numpy()))
    single_value = float(np.mean(judged["single_test"].to_numpy()))
    return Choice(chosen, value, single_value, two_way_interval(gains, confidence))

"""A method for each client, chosen by its validation data, and whether that beats one
method for all.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtailor.decision.intervals import Interval, two_way_interval
from fedtailor.decision.winner import dense_values


@dataclass(frozen=True)
class Choice:
    """What was chosen by validation data, and what test data say of it.

    Attributes:
        chosen: a line for each seed and client: `seed`, `client`, `method` (chosen for
            the client), `val`, `test` (its values), `single` (the method chosen for all
            clients in that seed) and `single_test`.
        value: mean test value over clients and seeds where each client's method is
            chosen for it.
        single_value: the same where one method is chosen for all.
        gain: of the former over the latter (positive is better), over clients and seeds
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
    """Choose a method for each client (and seed) by its validation data; test data only
    judge the choice.

    The one method for all is the one with the best mean over clients on validation
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
    finite = [
        pl.col(name).cast(pl.Float64).is_finite() for name in ("value", "value_test")
    ]
    both = both.filter(pl.all_horizontal(finite)).sort(*keys)
    if not len(both):
        raise ValueError(
            "no client has both validation and test values; nothing can be chosen"
        )
    methods, val_table = dense_values(both.select(*keys, "value"))
    _, test_table = dense_values(both.select(*keys, value="value_test"))
    seeds = np.unique(both["seed"].to_numpy())
    clients = np.unique(both["client"].to_numpy())
    sign = 1 if higher_is_better else -1
    # [methods, seeds, clients]; minus infinity where a method has no value
    score = np.where(np.isnan(val_table), -np.inf, sign * val_table)
    lines = []
    gains = np.full(score.shape[1:], np.nan)
    for s, seed in enumerate(seeds):
        present = np.isfinite(score[:, s]).any(axis=0)
        if not present.any():
            continue
        # A method that lacks a client that others have cannot be the one method for
        # all: its mean is minus infinity.
        overall = score[:, s, present].mean(axis=1)
        order = np.argsort(-overall, kind="stable")
        single = order[0]
        for c in np.flatnonzero(present):
            # argmax takes the first of equal scores: in this order, the method that is
            # better overall
            best = order[np.argmax(score[order, s, c])]
            value, other = test_table[best, s, c], test_table[single, s, c]
            gains[s, c] = (value - other) * sign
            lines.append(
                (
                    seed,
                    clients[c],
                    methods[best],
                    val_table[best, s, c],
                    value,
                    methods[single],
                    other,
                )
            )
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
        orient="row",
    )
    # Both means over the same clients: the method for all may lack test values of some.
    judged = chosen.filter(pl.col("single_test").is_not_nan())
    value = float(np.mean(judged["test"].to_numpy()))
    single_value = float(np.mean(judged["single_test"].to_numpy()))
    return Choice(chosen, value, single_value, two_way_interval(gains, confidence))

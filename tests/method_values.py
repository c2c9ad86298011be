"""Results of methods as the decision reads them."""

import numpy as np
import polars as pl


def values(table, names=None):
    """A table [methods, seeds, clients] as lines."""
    method, seed, client = np.indices(table.shape)
    names = np.array(names or [f"m{k}" for k in range(len(table))])
    frame = pl.DataFrame(
        {
            "method": names[method.ravel()],
            "seed": seed.ravel(),
            "client": client.ravel(),
            "value": table.ravel(),
        }
    )
    return frame.filter(pl.col("value").is_not_nan())

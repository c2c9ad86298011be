"""The tables that `optimum.py` reads and nobody publishes, made from a seed.

    python benchmarks/made_tables.py stations stations.csv     12 clients, 412,000 rows
    python benchmarks/made_tables.py districts districts.csv   60 clients, 5,808 rows

`stations`: hourly measurements of the air. Columns vary together (dew point and
temperature by .95), some are skewed, some cells are missing, and stations differ in their
coefficients, in the number of their rows and in their level. `--target pm --client station`

`districts`: a yes or no that eight columns say little about, with coefficients that differ
a little between districts. `--target vote --client district`
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl


def stations(seed: int = 0, clients: int = 12, rows: int = 412_000) -> pl.DataFrame:
    """A regression with many rows at few clients."""
    random = np.random.default_rng(seed)
    sizes = np.full(clients, rows // clients)
    sizes[: rows - sizes.sum()] += 1
    common = np.array([-0.6, 0.9, -0.1, -1.5, 0.3, 0.25, 0.35, 0.022, 0.08])
    frames = []
    for client, n in enumerate(sizes):
        season = 13 - 15 * np.cos(2 * np.pi * np.arange(n) / 8766)
        temperature = season + random.normal(0, 5, n)
        dew_point = temperature - 8 - random.gamma(2, 2, n)
        pressure = 1018 - 0.8 * temperature + random.normal(0, 4, n)
        wind = random.gamma(2, 0.9, n)
        rain = random.exponential(1, n) * (random.random(n) < 0.04)
        stagnant = random.gamma(1.5, 1, n) / (1 + wind)
        so2 = 4 + 12 * stagnant * random.lognormal(0, 0.5, n)
        no2 = 20 + 40 * stagnant * random.lognormal(0, 0.3, n)
        co = 300 + 1200 * stagnant * random.lognormal(0, 0.3, n)
        o3 = np.maximum(1, 40 + 3 * temperature - 0.5 * no2 + random.normal(0, 25, n))
        inputs = [temperature, dew_point, pressure, wind, rain, so2, no2, co, o3]
        weights = common * random.lognormal(0, 0.3, len(common))
        level = random.normal(20, 8)
        signal = sum(w * (x - x.mean()) for w, x in zip(weights, inputs, strict=True))
        pm = level + 60 + signal + 30 * random.standard_t(5, n) / np.sqrt(5 / 3)
        columns = {
            "station": np.full(n, f"station {client:02}"),
            **dict(
                zip(
                    ("temp", "dew", "pressure", "wind", "rain", "so2", "no2", "co"),
                    inputs,
                    strict=False,
                )
            ),
            "o3": o3,
            "pm": pm,
        }
        frame = pl.DataFrame(columns)
        missing = {name: random.random(n) < 0.02 for name in ("so2", "no2", "co", "o3")}
        frames.append(
            frame.with_columns(
                pl.when(pl.Series(cells)).then(None).otherwise(pl.col(name)).alias(name)
                for name, cells in missing.items()
            )
        )
    return pl.concat(frames).with_columns(pl.selectors.float().round(3))


def districts(seed: int = 0, clients: int = 60, rows: int = 5_808) -> pl.DataFrame:
    """Two classes, with few rows at many clients."""
    random = np.random.default_rng(seed)
    sizes = 40 + random.multinomial(rows - 40 * clients, np.ones(clients) / clients)
    common = random.normal(0, 0.3, 8)
    frames = []
    for client, n in enumerate(sizes):
        x = random.normal(0, 1, (n, 8))
        # Columns differ in scale by a factor of 100, as incomes and shares do.
        logits = x @ (common + random.normal(0, 0.15, 8)) + random.normal(0, 0.4)
        vote = random.random(n) < 1 / (1 + np.exp(-logits))
        scaled = x * np.logspace(-1, 1, 8)
        columns = {f"x{column}": scaled[:, column].round(4) for column in range(8)}
        frames.append(
            pl.DataFrame(
                {
                    "district": np.full(n, f"district {client:02}"),
                    **columns,
                    "vote": np.where(vote, "yes", "no"),
                }
            )
        )
    return pl.concat(frames)


TABLES: dict[str, Callable[[], pl.DataFrame]] = {
    "stations": stations,
    "districts": districts,
}


def main(arguments: list[str]) -> None:
    if len(arguments) != 2 or arguments[0] not in TABLES:
        print(__doc__)
        raise SystemExit(0 if {"-h", "--help"} & {*arguments} else 2)
    TABLES[arguments[0]]().write_csv(Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])

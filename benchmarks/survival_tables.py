"""Three federations of survival data as tables.

python benchmarks/survival_tables.py DATA OUT

DATA holds `survival/{rotterdam,gbsg,cgd0}.csv.gz` (of R's package survival) and
`tcga-brca/{brca,centers,train_test_split}.csv` (of FLamby). OUT gets `hospitals.csv` (two
studies of breast cancer), `centres.csv` (a trial of chronic granulomatous disease, by
centre) and `regions.csv` (TCGA-BRCA, by region), each with the columns time and event.
"""

import argparse
from pathlib import Path

import polars as pl


def hospitals(data: Path) -> pl.DataFrame:
    """Recurrence or death in the Rotterdam and the German study, by their common columns."""
    first = pl.read_csv(data / "survival" / "rotterdam.csv.gz")
    first = first.with_columns(
        time=pl.when(pl.col("recur") == 1).then("rtime").otherwise("dtime"),
        event=pl.max_horizontal("recur", "death"),
        hospital=pl.lit("rotterdam"),
    )
    second = pl.read_csv(data / "survival" / "gbsg.csv.gz")
    size = pl.col("size")
    second = second.with_columns(
        size=pl.when(size <= 20).then(pl.lit("<=20"))
        .when(size <= 50).then(pl.lit("20-50"))
        .otherwise(pl.lit(">50")),
        time=pl.col("rfstime"),
        event=pl.col("status"),
        hospital=pl.lit("german"),
    )  # fmt: skip
    columns = ["hospital", "age", "meno", "size", "grade", "nodes", "pgr", "er"]
    columns += ["hormon", "time", "event"]
    return pl.concat([first.select(columns), second.select(columns)])


def centres(data: Path) -> pl.DataFrame:
    """Time to the first serious infection, by centre."""
    frame = pl.read_csv(data / "survival" / "cgd0.csv.gz")
    first = pl.col("etime1")
    return frame.with_columns(
        time=first.fill_null(pl.col("futime")),
        event=first.is_not_null().cast(pl.Int64),
        centre=pl.col("center").cast(pl.String),
    ).select(
        *("centre", "treat", "sex", "age", "height", "weight", "inherit", "steroids"),
        *("propylac", "hos.cat", "time", "event"),
    )


def regions(data: Path) -> pl.DataFrame:
    """Death in TCGA-BRCA, by region of the hospital, with FLamby's split."""
    folder = data / "tcga-brca"
    places = pl.read_csv(folder / "centers.csv").select(
        code="TSS Code", region=pl.col("Region").str.strip_chars()
    )
    split = pl.read_csv(folder / "train_test_split.csv").select("pid", "fold")
    frame = pl.read_csv(folder / "brca.csv").with_columns(
        code=pl.col("pid").str.split("-").list.get(1)
    )
    joined = frame.join(places, on="code").join(split, on="pid")
    return joined.drop("code").rename({"E": "event", "T": "time"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="the directory of the public data")
    parser.add_argument("out", type=Path, help="where the three tables go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for make in (hospitals, centres, regions):
        table = make(options.data)
        table.write_csv(options.out / f"{make.__name__}.csv")
        events = int(table["event"].sum())
        print(f"{make.__name__}.csv: {table.height} rows, {events} events")


if __name__ == "__main__":
    main()

"""Does halving on validation data (`compare --budget`) decide as the full grid does, and with how many rounds?

On small tables of known truth (those of `regret.py` whose clients are of one size), each of some seeds alone, both
compare the six methods and two learning rates that `fedtailor compare TABLE` starts with. Printed for each:

    full, halved  the method and rate with the best validation accuracy after the last round, and its test accuracy
    same          whether they are the same method and rate
    difference    halved minus full in test accuracy, points, with the 95 % interval of the paired test over clients
    decision      the method that `compare` prints to be better than every other one by the paired test, or none
    sharing       whether the best method that shares is better than training alone, by the paired test over clients
    rounds        what halving took, in shares of the full grid's rounds

and then for all comparisons how often the two agree. A halved comparison never names a winner over methods that it left
out; where the full grid names one, it is counted whether halving leads with it. With the default of --rows, 160
rows of a table are for validation; larger tables tell whether it is they that are too few. Runs that --out holds are
not repeated. The schedule of halving was made on seeds 300 to 302; take others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine
from regret import ROWS, TABLES

import fedtailor as ft
from fedtailor.cli.own_table import CLASSIFICATION_RATES, METHODS
from fedtailor.decision.intervals import two_way_interval
from fedtailor.experiments import scenarios
from fedtailor.experiments.compare import Comparison
from fedtailor.experiments.document import Document
from fedtailor.experiments.experiment import Experiment, resolve
from fedtailor.experiments.scenario import Scenario
from fedtailor.report.decision import ALONE, decide
from fedtailor.report.experiment import Experiment as StoredExperiment
from fedtailor.report.stored import StoredRun

SCENARIOS = [name for name in TABLES if name != "unequal sizes, near"]
ROUNDS = 50


def experiment(name: str, seed: int, rows: int) -> Experiment:
    """One scenario, of so many rows a client, and one seed with every method and rate."""

    def build(data_seed: int) -> ft.Federation:
        return TABLES[name](data_seed, rows)

    def default(method: str) -> Any:
        return ft.scenarios.find("table").algorithm(method)

    label = name.replace(", ", "-").replace(" ", "-") + ("" if rows == ROWS else f"-{rows}")
    scenarios.SCENARIOS[label] = Scenario(label, name, build, ft.models.logistic(), ROUNDS, default=default)
    content = {
        "title": name,
        "seeds": [seed],
        "rounds": ROUNDS,
        "scenarios": {label: {}},
        "algorithms": {method: {"grid": {"sgd": {"lr": list(CLASSIFICATION_RATES)}}} for method in METHODS},
    }
    return resolve(Document(content, (("benchmark", "", ()),)), f"{label}-{seed}")


def outcome(comparison: Comparison) -> dict[str, Any]:
    """What a comparison chose on validation data, and what test data say of it and of training alone."""
    index = json.loads(comparison.run().read_text())
    whole = [it for it in index["candidates"] if it["chosen"] and it["val"] is not None]
    best = max(whole, key=lambda it: it["val"])
    stored = StoredExperiment.read(comparison.results, comparison.experiment.name)
    (scenario,) = index["scenarios"]
    decision = decide(stored, scenario)
    assert decision is not None and decision.winner is not None
    means = decision.winner.means
    sharing = max((name for name in means if name != ALONE), key=lambda name: means[name])
    verdict = "cannot tell"
    for line in decision.winner.pairs.iter_rows(named=True):
        if {line["method"], line["other"]} == {ALONE, sharing}:
            sign = 1 if line["method"] == sharing else -1
            low, high = sorted(sign * line[end] for end in ("low", "high"))
            verdict = "helps" if low > 0 else "hurts" if high < 0 else verdict
    return {
        "method": best["algorithm"],
        "rate": best["parameters"]["sgd.lr"],
        "val": best["val"],
        "test": StoredRun(comparison.results / best["run"]).last("test").sort("client")["value"].to_numpy(),
        "winner": decision.winner.winner,
        "leader": decision.winner.leader,
        "unbeaten": decision.winner.unbeaten,
        "sharing": verdict,
        "rounds": index["budget"],
        "seconds": index["seconds"],
    }


def unbeaten(full: dict[str, Any], halved: dict[str, Any]) -> bool:
    """Whether the full grid's test data show no method to be better than the one that halving chooses."""
    return halved["method"] in full["unbeaten"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[700], help="of data, splits and models")
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, choices=SCENARIOS, help="which tables")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a client: 60 in 100 for tests, 10 for validation")
    parser.add_argument("--out", type=Path, default=Path("budget-results"), help="where runs go")
    options = parser.parse_args()
    print(f"{machine()}\n")
    print("| scenario | seed | full | test | halved | test | same | difference | decision, full | halved | "
          "sharing, full | halved | rounds |")  # fmt: skip
    print("|" + 13 * "---|")
    found = []
    for seed in options.seeds:
        for name in options.scenarios:
            tables = experiment(name, seed, options.rows)
            full, halved = (
                outcome(Comparison(tables, options.out / kind, ft.Settings(), budget=kind == "halved"))
                for kind in ("full", "halved")
            )
            same = (full["method"], full["rate"]) == (halved["method"], halved["rate"])
            share = halved["rounds"]["rounds"] / halved["rounds"]["full"]
            difference = two_way_interval(100 * (halved["test"] - full["test"])[None])
            low, high = sorted((difference.low, difference.high))
            apart = not same and not low <= 0 <= high
            shown = "0" if same else f"{difference.estimate:+.1f} ({low:+.1f} to {high:+.1f})"
            picks = [f"{it['method']} {it['rate']} | {100 * it['test'].mean():.1f}" for it in (full, halved)]
            print(f"| {name} | {seed} | {picks[0]} | {picks[1]} | {'yes' if same else 'no'} | {shown} | "
                  f"{full['winner'] or 'none'} | {halved['winner'] or 'none'} | "
                  f"{full['sharing']} | {halved['sharing']} | {share:.2f} |", flush=True)  # fmt: skip
            found.append((same, apart, difference.estimate, full, halved, share))
    named = [(full, halved) for *_, full, halved, _ in found if full["winner"] is not None]
    leads = sum(halved["leader"] == full["winner"] for full, halved in named)
    chosen = sum(halved["method"] == full["winner"] for full, halved in named)
    beaten = sum(not unbeaten(full, halved) for *_, full, halved, _ in found)
    print(
        f"\nof {len(found)}: the same method and rate {sum(it[0] for it in found)}; "
        f"the same method {sum(full['method'] == halved['method'] for *_, full, halved, _ in found)}; "
        f"as good on validation data {sum(halved['val'] > full['val'] - 1e-9 for *_, full, halved, _ in found)}; "
        f"not shown to differ on test {sum(not it[1] for it in found)}; "
        f"the same decision {sum(full['winner'] == halved['winner'] for *_, full, halved, _ in found)} "
        f"(the full grid names a winner in {len(named)}: there halving's test data lead with it {leads} times, its "
        f"validation data choose it {chosen} times); "
        f"the same word on sharing {sum(full['sharing'] == halved['sharing'] for *_, full, halved, _ in found)}; "
        f"the choice of halving is beaten in the full grid {beaten}"
    )
    differences = [it[2] for it in found]
    print(f"difference on test: mean {np.mean(differences):+.2f} points, {min(differences):+.2f} to "
          f"{max(differences):+.2f}; rounds: {np.mean([it[-1] for it in found]):.3f}; seconds of runs: full "
          f"{sum(full['seconds'] for *_, full, _, _ in found):.0f}, halved "
          f"{sum(halved['seconds'] for *_, halved, _ in found):.0f}")  # fmt: skip


if __name__ == "__main__":
    main()

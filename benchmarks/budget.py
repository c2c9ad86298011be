"""Does halving on validation data (`compare --budget`) decide as the full grid does,
and with how many rounds?

On tables of known truth (those of `regret.py` whose clients are of one size), each of
some seeds alone, both compare the six methods and two learning rates that `fedtailor
compare TABLE` starts with. Printed for each:

    full, halved  the method and rate with the best validation accuracy after the last round, and its test accuracy
    same          whether they are the same method and rate
    difference    halved minus full in test accuracy, points, with the 95 % interval of the paired test over clients
    decision      the method that `compare` prints to be better than every other one by the paired test, or none
    sharing       whether the best method that shares is better than training alone, by the paired test over clients
    rounds        what halving took, in shares of the full grid's rounds

and then how often the two agree: in the decision, in the word on sharing, in both. With
few clients and rows the full grid names no winner, and there is little to agree on; see
--clients and --rows. Both comparisons share the runs in --out, where none is repeated:
of a whole run halving reads what it measured until a cut, and counts the rounds until
then (a run that is stopped there and goes on measures the same to the bit, as the tests
show).

The schedule of halving was chosen on seeds 500 and 501; take others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine
from regret import CLIENTS, ROWS, TABLES

import fedtailor as ft
from fedtailor.lab import scenarios
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import Experiment, resolve
from fedtailor.lab.results.decision import LOCAL_METHOD, decide
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.words import DEFAULT_METHODS
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.protocol.document import Document
from fedtailor.statistics.decision.intervals import two_way_interval

SCENARIOS = [name for name in TABLES if name != "unequal sizes, near"]
ROUNDS = 50
RATES = (0.1, 0.01)
"""Learning rates of which each method chooses one, the larger one first."""


def experiment(name: str, seed: int, clients: int, rows: int) -> Experiment:
    """One scenario, of so many rows a client, and one seed with every method and
    rate.
    """

    def build(data_seed: int) -> ft.Federation:
        return TABLES[name](data_seed, rows, clients)

    def default(method: str) -> Any:
        return ft.scenarios.find("table").algorithm(method)

    sizes = "" if (clients, rows) == (CLIENTS, ROWS) else f"-{clients}x{rows}"
    label = name.replace(", ", "-").replace(" ", "-") + sizes
    scenarios.SCENARIOS[label] = Scenario(
        label, name, build, ft.models.logistic(), ROUNDS, default=default
    )
    content = {
        "title": name,
        "seeds": [seed],
        "rounds": ROUNDS,
        "scenarios": {label: {}},
        "algorithms": {
            method: {"grid": {"sgd": {"lr": list(RATES)}}} for method in DEFAULT_METHODS
        },
    }
    return resolve(Document(content, (("benchmark", "", ()),)), f"{label}-{seed}")


def outcome(comparison: Comparison) -> dict[str, Any]:
    """What a comparison chose on validation data, and what test data say of it and of
    training alone.
    """
    index = json.loads(comparison.run().read_text())
    whole = [it for it in index["candidates"] if it["chosen"] and it["val"] is not None]
    best = max(whole, key=lambda it: it["val"])
    stored = StoredExperiment.read(comparison.results, comparison.experiment.name)
    (scenario,) = index["scenarios"]
    decision = decide(stored, scenario)
    assert decision is not None and decision.winner is not None
    trained = [
        name for name in decision.winner.means if name not in decision.left_out
    ]  # best first
    sharing = next(name for name in trained if name != LOCAL_METHOD)
    verdict = "cannot tell"
    for line in decision.winner.pairs.iter_rows(named=True):
        if {line["method"], line["other"]} == {LOCAL_METHOD, sharing}:
            sign = 1 if line["method"] == sharing else -1
            low, high = sorted(sign * line[end] for end in ("low", "high"))
            verdict = "helps" if low > 0 else "hurts" if high < 0 else verdict
    return {
        "method": best["algorithm"],
        "rate": best["parameters"]["sgd.lr"],
        "val": best["val"],
        "test": (
            StoredRun(comparison.results / best["run"])
            .last("test")
            .sort("client")["value"]
            .to_numpy()
        ),
        "winner": decision.winner.ahead,
        "unbeaten": decision.winner.unbeaten,
        "sharing": verdict,
        "rounds": index["budget"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[700], help="of data, splits and models"
    )
    parser.add_argument(
        "--scenarios",
        nargs="+",
        default=SCENARIOS,
        choices=SCENARIOS,
        help="which tables",
    )
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of a table")
    parser.add_argument(
        "--rows",
        type=int,
        default=ROWS,
        help="of a client: 60 in 100 for tests, 10 for validation",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("budget-results"), help="where runs go"
    )
    options = parser.parse_args()
    print(f"{machine()}\n")
    print(
        "| scenario | seed | full | test | halved | test | same | difference |"
        " decision, full | halved | sharing, full | halved | rounds |"
    )
    print("|" + 13 * "---|")
    found = []
    for seed in options.seeds:
        for name in options.scenarios:
            tables = experiment(name, seed, options.clients, options.rows)
            full, halved = (
                outcome(Comparison(tables, options.out, ft.Settings(), budget=budget))
                for budget in (False, True)
            )
            same = (full["method"], full["rate"]) == (halved["method"], halved["rate"])
            share = halved["rounds"]["rounds"] / halved["rounds"]["full"]
            difference = two_way_interval(100 * (halved["test"] - full["test"])[None])
            low, high = sorted((difference.low, difference.high))
            apart = not same and not low <= 0 <= high
            shown = (
                "0"
                if same
                else f"{difference.estimate:+.1f} ({low:+.1f} to {high:+.1f})"
            )
            picks = [
                f"{it['method']} {it['rate']} | {100 * it['test'].mean():.1f}"
                for it in (full, halved)
            ]
            print(
                f"| {name} | {seed} | {picks[0]} | {picks[1]} |"
                f" {'yes' if same else 'no'} | {shown} | {full['winner'] or 'none'} |"
                f" {halved['winner'] or 'none'} | {full['sharing']} |"
                f" {halved['sharing']} | {share:.2f} |",
                flush=True,
            )
            found.append((same, apart, difference.estimate, full, halved, share))
    pairs = [(full, halved) for *_, full, halved, _ in found]
    same_decision = [full["winner"] == halved["winner"] for full, halved in pairs]
    same_word = [full["sharing"] == halved["sharing"] for full, halved in pairs]
    both = sum(
        decision and word
        for decision, word in zip(same_decision, same_word, strict=True)
    )
    named = [halved["winner"] for full, halved in pairs if full["winner"] is not None]
    right = sum(
        halved["winner"] == full["winner"]
        for full, halved in pairs
        if full["winner"] is not None
    )
    alone = sum(
        halved["winner"] is not None for full, halved in pairs if full["winner"] is None
    )
    print(
        f"\nof {len(found)}: the same decision {sum(same_decision)}; the same word on"
        f" sharing {sum(same_word)}; both {both}\nthe full grid names a winner in"
        f" {len(named)}: there halving names the same one {right} times, none"
        f" {named.count(None)}; halving alone names one {alone} times\nthe same method"
        f" and rate {sum(it[0] for it in found)}; the same method"
        f" {sum(full['method'] == halved['method'] for full, halved in pairs)}; as good"
        " on validation data"
        f" {sum(halved['val'] > full['val'] - 1e-9 for full, halved in pairs)}; not"
        f" shown to differ on test {sum(not it[1] for it in found)}; beaten on the full"
        " grid's test data"
        f" {sum(halved['method'] not in full['unbeaten'] for full, halved in pairs)}"
    )
    differences = [it[2] for it in found]
    print(
        f"difference on test: mean {np.mean(differences):+.2f} points,"
        f" {min(differences):+.2f} to {max(differences):+.2f}; rounds:"
        f" {np.mean([it[-1] for it in found]):.3f}"
    )


if __name__ == "__main__":
    main()

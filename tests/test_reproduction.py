"""docs/reproduction.md says what results/ carry: its verdicts are those of
benchmarks/orderings.py.
"""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
from scipy.stats import ttest_ind_from_stats

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "orderings.py"

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists(),
    reason="results are in the repository only, not in its archives",
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("orderings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            importlib.sys.modules, "orderings", module
        )  # where dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def found(script):
    return list(script.orderings())


def verdicts(found, paper, where, above, below):
    """By place, all whose names begin so."""
    return {
        one.where: one.verdict
        for one in found
        if (one.paper, one.above, one.below) == (paper, above, below)
        and one.where.startswith(where)
    }


def test_the_page_has_the_verdicts_of_the_script(script):
    page = script.PAGE.read_text()
    assert page == script.written(page), "run benchmarks/orderings.py --write"
    papers = [
        "S000",
        "S001",
        "S003",
        "S004",
        "PFLlib",
        "FedRep",
        "FedEM",
        "kNN-Per",
        "pFL-Bench",
    ]
    assert [block["paper"] for block in script.BLOCK.finditer(page)] == papers


def test_another_verdict_on_the_page_is_noticed(script):
    page = script.PAGE.read_text()
    wrong = page.replace("Ditto (78.3 ± 3.9): -3.7", "Ditto (78.3 ± 3.9): 3.7")
    assert wrong != page
    assert script.written(wrong) == page


def test_no_verdict_stands_outside_of_the_tables(script):
    prose = script.BLOCK.sub("", script.PAGE.read_text())
    assert not re.findall(
        r"(?i)\| *(?:yes|no|open)\b|\*(?:yes|no|open)\*(?!\*)|: (?:yes|no)(?="
        r" *[,;.|(]|$)",
        prose,
    )


def test_every_mean_and_deviation_on_the_page_stands_in_a_report(script):
    stated = set(
        re.findall(
            r"here (\d+\.\d+ ± \d+\.\d+)|(?<!published )\b(\d+\.\d+ ± \d+\.\d+)",
            script.PAGE.read_text(),
        )
    )
    reports = "".join(
        report.read_text() for report in script.RESULTS.glob("*/report.md")
    )
    reported = {
        as_numbers(cell) for cell in re.findall(r"\d+\.?\d* ± \d+\.?\d*", reports)
    }
    numbers = {one or other for one, other in stated}
    assert len(numbers) > 50
    assert {number for number in numbers if as_numbers(number) not in reported} == set()


def as_numbers(cell):
    """Mean and deviation: "97.20 ± 0.06" is 97.2 and 0.06."""
    mean, deviation = cell.split(" ± ")
    return float(mean), float(deviation)


def test_what_a_difference_within_its_interval_is_called(found):
    for one in found:
        low, high = one.interval
        assert low <= one.difference <= high
        assert one.verdict == ("yes" if low > 0 else "no" if high < 0 else "open")
    assert {one.verdict for one in found} == {"yes", "open", "no"}


def test_the_interval_is_welchs(script, found):
    """At its ends, Welch's test is exactly at 5 %."""
    fine = {"unit": 1e-12, "text": ""}
    pair = {
        "ours": script.Measured(70.0, 1.5, **fine),
        "theirs": script.Measured(68.0, 0.4, **fine),
    }
    ordering = dataclasses.replace(found[0], **pair, lower=False, seeds=3)
    for end in ordering.interval:
        test = ttest_ind_from_stats(70.0 - end, 1.5, 3, 68.0, 0.4, 3, equal_var=False)
        assert test.pvalue == pytest.approx(0.05, abs=1e-9)


def test_rounding_widens_the_interval(script, found):
    def width(unit):
        cells = {
            name: script.Measured(70.0, 1.0, unit, "") for name in ("ours", "theirs")
        }
        low, high = dataclasses.replace(found[0], **cells, seeds=3).interval
        return high - low

    assert width(0.1) > width(0.001) + 0.1


def test_a_lower_loss_is_better(found):
    one = next(one for one in found if one.paper == "S001" and one.lower)
    assert one.difference == pytest.approx(one.theirs.mean - one.ours.mean)


def test_a_claim_that_the_papers_numbers_contradict_is_refused(script, monkeypatch):
    claim = next(
        one for one in script._claims()["claim"] if one["above"] == "UCFL, 4 streams"
    )
    wrong = claim | {"above": "FedAvg", "below": ["UCFL, 4 streams"]}
    monkeypatch.setattr(script, "_claims", lambda: {"claim": [wrong], "unjudged": []})
    with pytest.raises(ValueError, match="not published above"):
        list(script.orderings())


def test_tables_of_later_reports_are_read(script):
    old = script._measured({"a": "72.8 ± 0.6"}, "a")
    assert script._measured({"a": "72.77328", "a std": "0.6123"}, "a") == old, (
        "rounded as reports show it"
    )
    of_two = {
        "a, published": "76.7",
        "a, published std": "4",
        "b, published": "",
        "b, published std": "",
    }
    assert (
        script._published(of_two, "a") == "76.7 ± 4"
        and script._published(of_two, "b") is None
    )
    assert script._published({"published": "76.7"}, "a") == "76.7"
    assert (
        script._published({"published": "-"}, "a") is None
        and script._published({}, "a") is None
    )


def test_what_has_not_been_run_is_named_with_its_command_and_not_judged(
    script, monkeypatch, found
):
    claims = script._claims()
    absent = [
        {**claim, "experiment": "not-there-quick"}
        for claim in claims["claim"]
        if claim["paper"] == "S003"
    ]
    others = [claim for claim in claims["claim"] if claim["paper"] != "S003"]
    monkeypatch.setattr(
        script, "_claims", lambda: {**claims, "claim": [*others, *absent]}
    )
    assert len(list(script.orderings())) == len(found) - sum(
        one.paper == "S003" for one in found
    )
    block = script.block("S003")
    assert (
        "published orderings" not in block
        and "`fedtailor compare experiments/not-there.toml --quick`" in block
    )
    assert "Eq. 3 as printed" in block, (
        "what results/ cannot carry stands there all the same"
    )


def test_what_was_run_again_replaces_what_was_there(script, tmp_path):
    """In numbers; what the paper publishes stays."""
    old, new = (tmp_path / name / "tables" for name in ("one-quick", "one-again-quick"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    (old / "mean.csv").write_text(
        'algorithm,a,"a, published"\nAPFL,72.8 ± 0.6,90\nLocal,50.0 ± 0.1,60\n'
    )
    (new / "mean.csv").write_text(
        "algorithm,a,a std\nAPFL,75.1432,0.27\n(nothing learned),10.0,0.0\n"
    )
    found = script._table(old / "mean.csv")
    assert {name: script._measured(row, "a").text for name, row in found.items()} == {
        "APFL": "75.1 ± 0.3",
        "Local": "50.0 ± 0.1",
    }
    assert found["APFL"]["a, published"] == "90"


def test_ifca_is_not_above_the_personal_models(found):
    """The published claim; not that it is above pFedMe's global model, which the paper
    does not have.
    """
    for below in ("Ditto", "L2SGD"):
        assert set(
            verdicts(found, "S004", "Table 1", "IFCA, K = 4", below).values()
        ) == {"no"}
    mnist = verdicts(found, "S004", "Table 1, MNIST", "IFCA, K = 4", "pFedMe (PM)")
    assert len(mnist) == 2 and set(mnist.values()) == {"no"}
    assert not [one for one in found if "GM" in one.below]


@pytest.mark.parametrize(
    ("paper", "where", "above", "below"),
    [
        (
            "S000",
            "Table II, worst client, label shift",
            "UCFL, a stream each",
            "FedAvg",
        ),
        ("S000", "Table II, worst client, label shift", "UCFL, a stream each", "CFL"),
        ("S001", "Table 4, shuffled, seen", "MAPPER", "HypCluster"),
        ("S001", "Table 4, shuffled, unseen", "DAPPER", "Baseline"),
        ("S001", "Table 4, shuffled, unseen", "FineTune", "Baseline"),
        ("S001", "Table 3, original order, unseen", "HypCluster", "Baseline"),
        ("S004", "Table 1, FMNIST", "CGPFL, K = 4", "pFedMe (PM)"),
        ("S003", "Table 1, worst tenth", "Self-FL", "Ditto"),
    ],
)
def test_differences_within_a_deviation_are_open(found, paper, where, above, below):
    assert set(verdicts(found, paper, where, above, below).values()) == {"open"}


def test_hypcluster_before_dapper_at_100_samples_is_not_reproduced(found):
    assert set(
        verdicts(
            found, "S001", "Table 2, test loss, 100 s", "HypCluster", "DAPPER"
        ).values()
    ) == {"no"}


def test_the_page_says_which_defaults_the_results_are_of(script):
    page = script.PAGE.read_text()
    assert "The results are of version 0.1.0" in page
    for method in (
        "APFL averages reporters uniformly",
        "CGPFL-Heur takes the fewest contexts",
    ):
        assert method in page
    newer = {
        report.parent.name
        for report in script.RESULTS.glob("*/report.md")
        if "0.1.0" not in report.read_text()
    }
    # Folders of the queue say themselves of what they are.
    newer -= {record.parent.name for record in script.RESULTS.glob("*/evidence.json")}
    assert "every folder with `evidence.json`" in page
    said = page[
        page.index("The results are of version 0.1.0") : page.index(
            "Three things that the old ones"
        )
    ]
    named = {
        name
        for name in newer
        if "-again-" in name
        or f"`{name.removesuffix('-quick')}`" in " ".join(said.split())
    }
    assert newer == named and "s000-label-shift" in newer

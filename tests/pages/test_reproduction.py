"""docs/reproduction.md and the pages behind it say what results/ carry: benchmarks/
reproduction.py writes them.
"""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from scipy.stats import ttest_ind_from_stats

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "orderings.py"

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists(),
    reason="results are in the repository only, not in its archives",
)


MAX_MEGABYTES = 3


def load(name, patch):
    """Import a script of benchmarks/, whose neighbours it imports."""
    spec = importlib.util.spec_from_file_location(
        name, ROOT / "benchmarks" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    patch.syspath_prepend(SCRIPT.parent)
    # Dataclasses look their module up.
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        load("result_files", patch)
        yield load("orderings", patch)


@pytest.fixture(scope="module")
def pages(script):
    """The script that writes the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "orderings", script)
        yield load("reproduction", patch)


@pytest.fixture(scope="module")
def found(script):
    return list(script.orderings())


def verdicts(found, paper, where, above, below):
    """By place and size, all whose names begin so."""
    return {
        (one.where, one.size): one.verdict
        for one in found
        if (one.paper, one.above, one.below) == (paper, above, below)
        and one.where.startswith(where)
    }


def test_the_pages_are_what_results_say(pages):
    for path, text in pages.pages().items():
        assert path.read_text() == text, "run benchmarks/reproduction.py --write"
    written = {path.name for path in pages.pages()} - {pages.PAGE.name}
    assert {path.name for path in pages.DETAILS.iterdir()} == written


def test_another_verdict_on_the_page_is_noticed(pages):
    page = pages.PAGE.read_text()
    wrong = re.sub(r"FedAvg: \d+\.\d \[", "FedAvg: 99.9 [", page, count=1)
    assert wrong != page
    assert pages.filled(wrong) == page


def test_no_measured_number_stands_outside_of_the_blocks(pages):
    prose = pages.BLOCK.sub("", pages.PAGE.read_text())
    assert not re.findall(r"(?<!\.)\d\.\d(?!\.)|±", prose)
    assert not re.findall(r"\*\*(?:yes|no|open)\*\*(?!:)", prose)


def test_the_headlines_come_first_with_the_papers_own_settings(pages):
    block = pages.headlines("mestoukirdi-2022")
    lines = block.splitlines()
    label_shift = [line for line in lines if line.startswith("| label shift")]
    assert label_shift[0].startswith("| label shift | the paper's | **no** |")
    chosen = "| n_k chosen in training, the paper's probe | **yes**"
    assert any(chosen in row for row in label_shift)
    page = pages.PAGE.read_text()
    assert page.index("<!-- headlines mestoukirdi-2022") < page.index(
        "<!-- sentences mestoukirdi-2022"
    )


def test_a_sentence_holds_only_if_all_its_comparisons_do(script, found):
    for verdict in ("open", "no"):
        other = next(one for one in found if one.verdict == verdict)
        yes = next(one for one in found if one.verdict == "yes")
        assert script.verdict_of([yes, yes]) == "yes"
        assert script.verdict_of([yes, other]) == verdict
        assert script.weakest([yes, other]) is other


def test_another_verdict_at_the_best_round_stands_beside_that_of_the_last(pages, found):
    one = next(
        one for one in found if one.at_best and one.at_best.verdict != one.verdict
    )
    text = f"**{one.at_best.verdict}**; {one.below}: {one.at_best.gain}"
    assert pages._at_best([one], whole=False).startswith(text)
    assert f"at the best round {one.at_best.verdict}: {one.at_best.gain}" in (
        pages._row(one)
    )
    same = dataclasses.replace(one, at_best=dataclasses.replace(one, at_best=None))
    neither = dataclasses.replace(one, at_best=None)
    assert pages._at_best([same]) == "same"
    assert pages._at_best([neither]) == pages._at_best([one, neither]) == "-"
    for silent in (same, neither):
        assert "best round" not in pages._row(silent)


def test_the_best_round_is_that_of_validation_data(script, found):
    one = next(
        one
        for one in found
        if one.where == "Table I, permuted"
        and one.above == "Local"
        and one.size == script.PUBLISHED
    )
    rows = script._rows(
        script.RESULTS / "mestoukirdi-2022-when-to-ask-relabelled-variants", "best_val"
    )
    assert one.at_best.ours.mean == round(float(rows["Local"]["permuted"]), 1)
    assert one.at_best.ours != one.ours


def test_the_published_size_counts_where_it_was_run(script, found):
    large = next(one for one in found if one.size == script.PUBLISHED)
    same = dataclasses.replace(large, size=script.SMALLER)
    elsewhere = dataclasses.replace(same, column="elsewhere")
    assert script.at_best_size([same, large, elsewhere]) == [large, elsewhere]


def test_methods_match_if_the_difference_is_within_the_margin(script, found):
    one = next(one for one in found if one.verdict == "open")
    low, high = one.interval
    within = dataclasses.replace(one, margin=0.1 - low)
    assert within.verdict == "yes" and one.margin == 0
    below = dataclasses.replace(one, margin=-high - 0.1)
    assert below.verdict == "no"


def test_a_method_that_diverged_on_some_seeds_has_fewer(script, found):
    row = {"a": "70.0", "a std": "1.0", "a runs": "2"}
    assert script._measured(row, "a", 5).seeds == 2
    assert script._measured({"a": "70.0 ± 1.0"}, "a", 5).seeds == 5
    one = next(one for one in found if one.ours.seeds < one.ours.of)
    assert one.gain.endswith(f"], {one.ours.seeds} of {one.ours.of} seeds")


def test_every_mean_and_deviation_on_the_pages_stands_in_a_report(pages):
    text = "".join(path.read_text() for path in pages.pages())
    text = re.sub(r"published \d+\.?\d* ± \d+\.?\d*|\(\d[^()]*\)", "", text)
    reports = "".join(
        report.read_text() for report in pages.RESULTS.glob("*/report.md")
    )
    measured = r"\d+\.?\d* ± \d+\.?\d*"
    reported = {as_numbers(cell) for cell in re.findall(measured, reports)}
    stated = set(re.findall(measured, text))
    assert len(stated) > 50
    assert {one for one in stated if as_numbers(one) not in reported} == set()


def as_numbers(cell):
    """Mean and deviation: "97.20 ± 0.06" is 97.2 and 0.06."""
    mean, deviation = cell.split(" ± ")
    return float(mean), float(deviation)


def test_results_hold_one_csv_and_one_page_an_experiment(pages):
    results = sys.modules["result_files"]
    assert results.strays() == []
    folders = [path for path in results.RESULTS.iterdir() if path.is_dir()]
    size = sum(path.stat().st_size for path in results.RESULTS.rglob("*"))
    assert len(folders) > 20 and size < MAX_MEGABYTES * 1e6
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        assert {"report.md", "tables.csv"} <= names


def test_a_folder_is_packed_without_a_loss(pages, tmp_path):
    results = sys.modules["result_files"]
    (tmp_path / "tables").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_text("")
    (tmp_path / "tables" / "a.tex").write_text("")
    (tmp_path / "tables" / "mean.csv").write_text("algorithm,x\nFedAvg,70.5\n")
    (tmp_path / "tables" / "worst.csv").write_text("algorithm,x,y\nFedAvg,60,2\n")
    text = "# Title\n\nText\n"
    (tmp_path / "report.md").write_text(f"{text}\n![a](figures/a.png)\n")
    results.pack(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.md",
        "tables.csv",
    ]
    assert (tmp_path / "report.md").read_text() == text
    assert results.read_tables(tmp_path / "tables.csv") == {
        "mean": {"FedAvg": {"(table)": "mean", "algorithm": "FedAvg", "x": "70.5"}},
        "worst": {
            "FedAvg": {"(table)": "worst", "algorithm": "FedAvg", "x": "60", "y": "2"}
        },
    }
    results.pack(tmp_path)
    assert (tmp_path / "report.md").read_text() == text


def test_the_page_shows_what_the_demo_printed(pages):
    printed = (pages.RESULTS / "demo.txt").read_text().strip()
    assert printed in (ROOT / "docs" / "first-experiment.md").read_text()


def test_what_a_difference_within_its_interval_is_called(found):
    for one in found:
        low, high = one.interval
        assert low <= one.difference <= high
        low, high = low + one.margin, high + one.margin
        assert one.verdict == ("yes" if low > 0 else "no" if high < 0 else "open")
    assert {one.verdict for one in found} == {"yes", "open", "no"}


def test_the_interval_is_welchs(script, found):
    """At its ends, Welch's test is exactly at 5 %."""
    fine = {"unit": 1e-12, "text": "", "seeds": 3, "of": 3}
    pair = {
        "ours": script.Measured(70.0, 1.5, **fine),
        "theirs": script.Measured(68.0, 0.4, **fine),
    }
    ordering = dataclasses.replace(found[0], **pair, lower=False)
    for end in ordering.interval:
        test = ttest_ind_from_stats(70.0 - end, 1.5, 3, 68.0, 0.4, 3, equal_var=False)
        assert test.pvalue == pytest.approx(0.05, abs=1e-9)


def test_rounding_widens_the_interval(script, found):
    def width(unit):
        cells = {
            name: script.Measured(70.0, 1.0, unit, "", 3, 3)
            for name in ("ours", "theirs")
        }
        low, high = dataclasses.replace(found[0], **cells).interval
        return high - low

    assert width(0.1) > width(0.001) + 0.1


def test_a_lower_loss_is_better(found):
    one = next(one for one in found if one.paper == "mansour-2020" and one.lower)
    assert one.difference == pytest.approx(one.theirs.mean - one.ours.mean)


def test_a_claim_that_the_papers_numbers_contradict_is_refused(script, monkeypatch):
    claim = next(
        one
        for one in script.read_claims()["claim"]
        if one["above"] == "UCFL, 4 streams"
    )
    wrong = claim | {"above": "FedAvg", "below": ["UCFL, 4 streams"]}
    claims = {"claim": [wrong], "unjudged": []}
    monkeypatch.setattr(script, "read_claims", lambda: claims)
    with pytest.raises(ValueError, match="not published above"):
        list(script.orderings())


def test_tables_of_later_reports_are_read(script):
    old = script._measured({"a": "72.8 ± 0.6"}, "a", 3)
    assert script._measured({"a": "72.77328", "a std": "0.6123"}, "a", 3) == old, (
        "rounded as reports show it"
    )
    of_two = {"a, published": "76.7", "a, published std": "4"}
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
    script, pages, monkeypatch, found
):
    claims = script.read_claims()
    absent = [
        {**claim, "experiment": "not-there-quick"}
        for claim in claims["claim"]
        if claim["paper"] == "chen-2022"
    ]
    others = [claim for claim in claims["claim"] if claim["paper"] != "chen-2022"]
    changed = {**claims, "claim": [*others, *absent]}
    monkeypatch.setattr(script, "read_claims", lambda: changed)
    judged = list(script.orderings())
    assert judged == [one for one in found if one.paper != "chen-2022"]
    page = pages.details("chen-2022")
    assert "published orderings" not in page
    assert "`fedtailor compare experiments/not-there.toml --quick`" in page
    assert "Eq. 3 as printed" in page, (
        "what results/ cannot carry stands there all the same"
    )


def test_what_is_below_may_be_of_another_experiment(script):
    claim = {
        "experiment": "mestoukirdi-2022-label-shift",
        "below_experiment": "not-there",
    }
    above, below = script._experiments(claim)
    assert above.is_dir() and not below.exists()
    assert script._experiments({"experiment": "not-there"}) == (below, below)


def test_ifca_is_not_above_the_personal_models(found):
    """The published claim; not that it is above pFedMe's global model, which the paper
    does not have.
    """
    for below in ("Ditto", "L2SGD"):
        assert set(
            verdicts(found, "tang-2022", "Table 1", "IFCA, K = 4", below).values()
        ) == {"no"}
    mnist = verdicts(found, "tang-2022", "Table 1, MNIST", "IFCA, K = 4", "pFedMe (PM)")
    assert len(mnist) == 2 and set(mnist.values()) == {"no"}
    assert not [one for one in found if "GM" in one.below]


@pytest.mark.parametrize(
    ("paper", "where", "above", "below"),
    [
        (
            "mestoukirdi-2022",
            "Table II, worst client, label shift",
            "UCFL, a stream each",
            "FedAvg",
        ),
        (
            "mestoukirdi-2022",
            "Table II, worst client, label shift",
            "UCFL, a stream each",
            "CFL",
        ),
        ("mansour-2020", "Table 4, shuffled, seen", "MAPPER", "HypCluster"),
        ("mansour-2020", "Table 4, shuffled, unseen", "DAPPER", "Baseline"),
        ("mansour-2020", "Table 4, shuffled, unseen", "FineTune", "Baseline"),
        ("mansour-2020", "Table 3, original order, unseen", "HypCluster", "Baseline"),
        ("tang-2022", "Table 1, FMNIST", "CGPFL, K = 4", "pFedMe (PM)"),
        ("chen-2022", "Table 1, worst tenth", "Self-FL", "Ditto"),
    ],
)
def test_differences_within_a_deviation_are_open(found, paper, where, above, below):
    assert set(verdicts(found, paper, where, above, below).values()) == {"open"}


def test_hypcluster_before_dapper_at_100_samples_is_not_reproduced(found):
    assert set(
        verdicts(
            found, "mansour-2020", "Table 2, test loss, 100 s", "HypCluster", "DAPPER"
        ).values()
    ) == {"no"}

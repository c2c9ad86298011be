"""One number says who reports in a round, with one meaning in Python, in files and on
the command line.
"""

from itertools import permutations

import numpy as np
import pytest

from fedtailor.cli import main
from fedtailor.engine.training import Participation, as_participation
from fedtailor.lab.experiments.experiment import load_experiment


@pytest.mark.parametrize(
    ("number", "reporters"),
    [(1, 20), (1.0, 20), (True, 20), (0.5, 10), (0.01, 1), (2, 2), (2.0, 2), (20, 20)],
)
def test_up_to_one_is_a_share_and_from_two_a_number(number, reporters):
    assert as_participation(number).reporters(20) == reporters


def test_a_participation_stays_what_it_is():
    single = Participation(count=1)
    assert as_participation(single) is single and single.reporters(20) == 1


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.5, 2.5, 0, -1, -0.5])
def test_what_is_neither_is_refused(number):
    with pytest.raises(ValueError, match="participation"):
        as_participation(number)


@pytest.mark.parametrize(
    ("written", "reporters"),
    [("1", 20), ("1.0", 20), ("0.5", 10), ("3", 3), ("3.0", 3)],
)
def test_files_and_the_command_line_say_the_same(
    written, reporters, tmp_path, monkeypatch, capsys
):
    (tmp_path / "e.toml").write_text(
        'title = "t"\nrounds = 1\nparticipation ='
        f" {written}\n[scenarios.digits-rotated]\n[algorithms.fedavg]\n"
    )
    (scenario,) = load_experiment(tmp_path / "e.toml").scenarios
    assert scenario.participation.reporters(20) == reporters
    asked = []

    def train(*arguments, participation, **options):
        asked.append(participation.reporters(20))
        raise ValueError("seen")

    monkeypatch.setattr("fedtailor.cli.commands.run.train", train)
    assert main(["run", "fedavg", "digits-rotated", "--participation", written]) == 2
    assert asked == [reporters] and "seen" in capsys.readouterr().err


def test_reporters_are_drawn_in_proportion_to_their_samples():
    """Two of three, one after another of those that are left; whoever is listed
    where.
    """
    sizes, ids, rounds = np.array([1, 2, 5]), np.array([7, 99, 12345], np.uint64), 4000
    sampled = Participation(count=2, sampling="samples")
    reports = np.array(
        [sampled.sample(ids, 3, round, sizes) for round in range(rounds)]
    )
    assert (reports.sum(axis=1) == 2).all()
    p = sizes / 8
    out = [
        sum(p[i] * p[j] / (1 - p[i]) for i, j in permutations(set(range(3)) - {k}))
        for k in range(3)
    ]
    expected = 1 - np.array(out)
    assert np.abs(reports.mean(axis=0) - expected).max() < 4 * 0.5 / np.sqrt(rounds)
    order = np.array([2, 0, 1])
    again = sampled.sample(ids[order], 3, 17, sizes[order])
    np.testing.assert_array_equal(again, reports[17][order])
    assert sampled.sample(ids, 3, 0, np.array([0, 0, 4])).tolist()[2]


def test_a_run_draws_by_samples_where_files_and_the_command_line_say_so(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "e.toml").write_text(
        'title = "t"\nrounds = 1\nparticipation ='
        " 3\n[scenarios.digits-rotated]\nsampling ="
        ' "samples"\n[scenarios.digits-permuted]\n[algorithms.fedavg]\n'
    )
    found = [
        scenario.participation
        for scenario in load_experiment(tmp_path / "e.toml").scenarios
    ]
    assert found == [Participation(count=3, sampling="samples"), Participation(count=3)]
    asked = []

    def train(*arguments, participation, **options):
        asked.append(participation)
        raise ValueError("seen")

    monkeypatch.setattr("fedtailor.cli.commands.run.train", train)
    arguments = [
        "run",
        "fedavg",
        "digits-rotated",
        "--participation",
        "3",
        "--sampling",
    ]
    assert main([*arguments, "samples"]) == 2 and asked == found[:1]
    assert (
        main([*arguments, "size"]) == 2
        and "--sampling is 'size'; it must be one of" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="participation sampling is 'size'"):
        Participation(sampling="size")


@pytest.mark.parametrize("sampling", [None, "samples"])
def test_clients_that_report_are_the_first_in_order(sampling):
    # Equal ids draw equal numbers; of them the first ones report.
    ids = np.arange(40, dtype=np.uint64) // 3
    sizes = np.where(np.arange(40) % 5 < 2, 0, 7)
    for count in (1, 2, 17, 39, 40):
        chosen = Participation(count=count, sampling=sampling)
        for round in range(5):
            first = chosen.order(ids, 3, round, sizes)[:count]
            reporting = chosen.sample(ids, 3, round, sizes)
            assert sorted(first) == np.flatnonzero(reporting).tolist()

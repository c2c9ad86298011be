"""One number says who reports in a round, with one meaning in Python, in files and on the command line."""

import pytest

from fedtailor.cli import main
from fedtailor.experiments.experiment import load
from fedtailor.training import Participation, as_participation


@pytest.mark.parametrize(
    ("number", "reporters"), [(1, 20), (1.0, 20), (True, 20), (0.5, 10), (0.01, 1), (2, 2), (2.0, 2), (20, 20)]
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


@pytest.mark.parametrize(("written", "reporters"), [("1", 20), ("1.0", 20), ("0.5", 10), ("3", 3), ("3.0", 3)])
def test_files_and_the_command_line_say_the_same(written, reporters, tmp_path, monkeypatch, capsys):
    (tmp_path / "e.toml").write_text(
        f'title = "t"\nrounds = 1\nparticipation = {written}\n[scenarios.digits-rotated]\n[algorithms.fedavg]\n'
    )
    (column,) = load(tmp_path / "e.toml").columns
    assert column.participation.reporters(20) == reporters
    asked = []

    def train(*arguments, participation, **options):
        asked.append(participation.reporters(20))
        raise ValueError("seen")

    monkeypatch.setattr("fedtailor.cli.commands.run.train", train)
    assert main(["run", "fedavg", "digits-rotated", "--participation", written]) == 2
    assert asked == [reporters] and "seen" in capsys.readouterr().err

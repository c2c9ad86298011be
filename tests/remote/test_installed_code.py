"""Methods of other packages: installed on every machine, and agreed to by a digest."""

import sys
from importlib.metadata import EntryPoint

import pytest

from fedtailor.protocol import Algorithm
from fedtailor.protocol.plain import from_plain, to_plain
from fedtailor.remote.job.job import read_job
from remote.jobs import JOB

THEIRS = """
from dataclasses import replace
from fedtailor.algorithms import FedAvg
from fedtailor.protocol import hyperparameters

@hyperparameters
class Theirs(FedAvg):
    about = replace(FedAvg.about, name="theirs")
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Reads a job whose method has some lines of its own."""
    (tmp_path / "theirs_outside.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)

    def entry_points(group, name=None):
        is_theirs = group == "fedtailor.algorithms" and name in (None, "theirs")
        value = "theirs_outside:Theirs"
        return [EntryPoint("theirs", value, group)] if is_theirs else []

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", entry_points)

    def read(lines="", method="theirs"):
        text = JOB.format(method=method, model="", rounds=2, rest="")
        use = f'use = "{method}"'
        path = tmp_path / "job.toml"
        path.write_text(text.replace(use, f"{use}\n{lines}"))
        return read_job(path)

    yield read
    Algorithm.registry.pop("theirs", None)
    sys.modules.pop("theirs_outside", None)


def test_a_job_says_which_code_it_needs_and_others_refuse_it(job, tmp_path):
    with pytest.raises(ValueError, match="theirs is code of the package") as caught:
        job()
    line = str(caught.value).partition("by ")[2].partition(" in [method]")[0]
    agreed = job(line)
    assert type(agreed.spec.algorithm).__name__ == "Theirs"

    # The method of another machine has one more line.
    (tmp_path / "theirs_outside.py").write_text(THEIRS + "# changed\n")
    with pytest.raises(ValueError, match="the job was made for another"):
        job(line)
    with pytest.raises(ValueError, match="the job was made for another"):
        job('code = "0"')


def test_no_machine_runs_a_file_that_a_job_names(job):
    with pytest.raises(ValueError, match="no machine runs a file that a job names"):
        job(method="theirs_outside.py:Theirs")


def test_methods_of_fedtailor_have_no_digest(job):
    with pytest.raises(ValueError, match="leave out code"):
        job('code = "0"', method="ditto")


def test_a_stored_method_of_an_installed_package_is_found(job):
    line = ""
    try:
        job()
    except ValueError as error:
        line = str(error).partition("by ")[2].partition(" in [method]")[0]
    method = job(line).spec.algorithm
    stored = to_plain(method)
    Algorithm.registry.pop("theirs")
    sys.modules.pop("theirs_outside")
    assert type(from_plain(Algorithm, stored)).__name__ == "Theirs"

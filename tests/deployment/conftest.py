"""One trained run on a table and one on arrays, opened by the tests of this folder
(which do not change them).
"""

import shutil

import pytest

import fedtailor as ft
from deployment_helpers import BLOBS, OPTIONS, blobs, write_table


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(the run, its directory): Ditto, which keeps states, with its table beside it."""
    folder = tmp_path_factory.mktemp("trained")
    table = ft.tables.from_table(write_table(folder / "table.csv"), seed=1, **OPTIONS)
    run = ft.run(
        ft.Ditto(sgd=ft.SGD(lr=0.5, epochs=2)),
        table,
        ft.models.logistic(),
        4,
        seed=3,
        keep_rows=True,
        metrics=("roc_auc",),
        directory=folder / "run",
    )
    return run, folder / "run"


@pytest.fixture
def moved(trained, tmp_path):
    """A copy of the run's directory and its table, to be changed."""
    shutil.copytree(trained[1].parent, tmp_path / "copy")
    return tmp_path / "copy" / "run"


@pytest.fixture(scope="session")
def of_arrays(tmp_path_factory):
    """(the run, its directory): a mixture for each client, from a scenario without a
    table.
    """
    folder = tmp_path_factory.mktemp("arrays")
    run = ft.run(
        ft.FedEM(sgd=ft.SGD(lr=0.1, epochs=1)),
        blobs(seed=2),
        BLOBS.model,
        1,
        directory=folder / "run",
        origin=BLOBS.origin(2),
    )
    return run, folder / "run"

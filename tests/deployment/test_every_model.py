"""Whatever trains can be opened: every registered model, every task, and models of the
user's own code are trained, saved, and opened and exported in a fresh process, to the bit.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.data.federation import from_arrays
from fedtailor.lab.experiments.option_text import architecture_of_text
from fedtailor.models import (
    builders,
    cross_entropy,
    squared_error,
    token_cross_entropy,
)
from fedtailor.models.tasks import registered_losses

MODELS = {
    "cnn": ("cnn", (12, 12, 1)),
    "cnn_5x5": ("cnn_5x5:hidden=4", (20, 20, 1)),
    "conv1d": ("conv1d:channels=4,size=3", (12, 3)),
    "density": ("density", (0,)),
    "gru": ("gru:hidden=4", (8, 3)),
    "lenet5": ("lenet5", (16, 16, 1)),
    "linear": ("linear", (5,)),
    "logistic": ("logistic", (5,)),
    "lstm": ("lstm:vocabulary=6,embedding=3,hidden=4", (7,)),
    "mlp": ("mlp:hidden=6", (5,)),
    "periodic_mlp": ("periodic_mlp:hidden=4,frequencies=2,width=3", (5,)),
    "resnet": ("resnet:depth=8", (8, 8, 3)),
    "tutorial_cnn": ("tutorial_cnn", (16, 16, 1)),
}
"""Every registered model with small settings, and a shape of its inputs."""

OWN_FILE = '''
import jax
import jax.numpy as jnp

from fedtailor.models import from_equinox, from_function, from_linen, from_torch


def tokens(width: int = 4):
    """One score of each of 6 symbols for each token."""

    def init(key):
        table = jax.random.normal(key, (6, width)) / 3
        return {"table": table, "out": jnp.ones((width, 6)) / 7}

    def apply(params, x):
        return params["table"][x] @ params["out"]

    return from_function(init, apply)


def equinox():
    import equinox as eqx

    return from_equinox(eqx.nn.MLP, 5, 3, width_size=4, depth=1)


def linen():
    from flax import linen

    return from_linen(linen.Dense(3))


def torch():
    from torch import nn, zeros

    return from_torch(
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        zeros(1, 5),
    )
'''

OPEN_FILE = """
import sys
from pathlib import Path

import numpy as np

import fedtailor as ft
from fedtailor.lab.experiments.option_text import given_model

for folder in map(Path, sys.argv[1:]):
    text = folder / "model.txt"
    model = given_model(text.read_text()) if text.exists() else None
    opened = ft.open(folder / "run", model=model)
    exported = ft.load_models(folder / "models", model)
    for name in opened.names:
        saved = np.load(folder / f"{name}.npz")
        for personal in (opened.personal(name), exported[name]):
            np.testing.assert_array_equal(personal.theta, saved["theta"])
            np.testing.assert_array_equal(personal.predict(saved["x"]), saved["y"])
"""


def data(shape, loss, rows=12):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, *shape)).astype(np.float32)
    if loss == token_cross_entropy or shape == (7,):
        x = rng.integers(0, 6, (rows, *shape)).astype(np.int32)
    y, classes = rng.integers(0, 3, rows), 3
    if loss == token_cross_entropy:
        y, classes = rng.integers(0, 6, (rows, *shape)), 6
    if loss == squared_error:
        y, classes = rng.normal(size=(rows, 2)).astype(np.float32), None
    names = np.repeat(["a", "b"], rows // 2)
    return from_arrays(x, y, names, classes=classes, loss=loss, test=0.4)


def trained(folder: Path, text: str, shape: tuple[int, ...], loss, own=False):
    """Trains a model for a step, and keeps what it predicts."""
    folder.mkdir()
    federation, model = data(shape, loss), architecture_of_text(text)
    if own:
        (folder / "model.txt").write_text(text)
    sgd = ft.SGD(lr=0.1, steps=1, batch_size=4)
    run = ft.run(
        ft.Local(sgd=sgd), federation, model, rounds=1, directory=folder / "run"
    )
    run.export(folder / "models")
    for name in federation.names:
        x, personal = federation.client(name).test.x, run.personal(name)
        y = personal.predict(x)
        np.savez(folder / f"{name}.npz", x=x, y=y, theta=personal.theta)
    return folder


def opened(script: Path, folders: list[Path]) -> None:
    script.write_text(OPEN_FILE)
    command = [sys.executable, script, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_no_model_and_no_task_is_left_out():
    # The last one needs a folder: tests/models/test_huggingface.py.
    assert {*MODELS, "from_huggingface"} == {*builders()}
    # Other tests register losses of their own.
    losses = [
        loss
        for loss in registered_losses().values()
        if loss.__module__.startswith("fedtailor.")
    ]
    assert {*losses} == {
        cross_entropy,
        squared_error,
        token_cross_entropy,
    }


@pytest.mark.nightly
def test_every_registered_model_is_opened(tmp_path):
    folders = []
    for name, (text, shape) in MODELS.items():
        folders.append(trained(tmp_path / name, text, shape, cross_entropy))
        if name in ("linear", "mlp", "lstm"):
            folder = tmp_path / f"{name} of numbers"
            folders.append(trained(folder, text, shape, squared_error))
    opened(tmp_path / "open_it.py", folders)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"),
    [("tokens:width=3", "jax"), ("equinox",) * 2, ("linen", "flax"), ("torch",) * 2],
)
def test_models_of_a_file_are_opened(tmp_path, name, package):
    pytest.importorskip(package, reason=f"{package} is not installed")
    # A process opens files of different names only.
    file = tmp_path / f"net_of_{package}.py"
    file.write_text(OWN_FILE)
    is_of_tokens = package == "jax"
    loss = token_cross_entropy if is_of_tokens else cross_entropy
    shape = (4,) if is_of_tokens else (5,)
    folder = trained(tmp_path / package, f"{file}:{name}", shape, loss, own=True)
    opened(tmp_path / "open_it.py", [folder])
    with pytest.raises(
        ValueError, match=r"only your code knows.*--model FILE\.py:NAME"
    ):
        ft.open(folder / "run").personal("a")

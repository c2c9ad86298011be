"""What is not a model, method or federation is said in one line, with what to do."""

import equinox as eqx
import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedtailor as ft
from fedtailor.aggregation.pipelines import Clip
from fedtailor.data.federation import from_arrays
from fedtailor.engine.training import EarlyStopping
from fedtailor.engine.training.binding import as_pipeline
from fedtailor.engine.training.callbacks import as_callbacks
from fedtailor.engine.training.metrics import Evaluation, Metrics
from fedtailor.models.metrics import find_metrics

linen = pytest.importorskip("flax.linen", reason="Flax is an extra")
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
DATA = from_arrays(X, np.arange(8) % 2, np.repeat(["a", "b"], 4))


class OfTorch:
    """Stands for a class that is defined below torch.nn, which tests need not
    install.
    """

    __module__ = "torch.nn.modules.linear"


class Own(OfTorch):
    """A user's own module."""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Own(), "a PyTorch module; wrap it with fedtailor.models.from_torch"),
        (
            eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)),
            "an Equinox module; give what makes it to fedtailor.models.from_e",
        ),
        (eqx.nn.MLP, "an Equinox module; give what makes it"),
        (linen.Dense(2), "a Flax module; wrap it with fedtailor.models.from_linen"),
        (
            LogisticRegression(),
            (
                "a scikit-learn estimator, which is not trained in rounds; take"
                " fedtailor.models.logi"
            ),
        ),
        (ft.models.mlp, r"a function; call it: fedtailor.models.mlp\(\)"),
        ("mlp", r"'mlp'; fedtailor.models makes models, such as mlp\(64\)"),
        (None, "None; fedtailor.models makes models"),
        (lambda x: x, "of the kind function; fedtailor.models makes models"),
    ],
)
def test_models_of_the_wrong_kind(model, said):
    with pytest.raises(ValueError, match=f"^the model is {said}"):
        ft.run(ft.FedAvg(), DATA, model, rounds=1)


def test_methods_and_federations_of_the_wrong_kind():
    with pytest.raises(
        ValueError,
        match=r"^the method is the class FedAvg; make one of it: FedAvg\(\)$",
    ):
        ft.run(ft.FedAvg, DATA, ft.models.logistic(), rounds=1)
    with pytest.raises(
        ValueError,
        match=r"^the method is 'fedavg'; give one such as fedtailor.FedAvg\(\)$",
    ):
        ft.run("fedavg", DATA, ft.models.logistic(), rounds=1)
    for data, named in (("own.csv", "'own.csv'"), (X, "of the kind ndarray")):
        with pytest.raises(
            ValueError,
            match=(
                f"^the federation is {named}; make one with"
                " fedtailor.data.federation.from_arr"
            ),
        ):
            ft.run(ft.FedAvg(), data, ft.models.logistic(), rounds=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"metrics": "acc"}, "there is no metric 'acc'"),
        ({"metrics": 3}, "the metric 3 is neither a name"),
        ({"uplink": "clip"}, r"uplink is 'clip'; give transforms .* uplink=\(Clip"),
        ({"downlink": ("cast",)}, r"downlink is \('cast',\); give transforms"),
        (
            {"callbacks": 3},
            "a callback is 3; it must be a fedtailor.engine.training.Callback",
        ),
        ({"progress": True}, "progress is True; give a function"),
        ({"directory": 5}, "directory is 5; it must be the path of a directory"),
        ({"resume": True}, "resume continues the run of a directory; name it"),
        ({"settings": None}, "settings is None; give fedtailor.Settings"),
        ({"participation": "all"}, "participation is 'all'; it must be a share"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments, said):
    with pytest.raises(ValueError, match=said):
        ft.run(ft.Local(), DATA, ft.models.logistic(), 1, **arguments)


def test_a_single_metric_transform_or_callback_needs_no_sequence():
    model = ft.models.logistic()
    clip, stop = Clip(1.0), EarlyStopping(5)
    assert as_pipeline(clip, "uplink") == (clip,) == as_pipeline([clip], "uplink")
    assert as_callbacks(stop, None) == (stop,) == as_callbacks([stop], None)
    (metric,) = find_metrics("roc_auc", model.bind((3,), 2))
    assert metric.name == "roc_auc"


def test_the_values_of_a_misspelt_metric_or_split_are_refused():
    metrics = Metrics([Evaluation(1, np.zeros(1, int), False, "test", "loss", X[0])])
    assert len(metrics.values("loss")) == 3
    assert len(metrics.values("roc_auc")) == 0  # exists, and was not measured
    with pytest.raises(ValueError, match="no metric in this run 'los'; did you mean"):
        metrics.values("los")
    assert len(metrics.values("loss", "val")) == 0  # exists, and was not measured
    with pytest.raises(ValueError, match="no split with measurements 'tets'; did you"):
        metrics.values("loss", "tets")
    with pytest.raises(ValueError, match="no split with measurements 'train'"):
        metrics.curve("loss", "train")

"""Boosted trees as vectors predict what the trees do."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models import linear
from fedtailor.models.boosted_trees import BoostedTrees
from fedtailor.models.tasks import default_loss
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingRows,
    BoostingSettings,
    as_vectors,
    boost,
)
from fedtailor.statistics.boosting.boost import sum_over
from fedtailor.statistics.boosting.network import _rounded_down


def rows(classes, seed=0, count=300):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    score = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    if classes is None:
        return x, score
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def trees(classes, count, seed=0):
    x, y = rows(classes, seed)
    settings = BoostingSettings(trees=count, least_rows=5, most_leaves=12)
    return boost(sum_over([BoostingRows(x, y, classes)]), 4, classes, settings)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_vectors_predict_what_the_trees_do(classes):
    models = [trees(classes, 9), trees(classes, 3, seed=1)]
    outputs = 1 if classes is None else classes
    like = linear().bind((4,), outputs, default_loss(classes))
    bound, vectors = as_vectors(models, like)
    assert bound.input_shape == (4,) and bound.outputs == outputs
    new, _ = rows(classes, seed=7, count=5000)
    # Inputs at the thresholds themselves, and just beside them.
    edges = np.concatenate(models[0].thresholds).astype(np.float32)[:900]
    near = np.concatenate([edges, np.nextafter(edges, np.float32(9))])
    inputs = np.concatenate([new, np.resize(near, (len(near), 4))])
    for model, vector in zip(models, vectors, strict=True):
        assert vector.shape == (bound.size,)
        found = np.asarray(
            bound.logits(jnp.asarray(vector), jnp.asarray(inputs)), np.float64
        )
        if classes is not None:
            found -= np.logaddexp.reduce(found, axis=1)[:, None]
        expected = model.outputs(inputs).reshape(found.shape)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def test_a_model_without_trees_is_its_constant():
    model = trees(2, 1)
    empty = BoostedModel(2, model.baseline, (), model.thresholds)
    like = linear().bind((4,), 2, default_loss(2))
    bound, (vector,) = as_vectors([empty], like)
    found = bound.logits(jnp.asarray(vector), jnp.asarray(rows(2)[0]))
    np.testing.assert_allclose(found[:, 1], np.full(300, model.baseline[0]), rtol=1e-6)
    np.testing.assert_array_equal(found[:, 0], np.zeros(300))


def test_rounding_down_keeps_every_comparison():
    rng = np.random.default_rng(0)
    low = rng.normal(size=1000).astype(np.float32)
    high = np.nextafter(low, np.float32(np.inf))
    middle = (low.astype(np.float64) + high) / 2
    limits = _rounded_down(middle)
    assert (low <= limits).all() and (high > limits).all()


def test_a_network_of_trees_takes_rows_of_numbers():
    with pytest.raises(ValueError, match="take rows of numbers"):
        BoostedTrees(2, 1, 3, 1).bind((4, 4), 1, default_loss(None))
    with pytest.raises(ValueError, match="3 outputs"):
        BoostedTrees(2, 1, 3, 1).bind((4,), 3, default_loss(3))


def test_trees_that_lead_in_circles_are_refused():
    """A file of somebody else's could hold such; writing them to ONNX did not end."""
    onnx_trees = pytest.importorskip("fedtailor.deployment.onnx_trees")
    with pytest.raises(ValueError, match="are not 4 questions deep"):
        BoostedTrees(2, 1, 3, 4)
    tree = {
        "input": np.array([0.0, -1.0, -1.0]),
        "threshold": np.zeros(3),
        "left": np.array([1.0, 0.0, 0.0]),
        "right": np.array([2.0, 0.0, 0.0]),
        "value": np.zeros(3),
    }
    columns = {name: [] for name in onnx_trees._COLUMNS}
    onnx_trees._add_tree(columns, tree, 0, 0)
    assert columns["nodes_nodeids"] == [0, 1, 2]
    for wrong in (0.0, 1.0, 3.0, -1.0, np.nan):
        tree["right"][0] = wrong
        with pytest.raises(ValueError, match="two ways lead to a node"):
            onnx_trees._add_tree(columns, tree, 0, 0)

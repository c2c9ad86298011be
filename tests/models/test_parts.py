"""Parts of a model: what they hold, that they come apart and together exactly,
features, and refusals.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from fedtailor import models

KEY = jax.random.key(0)


class Scrambled(eqx.Module):
    """An Equinox module whose layers are not called in the order in which they are
    declared.
    """

    last: eqx.nn.Linear
    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        self.last, self.first = (
            eqx.nn.Linear(6, 3, key=key),
            eqx.nn.Linear(4, 6, key=key),
        )
        self.norm = eqx.nn.LayerNorm(6)

    def __call__(self, x):
        return jax.nn.log_softmax(self.last(jax.nn.relu(self.norm(self.first(x)))))


class Deep(linen.Module):
    """More than ten layers, so that their names do not sort in the order of
    computation.
    """

    @linen.compact
    def __call__(self, x, train: bool):
        for _ in range(10):
            x = jnp.tanh(linen.Dense(5)(x))
        x = linen.Dropout(0.5, deterministic=not train)(linen.GroupNorm(1)(x))
        return linen.Dense(3)(x)


NETWORKS = {
    "mlp": (models.mlp((8, 7)), (4,), "layers.5"),
    "lenet5": (models.lenet5(), (16, 16), "layers.8"),
    "cnn": (models.cnn(dropout=True), (8, 8), "layers.9"),
    "lstm": (models.lstm(10, embedding=3, hidden=4, layers=2), (5,), "classifier"),
    "equinox": (models.from_equinox(Scrambled), (4,), "last"),
    "flax": (models.from_linen(Deep()), (4,), "Dense_10"),
}


def bound(name, dtype="float32"):
    architecture, shape, _ = NETWORKS[name]
    return architecture.bind(shape, 3, dtype=dtype)


def inputs(model, name):
    shape = (4, *model.input_shape)
    return (
        jax.random.randint(KEY, shape, 1, 10)
        if name == "lstm"
        else jax.random.normal(KEY, shape)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_head_and_body_are_everything_and_come_apart_and_together_to_the_bit(name):
    model = bound(name)
    theta, head, body = model.init(KEY), model.part("head"), model.part("body")
    assert (
        sorted([*head.indices, *body.indices]) == list(range(model.size))
        and head.size == len(head.indices) > 0
    )
    owned = [path for path in model.paths if path.startswith(NETWORKS[name][2] + ".")]
    assert (
        head == model.part(",".join(owned))
        or head.slices == model.part(",".join(owned)).slices
    )
    assert head.complement.slices == body.slices and head.complement.complement == head
    for part in (head, body, model.part("bias"), model.part("last1")):
        np.testing.assert_array_equal(part.take(theta), np.asarray(theta)[part.indices])
        assert (
            part.put(jnp.zeros_like(theta), part.take(theta)).tobytes()
            == np.where(part.mask, theta, 0).tobytes()
        )
        other = part.put(theta, part.take(-theta))
        assert (
            part.complement.take(other).tobytes()
            == part.complement.take(theta).tobytes()
        )
        assert part.put(other, part.take(theta)).tobytes() == theta.tobytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_head_on_features_is_the_model(name):
    with jax.enable_x64(True):
        model = bound(name, "float64")
        theta, x = model.init(KEY), inputs(bound(name), name)
        x = x if name == "lstm" else x.astype("float64")
        features = jax.jit(model.features)(theta, x)
        assert features.shape == (4, *model.feature_shape)
        head_outputs = jax.jit(model.head_outputs)
        outputs = jax.jit(model.logits)(model.params(theta), x)
        np.testing.assert_allclose(head_outputs(theta, features), outputs, atol=1e-10)
        # the body moves features only, the head outputs only
        moved = model.part("head").put(theta, 2 * model.part("head").take(theta))
        np.testing.assert_array_equal(jax.jit(model.features)(moved, x), features)
        assert not np.allclose(head_outputs(moved, features), outputs)
        slopes = jax.jit(jax.grad(lambda theta: model.features(theta, x).sum()))(theta)
        assert (
            not model.part("head").take(slopes).any()
            and model.part("body").take(slopes).any()
        )
        slopes = jax.jit(
            jax.grad(lambda theta: model.head_outputs(theta, features)[:, 0].sum())
        )(theta)
        assert (
            not model.part("body").take(slopes).any()
            and model.part("head").take(slopes).any()
        )


@pytest.mark.parametrize("name", ["cnn", "flax"])
def test_features_of_a_training_step_drop_out(name):
    model = bound(name)
    theta, x = model.init(KEY), inputs(model, name)
    trained, key = model.features(theta, x, KEY), jax.random.key(1)
    assert not np.allclose(trained, model.features(theta, x))
    np.testing.assert_array_equal(trained, model.features(theta, x, KEY))
    assert not np.allclose(trained, model.features(theta, x, key))


def test_numpy_stacks_and_leading_axes():
    model = bound("mlp")
    head = model.part("head")
    stacked = np.arange(2.0 * model.size).reshape(2, model.size)
    taken = head.take(stacked)
    assert isinstance(taken, np.ndarray) and taken.shape == (2, head.size)
    both = head.put(stacked[0], taken)
    assert isinstance(both, np.ndarray) and both.shape == (2, model.size)
    np.testing.assert_array_equal(both[1], np.where(head.mask, stacked[1], stacked[0]))
    np.testing.assert_array_equal(
        jax.vmap(head.put)(jnp.asarray(stacked), jnp.asarray(taken)), stacked
    )


def test_masks_freeze_a_part():
    model = bound("lenet5")
    params = model.params(model.init(KEY))
    mask = model.part("head").tree_mask(params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    trained = model.vector(
        jax.tree.map(lambda w, inside: w + 1.0 * inside, params, mask)
    )
    np.testing.assert_array_equal(
        trained != model.vector(params), model.part("head").mask
    )
    assert jax.tree.leaves(model.part("head").tree_mask(params)) == jax.tree.leaves(
        mask
    )


def test_parts_are_static_in_programs():
    model, traces = bound("mlp"), []

    @jax.jit(static_argnums=0)
    def take(part, theta):
        traces.append(part)
        return part.take(theta)

    for _ in range(2):
        take(models.mlp((8, 7)).bind((4,), 3).part("head"), model.init(KEY))
    assert len(traces) == 1


def test_what_names_and_patterns_mean():
    model = bound("lenet5")
    sizes = {name: model.part(name).size for name in ("head", "last1", "last2", "bias")}
    assert sizes == {
        "head": 84 * 3 + 3,
        "last1": 255,
        "last2": 255 + 120 * 84 + 84,
        "bias": 6 + 16 + 120 + 84 + 3,
    }
    assert model.part("layers.1").size == 25 * 6 + 6
    assert model.part("layers.1.weight").slices == ((0, 150),)
    assert (
        model.part("*.bias").slices
        == model.part("bias").slices
        == model.part("re:bias$").slices
    )
    assert model.part("layers.1,head").size == 156 + 255
    assert (
        model.part("not head").slices
        == model.part("body").slices
        == model.part("head").complement.slices
    )
    assert model.part("not layers.1,head").size == model.size - 156 - 255
    assert (model.part("everything").size, model.part("nothing").size) == (
        model.size,
        0,
    )
    assert model.part("nothing").complement.slices == model.part("everything").slices
    assert model.part(model.part("head")) == model.part("head")
    theta = model.init(KEY)
    assert model.part("nothing").put(theta, jnp.zeros(0)).tobytes() == theta.tobytes()


def test_normalisation_counts_with_the_layer_before_it():
    model = bound("equinox")
    assert model.parts == ("head", "body", "norm", "bias", "last1")
    assert model.part("norm").size == 12
    deep = bound("flax")
    assert deep.part("norm").size == 10
    assert deep.part("last1").size == 18 and deep.part("last2").size == 18 + 10 + 30


def test_models_without_a_head():
    plain = models.from_function(
        lambda key: {"w": jnp.zeros((4, 3)), "b": jnp.zeros(3)}, lambda p, x: x @ p["w"]
    )
    model = plain.bind((4,), 3)
    assert model.part("w").size == 12 and model.parts == ()
    for call in (
        lambda: model.part("head"),
        lambda: model.features(model.init(KEY), jnp.zeros((1, 4))),
    ):
        with pytest.raises(
            ValueError, match=r"part 'head' is nothing of this model.*none; .*: b, w$"
        ):
            call()
    logistic = models.logistic().bind((4,), 3)
    with pytest.raises(
        ValueError,
        match=r"part 'head' is all of this model; the parts it has are: bias;",
    ):
        logistic.part("head")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "norm",
            (
                r"'norm' is nothing of this model; the parts it has are: head, body,"
                r" bias, last1 to last4; or .*"
            ),
        ),
        ("layers.*", "is all of this model"),
        ("layers.99", "is nothing"),
        ("last9", "is nothing"),
        ("", "is nothing"),
        ("head,body", "is all"),
        ("re:(", "not a regular expression"),
        # Searches of these can take a time that doubles with each character.
        ("re:(((.+)+)+)+!", "asks for too much"),
        ("re:(?x)((.+) +) +!", "asks for too much"),
        ("re:.*.*.*.*.*!", "asks for too much"),
        ("re:" + 20 * "(|)" + "!", "asks for too much"),
        ("re:a{99999999999}", "not a regular expression"),
        ("re:[a\\][](.*)*(.*)*]", "asks for too much"),
        ("not " * 4000 + "head", "16,004 characters long"),
        (2, "part is 2; it must be a name or a pattern, such as 'head', 'last2'"),
    ],
)
def test_refusals(name, message):
    with pytest.raises(ValueError, match=message) as refused:
        bound("lenet5").part(name)
    assert "\n" not in str(refused.value)


def test_many_negations_are_none():
    model = bound("lenet5")
    assert model.part("not " * 2000 + "head").slices == model.part("head").slices


def test_parts_of_another_model_are_refused():
    model = bound("mlp")
    with pytest.raises(ValueError, match="of a model of"):
        bound("lenet5").part(model.part("head"))
    with pytest.raises(ValueError, match="theta has shape"):
        model.part("head").take(jnp.zeros(3))
    with pytest.raises(ValueError, match="values has shape"):
        model.part("head").put(model.init(KEY), jnp.zeros(3))

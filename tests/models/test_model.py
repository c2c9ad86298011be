"""`Model`: the map between vectors and trees, equality, precision and refusals."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor import models
from fedtailor.models import Architecture, Model


@dataclass(frozen=True)
class Affine(Architecture):
    """A user's architecture, with parameters of several shapes and something that is no
    parameter.
    """

    scale: float = 1.0
    notes: list[int] = field(default_factory=list, compare=False)

    def build(self, input_shape, outputs, key):
        self.notes.append(1)
        return {
            "weight": jax.random.normal(key, (*input_shape, outputs)),
            "bias": jnp.zeros(outputs),
            "gain": jnp.ones(()),
            "activation": jnp.tanh,
        }

    def apply(self, network, x, key):
        return (
            self.scale
            * network["gain"]
            * network["activation"](x @ network["weight"] + network["bias"])
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vector_and_tree_are_exact_inverses(dtype):
    with jax.enable_x64(dtype == "float64"):
        model = Affine().bind((4,), 3, dtype=dtype)
        theta = model.init(jax.random.key(0))
        params = model.params(theta)
        assert theta.shape == (model.size,) == (16,) and theta.dtype == dtype
        assert params["weight"].shape == (4, 3) and params["gain"].shape == ()
        assert model.vector(params).tobytes() == theta.tobytes()
        assert model.logits(params, jnp.ones((5, 4), dtype)).shape == (5, 3)


def test_both_precisions_start_from_the_same_model():
    key = jax.random.key(3)
    single = np.asarray(models.lenet5().bind((16, 16), 10).init(key))
    with jax.enable_x64(True):
        double = np.asarray(
            models.lenet5().bind((16, 16), 10, dtype="float64").init(key)
        )
    assert double.dtype == np.float64
    np.testing.assert_array_equal(single, double.astype(np.float32))


def test_initial_models_depend_on_the_key_and_on_nothing_else():
    model = models.mlp(8).bind((4,), 3)
    first, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_equal_models_share_one_compiled_program():
    traces = []

    @jax.jit(static_argnums=0)
    def predict(model: Model, theta, x):
        traces.append(model)
        return model.logits(model.params(theta), x)

    x = jnp.ones((2, 4))
    for _ in range(2):
        model = models.mlp((8, 8)).bind((4,), 3)  # built anew
        predict(model, model.init(jax.random.key(0)), x)
    assert len(traces) == 1
    assert models.mlp(8).bind((4,), 3) == models.mlp((8,)).bind([4], 3)
    assert (
        len(
            {
                models.mlp(8).bind((4,), 3),
                models.mlp(8).bind((4,), 3),
                models.mlp(9).bind((4,), 3),
            }
        )
        == 2
    )


def test_the_layout_is_found_without_running_the_network_and_once():
    architecture = Affine(scale=0.25)
    model = architecture.bind((4,), 3)
    for _ in range(3):
        assert model.size == 16 and Affine(scale=0.25).bind((4,), 3) == model
    assert len(architecture.notes) == 1


def test_gradients_are_taken_in_loops_in_maps():
    """The shape of the engine's local loop: lax.map over clients, fori_loop over steps,
    gradients of the tree.
    """
    model = models.lenet5().bind((16, 16), 3)
    thetas = jnp.stack([model.init(jax.random.key(seed)) for seed in range(2)])
    x, y = (
        jnp.sin(jnp.arange(2 * 4 * 256.0)).reshape(2, 4, 16, 16),
        jnp.arange(8).reshape(2, 4) % 3,
    )

    def loss(params, x, y):
        return model.losses(model.logits(params, x), y).mean()

    def client(inputs):
        theta, x, y = inputs

        def step(_, params):
            return jax.tree.map(
                lambda w, g: w - 0.05 * g, params, jax.grad(loss)(params, x, y)
            )

        return model.vector(jax.lax.fori_loop(0, 3, step, model.params(theta)))

    trained = jax.jit(lambda *clients: jax.lax.map(client, clients))(thetas, x, y)
    for before, after, x_, y_ in zip(thetas, trained, x, y, strict=True):
        assert loss(model.params(after), x_, y_) < loss(model.params(before), x_, y_)


def test_regression_and_users_losses():
    model = models.logistic().bind((4,), 2, loss=models.squared_error)
    assert not model.classification
    outputs, y = (
        jnp.asarray([[1.0, 2.0], [0.0, 0.0]]),
        jnp.asarray([[0.0, 0.0], [3.0, 4.0]]),
    )
    assert model.losses(outputs, y).tolist() == [5, 25]
    assert models.squared_error(jnp.ones((3, 1)), jnp.zeros(3)).tolist() == [1, 1, 1]

    def hinge(outputs, y):
        return jnp.maximum(0, 1 - outputs[:, 0] * y)

    assert models.logistic().bind((4,), 1, loss=hinge).losses(
        jnp.asarray([[0.5]]), jnp.asarray([1])
    ).tolist() == [0.5]
    assert (
        models.logistic()
        .bind((4,), 1, loss=models.Classification(hinge))
        .classification
    )


def test_classification():
    model = models.logistic().bind((4,), 3)
    outputs, y = jnp.asarray([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0]]), jnp.asarray([1, 2])
    assert model.classification and model.correct(outputs, y).tolist() == [True, False]
    np.testing.assert_allclose(
        model.log_probabilities(outputs), jax.nn.log_softmax(outputs), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.losses(outputs, y),
        -jax.nn.log_softmax(outputs)[jnp.arange(2), y],
        rtol=1e-6,
    )
    certain = jnp.asarray([[0.0, -jnp.inf, -jnp.inf]])  # a mixture's log-probabilities
    assert model.losses(certain, jnp.asarray([0])).tolist() == [0]
    assert model.losses(certain, jnp.asarray([1])).tolist() == [jnp.inf]


@dataclass(frozen=True)
class Counting(Architecture):
    def build(self, input_shape, outputs, key):
        return {"weight": jnp.zeros(3), "calls": jnp.zeros((), jnp.int32)}

    def apply(self, network, x, key):
        return x


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mlp().bind((4,), 0), "needs one output"),
        (
            lambda: models.mlp().bind((4,), 2, dtype="float16"),
            "choose 'float32', 'float64' or 'bfloat16'",
        ),
        (
            lambda: models.mlp().bind((4,), 2, dtype="float64").init(jax.random.key(0)),
            "jax.enable_x64",
        ),
        (lambda: models.mlp().bind((4,), 2).params(jnp.zeros(5)), "theta has shape"),
        (lambda: Counting().bind((4,), 2), "calls.*int32; only floating-point"),
        (lambda: models.squared_error(jnp.zeros((3, 2)), jnp.zeros(3)), "do not match"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_inputs_and_too_few_classes_are_refused():
    model = models.mlp().bind((4,), 2)
    with pytest.raises(ValueError, match="bound to"):
        model.logits(model.params(model.init(jax.random.key(0))), jnp.zeros((3, 5)))
    narrow = models.from_function(
        lambda key: jnp.zeros((4, 3)), lambda weight, x: x @ weight
    ).bind((4,), 10)
    with pytest.raises(ValueError, match=r"gives \(3,\) outputs.*10 classes"):
        narrow.logits(narrow.params(jnp.zeros(12)), jnp.zeros((2, 4)))


def test_what_clients_are_compared_by():
    assert models.logistic().bind((4,), 3).metric == "accuracy"
    assert models.logistic().bind((4,), 3, loss=models.squared_error).metric == "loss"
    assert (
        models.density().bind((0,), 3).metric == "loss"
    )  # no inputs: every example gets the same class

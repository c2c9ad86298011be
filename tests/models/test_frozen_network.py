"""Networks of which a part is frozen: what theta holds, and what stays as it is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedtailor._base.tensors import TensorFile
from fedtailor.models import (
    from_equinox,
    frozen,
    lora,
    merged,
    mlp,
    resnet,
    save_start,
    start_file,
)
from fedtailor.models.frozen_arrays import FrozenArrays, placed
from fedtailor.models.frozen_network import Frozen
from fedtailor.models.plain import model_from_plain, plain_model
from fedtailor.protocol.plain import to_plain

SHAPE, CLASSES = (6,), 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, *SHAPE)), jnp.float32)


def whole():
    return mlp(4).bind(SHAPE, CLASSES)


def theta(seed=3):
    return whole().init(jax.random.key(seed))


def arrays_of(model, theta):
    """Its arrays by path."""
    from fedtailor.models.parameter_layout import layout_of

    layout = layout_of(model)
    starts = (0, *layout.ends)
    return {
        path: np.asarray(theta[begin:end]).reshape(shape)
        for path, begin, end, shape in zip(
            layout.paths, starts, layout.ends, layout.shapes, strict=False
        )
    }


def test_theta_holds_what_is_not_frozen_and_outputs_are_the_whole_networks():
    values = arrays_of(whole(), theta())
    model = frozen(mlp(4), "not head", start=values).bind(SHAPE, CLASSES)
    assert model.paths == ("layers.3.weight", "layers.3.bias")
    assert model.size == 4 * 3 + 3
    assert set(model.frozen) == {"layers.1.weight", "layers.1.bias"}
    # All of theta starts with what was given.
    start = model.init(jax.random.key(0))
    np.testing.assert_array_equal(start, theta()[-model.size :])
    np.testing.assert_array_equal(
        model.logits(start, X), whole().logits(theta(), X), strict=True
    )
    same, vector = merged(model, start)
    assert same == whole()
    np.testing.assert_array_equal(vector, theta())
    assert merged(whole(), theta())[0] == whole()


def test_gradients_are_those_of_the_whole_network():
    values = arrays_of(whole(), theta())
    model = frozen(mlp(4), "layers.1", start=values).bind(SHAPE, CLASSES)
    head = whole().part("layers.3")

    def loss(model):
        return lambda theta: model.losses(
            model.logits(theta, X), jnp.zeros(5, int)
        ).sum()

    ours = jax.grad(loss(model))(model.init(jax.random.key(0)))
    np.testing.assert_allclose(
        ours, head.take(jax.grad(loss(whole()))(theta())), rtol=0, atol=1e-6
    )


def test_random_frozen_arrays_do_not_depend_on_the_runs_seed():
    model = frozen(mlp(4), "layers.1", seed=5).bind(SHAPE, CLASSES)
    again = frozen(mlp(4), "layers.1", seed=5).bind(SHAPE, CLASSES)
    assert model == again and hash(model) == hash(again)
    assert model != frozen(mlp(4), "layers.1", seed=6).bind(SHAPE, CLASSES)
    expected = arrays_of(whole(), whole().init(jax.random.key(5)))
    for path, array in model.frozen.items():
        np.testing.assert_array_equal(array, expected[path])
    assert (model.init(jax.random.key(0)) != model.init(jax.random.key(1))).any()


def test_frozen_arrays_cannot_be_written_and_have_a_digest():
    arrays = FrozenArrays({"b": np.ones(2), "a": np.zeros((1, 3), np.float32)})
    assert arrays == FrozenArrays({"a": np.zeros((1, 3)), "b": np.ones(2, np.float32)})
    assert arrays != FrozenArrays({"a": np.zeros((3, 1)), "b": np.ones(2)})
    assert arrays.size == 5 and arrays.nbytes == 20
    with pytest.raises(ValueError, match="read-only"):
        arrays["a"][0] = 1


def test_devices_share_the_memory_of_the_host():
    arrays = FrozenArrays({"a": np.ones((3, 5)), "b": np.ones(7, np.float32)[1:]})
    first, second = jax.devices("cpu")[:2]
    mesh = jax.sharding.Mesh(np.array([first, second]), ("clients",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    on_one = arrays.on(jax.sharding.SingleDeviceSharding(first))
    on_both = arrays.on(everywhere)
    for index, array in enumerate(arrays.values()):
        copies = [
            on_one[index],
            *(each.data for each in on_both[index].addressable_shards),
        ]
        pointers = {copy.unsafe_buffer_pointer() for copy in copies}
        assert pointers == {array.ctypes.data} and on_both[index].sharding == everywhere
    # Whatever is computed with them on both devices moves them there.
    assert (arrays.on_device[0] + on_both[0]).sharding == everywhere


def test_they_are_asked_for_one_after_the_other(tmp_path):
    """A file is never in memory as a whole beside its arrays."""
    save_file({"a": np.ones((2, 3)), "b": np.ones(4, np.float32)}, tmp_path / "x")
    file = TensorFile(tmp_path / "x")
    assert list(file) == ["a", "b"] and len(file) == 2
    assert FrozenArrays(file) == FrozenArrays({"a": np.ones((2, 3)), "b": np.ones(4)})
    assert list(TensorFile(tmp_path / "x", "b")) == [""]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        TensorFile(tmp_path / "x")


def test_a_program_takes_them_as_inputs_and_holds_no_constant():
    model = frozen(mlp(64), "layers.1").bind(SHAPE, CLASSES)

    def run(theta, frozen):
        with placed(model.frozen, frozen):
            return model.logits(theta, X)

    start = model.init(jax.random.key(0))
    inputs = model.frozen.on_device
    jaxpr = jax.make_jaxpr(run)(start, inputs)
    sizes = [np.size(constant) for constant in jaxpr.consts]
    assert max(sizes, default=0) <= X.size
    np.testing.assert_array_equal(run(start, inputs), model.logits(start, X))
    doubled = [2 * array for array in inputs]
    assert np.abs(run(start, doubled) - run(start, inputs)).max() > 1e-3


def test_equinox_modules_start_from_a_module(tmp_path):
    trained = eqx.nn.MLP(6, 3, 8, 2, key=jax.random.key(7))
    make = from_equinox(eqx.nn.MLP, in_size=6, out_size=3, width_size=8, depth=2)
    model = frozen(make, "layers.0,layers.1", start=trained).bind(SHAPE, CLASSES)
    assert model.size == 8 * 3 + 3
    start = model.init(jax.random.key(0))
    np.testing.assert_allclose(
        model.logits(start, X), jax.vmap(trained)(X), rtol=0, atol=1e-6
    )
    # The same from a file
    arrays = {
        f"layers.{i}.{name}": np.asarray(getattr(layer, name))
        for i, layer in enumerate(trained.layers)
        for name in ("weight", "bias")
    }
    save_file(arrays, tmp_path / "base.safetensors")
    file = tmp_path / "base.safetensors"
    assert frozen(make, "layers.0,layers.1", start=file).bind(SHAPE, CLASSES) == model
    digest = start_file(file, None).digest
    assert start_file(file, digest).digest == digest
    with pytest.raises(ValueError, match="holds other arrays than asked for"):
        start_file(file, "0" * 32)


def test_a_trained_network_becomes_the_start_of_others(tmp_path):
    """With its adapters, or a part of it; the outputs are those of the trained one."""
    file = tmp_path / "base.safetensors"
    adapted = lora(mlp(5), rank=2).bind(SHAPE, CLASSES)
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.normal(size=adapted.size), jnp.float32)
    assert save_start(adapted, theta, file) == file
    again = lora(mlp(5), rank=3, start=file).bind(SHAPE, CLASSES)
    begun = again.init(jax.random.key(1))
    np.testing.assert_allclose(
        again.logits(begun, X), adapted.logits(theta, X), rtol=0, atol=1e-5
    )
    save_start(adapted, theta, file, "not head")
    lora(mlp(5), rank=3, start=file).bind(SHAPE, CLASSES + 2)
    with pytest.raises(ValueError, match="part 'tail' is nothing of this model"):
        save_start(adapted, theta, file, "tail")
    with pytest.raises(ValueError, match=r"cannot write .* directory"):
        save_start(adapted, theta, tmp_path)


def test_flax_modules_too():
    linen = pytest.importorskip("flax.linen")

    from fedtailor.models import from_linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(linen.relu(linen.Dense(4)(x)))

    make = from_linen(Net())
    params = Net().init(jax.random.key(1), X)["params"]
    model = frozen(make, "not head", start=params).bind(SHAPE, CLASSES)
    # Flax numbers layers in the order in which they are made.
    assert model.paths == ("Dense_0.bias", "Dense_0.kernel")
    start = model.init(jax.random.key(0))
    np.testing.assert_allclose(
        model.logits(start, X), Net().apply({"params": params}, X), rtol=0, atol=1e-6
    )


def test_running_statistics_are_never_frozen():
    model = frozen(resnet(8, norm="batch"), "not head").bind((8, 8, 3), CLASSES)
    assert model.has_statistics
    assert not any("running" in path for path in model.frozen)
    images = jnp.asarray(
        np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32
    )
    params = model.params(model.init(jax.random.key(0)))
    _, new = model.train_outputs(params, images, jnp.ones(4), None)
    changed = [
        path
        for path, old, now in zip(
            model.paths, jax.tree.leaves(params), jax.tree.leaves(new), strict=True
        )
        if (old != now).any()
    ]
    assert changed and all("running" in path for path in changed)


def test_other_precisions_compute_in_their_own():
    with jax.enable_x64(True):
        double = frozen(mlp(4), "layers.1").bind(SHAPE, CLASSES, dtype="float64")
        start = double.init(jax.random.key(0))
        assert double.logits(start, X.astype(jnp.float64)).dtype == np.float64
    half = frozen(mlp(4), "layers.1").bind(SHAPE, CLASSES, dtype="bfloat16")
    start = half.init(jax.random.key(0))
    assert np.isfinite(half.logits(start, X)).all()


def test_a_description_and_its_arrays_make_the_model_again():
    model = frozen(mlp(4), "layers.1", start=arrays_of(whole(), theta())).bind(
        SHAPE, CLASSES
    )
    held = model.architecture.held
    assert len(held) == 2
    for plain in (plain_model(model), to_plain(model)):
        assert model_from_plain(plain, held=held) == model
        with pytest.raises(ValueError, match="one that only your code knows"):
            model_from_plain(plain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: frozen(mlp(4).bind(SHAPE, CLASSES), "head"), "leave out bind"),
        (lambda: frozen("mlp", "head"), "takes a model of fedtailor.models"),
        (lambda: frozen(frozen(mlp(4), "head"), "body"), "has frozen arrays already"),
        (lambda: frozen(mlp(4), "layers.7").bind(SHAPE, CLASSES), "is nothing of this"),
        (lambda: frozen(mlp(4), "layers.*").bind(SHAPE, CLASSES), "is all of this"),
        (
            lambda: frozen(mlp(4), "head", start={"w": np.ones(2)}).bind(
                SHAPE, CLASSES
            ),
            "the network has no array 'w'",
        ),
        (
            lambda: frozen(mlp(4), "head", start={"layers.1.bias": np.ones(2)}).bind(
                SHAPE, CLASSES
            ),
            r"'layers.1.bias' has the shape \(2,\), and the network's is \(4,\)",
        ),
        (lambda: frozen(mlp(4), "head", start="nowhere.safetensors"), "cannot read"),
        (lambda: frozen(mlp(4), "head", start={}), "there are no arrays"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_it_is_bound_to_other_inputs_only_if_its_arrays_fit():
    model = frozen(mlp(4), "layers.1").bind(SHAPE, CLASSES)
    assert isinstance(model.architecture, Frozen)
    assert model.architecture.bind(SHAPE, 7).outputs == 7
    with pytest.raises(ValueError, match="has the shape"):
        model.architecture.bind((9,), CLASSES)

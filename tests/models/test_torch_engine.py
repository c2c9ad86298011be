"""PyTorch modules that PyTorch itself trains: the same batches, steps and models as by
this library's own engine.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.examples import OWN_STEPS, SECOND_ORDER, example
from fedtailor import algorithms as ft
from fedtailor import models, run
from fedtailor.client.losses import training_loss
from fedtailor.executors import LockstepGroup, Settings, TorchExecutor
from fedtailor.executors.pytorch import TorchTrainer
from fedtailor.experiments.scenarios import digits_rotated
from fedtailor.federation import Federation, Ragged
from fedtailor.protocol import SGD, Algorithm, Batch, Diverged, hyperparameters
from fedtailor.runs.run import simulate
from fedtailor.testing import predictors, train
from fedtailor.testing.problems import classification

torch = pytest.importorskip(
    "torch", reason="PyTorch (the extra `torch`) is not installed"
)
safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.extra
nn = torch.nn
KEY = jax.random.key(0)
TRAINED = SGD(
    lr=0.02, momentum=0.9, weight_decay=0.01, lr_decay=0.1, epochs=2, batch_size=8
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Several threads of PyTorch's wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Images, batch normalisation, dropout behind it, and a head."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 3, 2, bias=False), nn.BatchNorm2d(3)
        self.dropout, self.head = nn.Dropout(rate), nn.Linear(3, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x))).flatten(1)
        return self.head(self.dropout(x))


class Halting(nn.Module):
    """Reads an image row by row until it has seen enough: no tracer follows that."""

    def __init__(self):
        super().__init__()
        self.cell, self.norm, self.dropout = (
            nn.LSTMCell(8, 24),
            nn.BatchNorm1d(24),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = x.reshape(len(x), 8, 8)
        state = None
        for row in range(8):
            state = self.cell(x[:, row], state)
            if float(state[0].abs().min()) > 1:
                break
        return self.head(self.dropout(self.norm(state[0])))


def both(make, shape=(1, 2, 2), bound=(2, 2, 1)):
    """The module converted, and left to PyTorch."""
    example_input = torch.zeros(1, *shape)
    return [
        models.from_torch(make, example_input, engine=engine).bind(bound, 3)
        for engine in ("jax", "torch")
    ]


@pytest.fixture(scope="module")
def pair():
    return both(Net)


@pytest.fixture(scope="module")
def clients():
    """Three of them, ragged, with validation data; no batch of eight leaves a rest of
    one.
    """
    plain = classification(clients=3, sizes=[11, 18, 23], unseen=[False, False, True])
    return replace(plain, x=plain.x.reshape(-1, 2, 2, 1))


@pytest.mark.parametrize(
    "algorithm",
    [
        ft.FedAvg(sgd=TRAINED),
        ft.Ditto(sgd=TRAINED, lam=0.5),
        ft.Local(sgd=replace(TRAINED, epochs=1, drop_last=True)),
        ft.UCFL(sgd=TRAINED, streams=2, warm=0),
        ft.SCAFFOLD(sgd=SGD(lr=0.1, steps=5, batch_size=8)),
        ft.FedRep(sgd=TRAINED, head=SGD(lr=0.1, batch_size=8)),
        ft.FedAvg(sgd=SGD(optimizer=optax.adam(0.01), batch_size=8)),
    ],
    ids=["fedavg", "ditto", "local", "ucfl", "scaffold", "fedrep", "fedavg-adam"],
)
def test_both_engines_train_the_same_models(pair, clients, algorithm):
    """The same batches, terms of a step, frozen parts and running statistics; the same
    work and traffic.
    """
    ours, theirs = (train(algorithm, clients, model, 2) for model in pair)
    for one, other in zip(predictors(ours), predictors(theirs), strict=True):
        assert float(np.abs(one).max()) > 0
        np.testing.assert_allclose(
            other, one, rtol=0, atol=1e-5 * float(np.abs(one).max())
        )
    assert ours.ledger.frame().equals(theirs.ledger.frame())


def test_jax_sees_pytorch_s_outputs_and_gradients(pair):
    """What methods of their own steps use: losses, statistics, features, the head,
    several models at once.
    """
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 2, 2, 1)), jnp.float32)
    batch = Batch(x, jnp.asarray([0, 1, 2, 0, 1]), jnp.asarray([1.0, 1, 1, 1, 0]))
    found = []
    for model in pair:
        theta = model.init(KEY)
        with jax.disable_jit(model.in_python):
            loss = lambda params, model=model: training_loss(model, params, batch)  # noqa: E731
            (value, renewed), gradient = jax.value_and_grad(loss, has_aux=True)(
                model.params(theta)
            )
            features = model.features(theta, x)
            by_features = jax.grad(
                lambda z, m=model, t=theta: m.head_outputs(t, z).sum()
            )(features)
            several = jax.vmap(lambda one, m=model: m.logits(m.params(one), x))(
                jnp.stack([theta, 2 * theta])
            )
            found.append(
                [
                    theta,
                    value,
                    model.vector(gradient),
                    model.vector(renewed),
                    features,
                    by_features,
                    several,
                ]
            )
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
    ours, theirs = pair
    assert ours.paths == theirs.paths and ours.parts == theirs.parts
    assert all(
        ours.part(name).slices == theirs.part(name).slices for name in ours.parts
    )
    assert (
        theirs.statistics.size == 6
        and theirs.feature_shape == (3,)
        and not theirs.stochastic
    )


@hyperparameters
class ByHand(ft.FedAvg):
    """FedAvg whose steps descend along a gradient that the method asks for."""

    def client(self, state, inbox, local):
        own = lambda params, batch, step: local.batch_gradient(params, batch)  # noqa: E731
        return state, {"model": local.sgd(inbox.only("model"), self.sgd, gradient=own)}


def test_pytorch_s_loop_is_the_loop_of_steps_of_a_method_s_own(clients):
    """Dropout included, which draws by seed, round, client and step."""
    model = models.from_torch(
        lambda: Net(0.5), torch.zeros(1, 1, 2, 2), engine="torch"
    ).bind((2, 2, 1), 3)
    assert model.stochastic
    plain, by_hand = (
        train(kind(sgd=TRAINED), clients, model, 1).server.model
        for kind in (ft.FedAvg, ByHand)
    )
    np.testing.assert_allclose(
        plain, by_hand, rtol=0, atol=1e-6 * float(np.abs(plain).max())
    )
    other = train(ft.FedAvg(sgd=TRAINED), clients, model, 1, seed=1).server.model
    assert not np.allclose(plain, other)


class Dense(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_every_method(name, monkeypatch):
    """All but those that docs/models-pytorch.md names; and whether PyTorch's own loop
    trains.
    """
    looped = []
    loop = TorchTrainer.loop
    monkeypatch.setattr(
        TorchTrainer,
        "loop",
        lambda *one, **two: looped.append(name) or loop(*one, **two),
    )
    model = models.from_torch(Dense, torch.zeros(1, 4), engine="torch").bind((4,), 3)
    clients = classification(clients=4, sizes=[6, 7, 9, 8], groups=[0, 0, 1, 1])
    if name in SECOND_ORDER:
        with pytest.raises(
            ValueError, match=f"{name} needs derivatives of the model's gradients"
        ) as refused:
            train(example(name), clients, model, 1)
        assert "\n" not in str(refused.value)
        return
    found = predictors(train(example(name), clients, model, 1))
    assert bool(looped) == (name in OWN_STEPS)
    assert all(np.isfinite(leaf).all() for leaf in found)
    networks = next(leaf for leaf in found if leaf.shape[-1] == model.size)
    start = model.init(jax.random.fold_in(KEY, 0))  # of seed 0
    assert not np.allclose(networks.reshape(-1, model.size)[0], start)


@pytest.fixture(scope="module")
def halting(tmp_path_factory):
    """A run on a scenario with a module that cannot be converted."""
    with pytest.raises(
        ValueError, match=r'Halting cannot be converted.*engine="torch"'
    ) as refused:
        models.from_torch(Halting, torch.zeros(1, 1, 8, 8))
    assert "\n" not in str(refused.value)
    federation = digits_rotated(seed=0, clients=4)
    directory = tmp_path_factory.mktemp("halting")
    return (
        federation,
        run(algorithm(), federation, architecture(), 4, directory=directory),
        directory,
    )


def algorithm():
    return ft.Ditto(sgd=SGD(lr=0.1, momentum=0.9, batch_size=16), lam=0.1)


def architecture():
    return models.from_torch(Halting, torch.zeros(1, 1, 8, 8), engine="torch")


def test_models_go_back_to_plain_pytorch(halting, tmp_path):
    """They predict better than by chance, in either place alike."""
    federation, done, _ = halting
    assert done.summary().mean > 0.2
    client = federation.client(1)
    own = done.personal(client.name)
    file = models.save_state_dict(
        own.model, own.predictor, tmp_path / "own.safetensors"
    )
    module = Halting()
    module.load_state_dict(safetensors_torch.load_file(file))
    inputs = ((client.test.x - own.shift) * own.scale).astype(np.float32)
    expected = module.eval()(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(
        own.outputs(client.test.x), expected, rtol=1e-4, atol=1e-5
    )
    newcomer = done.enroll(client.train.x, client.train.y)
    assert newcomer.predict(client.test.x).shape == client.test.y.shape
    outcomes = done.row_outcomes()
    assert len(outcomes) == sum(len(one.test.y) for one in federation)


def test_a_resumed_run_is_bitwise_the_same(halting, tmp_path):
    """With dropout and running statistics, and a module that was made anew as another
    process would.
    """
    federation, done, _ = halting
    run(algorithm(), federation, architecture(), 2, directory=tmp_path / "run")
    again = run(
        algorithm(),
        federation,
        architecture(),
        4,
        directory=tmp_path / "run",
        resume=True,
    )
    for name, own in done.personal_models().items():
        assert (
            np.asarray(own.predictor).tobytes()
            == np.asarray(again.personal_models()[name].predictor).tobytes()
        )
    assert again.frame().equals(done.frame())


def test_the_executor(clients, pair):
    """Lock-step runs use it, too; NaN is found at the end of a client's work, with
    `debug` after a step.
    """
    group = LockstepGroup([clients], [pair[1]], Settings(), [None])
    assert isinstance(group.executors[0], TorchExecutor)
    wild = ft.FedAvg(sgd=SGD(lr=1e30, batch_size=8))
    with pytest.raises(Diverged, match=r"step \d"):
        simulate(wild, clients, pair[1], settings=Settings(debug=True)).advance()
    training = simulate(wild, clients, pair[1])
    with pytest.raises(Diverged):
        training.advance()
        training.advance()


# what cannot be trained
# --------------------------------------------------------------------------------------


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x))


class Mean(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight.data = self.first.weight.data

    def forward(self, x):
        return self.second(self.first(x))


class Tied(Overlapping):
    """Two layers with one parameter."""

    def __init__(self):
        super().__init__()
        self.second.weight = self.first.weight


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pair(4, 3), "Pair gives a tuple; wrap it"),
        (lambda: Mean(4, 3), r"Mean gives torch.float32 \[\] for a batch of 4"),
        (lambda: Noisy(4, 3), "draws random numbers in evaluation mode"),
        (lambda: nn.Linear(5, 3), "PyTorch fails in Linear: mat1 and mat2"),
        (lambda: nn.LazyLinear(3), "LazyLinear has no shape for weight yet"),
        (
            lambda: nn.Linear(4, 3, device="meta"),
            "has weight on meta; move it to the CPU",
        ),
        (lambda: nn.Linear(4, 3, dtype=torch.bfloat16), "has weight as bfloat16"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)),
            "BatchNorm1d with momentum=None",
        ),
        (Overlapping, r"first\.weight and second.weight in one piece of memory"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        models.from_torch(make, torch.zeros(1, 4), engine="torch")
    assert "\n" not in str(refused.value)


def test_refusals_of_settings_and_data(clients, pair):
    with pytest.raises(ValueError, match="there is no engine 'pytorch'"):
        models.from_torch(Dense, torch.zeros(1, 4), engine="pytorch")
    with pytest.raises(
        ValueError, match=r"batch of.*one example|batches of one example"
    ):
        train(
            ft.FedAvg(sgd=SGD(batch_size=10)), clients, pair[1], 1
        )  # the first of 11 examples is left over
    wide = models.from_torch(
        lambda: nn.Linear(4, 5), torch.zeros(1, 4), engine="torch"
    ).bind((2, 2, 1), 3)
    with pytest.raises(ValueError, match="as wide as there are classes"):
        train(ft.FedAvg(), clients, wide, 1)
    with pytest.raises(ValueError, match="cannot be part of a compiled program"):
        jax.jit(
            lambda theta: pair[1].logits(pair[1].params(theta), jnp.zeros((2, 2, 2, 1)))
        )(pair[1].init(KEY))


def test_tied_layers_are_one_parameter(clients):
    model = models.from_torch(Tied, torch.zeros(1, 4), engine="torch").bind(
        (2, 2, 1), 4
    )
    assert model.paths == ("first.bias", "first.weight", "second.bias")
    x = jnp.asarray(clients.x[:3], jnp.float32)
    with jax.disable_jit():
        gradient = jax.grad(lambda theta: model.logits(model.params(theta), x).sum())(
            model.init(KEY)
        )
    module = Tied()
    theta = model.init(KEY)
    module.load_state_dict(
        {
            name: torch.tensor(values)
            for name, values in models.state_dict(model, theta).items()
        }
    )
    module(torch.from_numpy(np.array(x)).reshape(3, 4)).sum().backward()
    np.testing.assert_allclose(
        model.part("first.weight").take(gradient),
        module.first.weight.grad.ravel(),
        rtol=1e-5,
    )


def test_parameters_may_be_pieces_of_one_vector():
    """As PyTorch's `vector_to_parameters` makes them, for one."""
    module = Dense()
    theta = torch.arange(float(sum(one.numel() for one in module.parameters())))
    nn.utils.vector_to_parameters(theta, module.parameters())
    model = models.from_torch(
        module, torch.zeros(1, 4), pretrained=True, engine="torch"
    ).bind((4,), 3)
    given = dict(module.named_parameters())
    for path, values in model.params(model.init(KEY)).items():
        np.testing.assert_array_equal(values, given[path].detach())


def test_a_client_without_test_rows_is_measured(pair):
    """As in all other executors: by sums of nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 2, 2, 1)).astype(np.float32), rng.integers(0, 3, 24)
    rows, tested = (
        Ragged.cut(np.arange(16), np.array([8, 8])),
        Ragged.of([np.arange(16, 24), np.arange(0)]),
    )
    federation = Federation(x, y, rows, Ragged.empty(2), tested, ("a", "b"), classes=3)
    frames = [
        run(ft.FedAvg(sgd=SGD(batch_size=8)), federation, model, 1).frame()
        for model in pair
    ]
    assert frames[0].columns == frames[1].columns and len(frames[0]) == len(frames[1])
    for name in frames[0].columns:
        if frames[0][name].dtype.is_float():
            np.testing.assert_allclose(
                frames[1][name].to_numpy(),
                frames[0][name].to_numpy(),
                rtol=1e-5,
                atol=1e-6,
            )

"""Seconds of a round of 100 clients behind real messages, beside the debug engine and
the compiled one.

Every request and answer becomes bytes and is checked as if it came from another
machine, in one process (loopback); each client is an executor of its own with its own
rows. Batches, models and random numbers are the same in all.

python benchmarks/messages.py                  LeNet-5 on 28x28 images
python benchmarks/messages.py --model mlp
python benchmarks/messages.py --model mlp --secure-aggregation   beside a round whose coordinator sees sums only
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measuring import Times, load, machine, ratio, take_turns

from fedtailor import models
from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.algorithms import FedAvg
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import RunSpec, Training
from fedtailor.models import Model
from fedtailor.protocol import SGD
from fedtailor.remote.client.round_requests import RoundHandler
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.data_facts import RemoteData
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.server.executor import RemoteExecutor, Rules, population_table
from fedtailor.remote.wire.transport import LoopbackTransport, Responder

ROWS, CLASSES = 20, 10
MODELS = {"lenet5": models.lenet5, "mlp": models.mlp}
METHOD = FedAvg(SGD(lr=0.01, epochs=1, batch_size=10))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--model", choices=MODELS, default="lenet5")
    parser.add_argument("--turns", type=int, default=5, help="timed rounds of each")
    parser.add_argument(
        "--secure-aggregation",
        action="store_true",
        help="beside messages without it, and nothing else",
    )
    options = parser.parse_args()
    federation = make_federation(options.clients)
    model = MODELS[options.model]().bind(federation.x.shape[1:], CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            "messages": over_messages(federation, model, Path(folder) / "open")
        }
        if options.secure_aggregation:
            trainings["secure"] = over_messages(
                federation, model, Path(folder) / "secure", SecureSums()
            )
        else:
            trainings["debug"] = simulate(
                METHOD, federation, model, settings=Settings(debug=True)
            )
            trainings["compiled"] = simulate(
                METHOD, federation, model, settings=Settings(devices=1, canonical=True)
            )
        times = take_turns(
            {name: rounds_of(training) for name, training in trainings.items()},
            options.turns,
        )
        furthest = max(
            float(
                np.abs(training.server.model - trainings["messages"].server.model).max()
            )
            for training in trainings.values()
        )
    print(machine("jax"))
    print(
        f"{options.clients} clients, {options.model} of {model.size} parameters, {ROWS}"
        f" rows each; load {load()}"
    )
    for name, found in times.items():
        print(f"{name:<9} {found} ms a round (minimum / median of {options.turns})")
    if options.secure_aggregation:
        print(
            f"secure : messages = {ratio(times['secure'], times['messages'])}; models"
            f" differ by {furthest:.0e} at most"
        )
        return
    print(
        f"messages : debug = {ratio(times['messages'], times['debug'])}, at most 3"
        " allowed"
    )
    each = Times(
        tuple(
            a - b
            for a, b in zip(
                times["messages"].seconds, times["compiled"].seconds, strict=True
            )
        )
    )
    print(
        f"a client's messages and calls cost {each.per(options.clients)} ms; models"
        f" differ by {furthest:.0e} at most"
    )


def make_federation(clients: int) -> Federation:
    """Random images and classes; all clients have as many rows, so that they share
    compiled programs.
    """
    rng = np.random.default_rng(0)
    return Federation(
        x=rng.normal(size=(clients * ROWS, 28, 28, 1)).astype(np.float32),
        y=rng.integers(0, CLASSES, clients * ROWS).astype(np.int32),
        train=Ragged.of(list(np.arange(clients * ROWS).reshape(clients, ROWS))),
        val=Ragged.empty(clients),
        test=Ragged.empty(clients),
        names=tuple(f"client {number}" for number in range(clients)),
        classes=CLASSES,
    )


def over_messages(
    federation: Federation, model: Model, folder: Path, sums: SecureSums | None = None
) -> Training:
    """A training whose clients are behind messages, each with its own rows, and behind
    masks if `sums` are given.
    """
    plan = Plan("benchmark", METHOD, model, sums=sums)
    responders = {}
    for place, name in enumerate(federation.names):
        rows = federation.train[place]
        own = Federation(
            x=federation.x[rows],
            y=federation.y[rows],
            train=Ragged.of([np.arange(ROWS)]),
            val=Ragged.empty(1),
            test=Ragged.empty(1),
            names=(name,),
            classes=CLASSES,
        )
        work = RoundHandler(
            plan, own, ClientStore(folder / str(place), plan.experiment)
        )
        responders[name] = Responder(plan.experiment, name, work, plan.common_vectors)
    table = population_table(federation.names, federation.train.sizes)
    rows = {name: np.array([ROWS, 0, 0]) for name in federation.names}
    rules = Rules(minimum=len(table), poll_interval=0.0)
    executor = RemoteExecutor(
        plan,
        table,
        LoopbackTransport(responders),
        own,
        RemoteData("benchmark", plan.experiment, rows, frozenset(rows)),
        rules=rules,
    )
    return Training(RunSpec(METHOD, model, rounds=10**6), executor)


def rounds_of(training: Training) -> Callable[[], object]:
    """One round at a call, waited for."""

    def advance() -> None:
        training.advance()
        np.asarray(training.server.model)

    return advance


if __name__ == "__main__":
    main()

"""A federation of `fedtailor.testing.problems` behind real messages, for tests of the
remote executor.
"""

import numpy as np

from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.storage.export import load_models
from fedtailor.engine.training import RunSpec, Training
from fedtailor.protocol import drive
from fedtailor.remote.client.round_requests import PERSONAL, RoundHandler
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.data_facts import RemoteData
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.server.executor import RemoteExecutor, Rules, population_table
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines
from fedtailor.remote.wire.transport import LoopbackTransport, Responder

EXPERIMENT = "experiment of a test"


def share(federation, client):
    """The federation of one client alone: its own rows and nobody else's."""
    splits = {
        name: getattr(federation, name)[client] for name in ("train", "val", "test")
    }
    rows = np.concatenate(list(splits.values()))
    ends = np.cumsum([0, *map(len, splits.values())])
    places = {name: np.arange(ends[k], ends[k + 1]) for k, name in enumerate(splits)}
    return Federation(
        x=federation.x[rows],
        y=federation.y[rows],
        **{name: Ragged.of([part]) for name, part in places.items()},
        names=(federation.names[client],),
        classes=federation.classes,
        shift=federation.shift,
        scale=federation.scale,
    )


class Remote:
    """Clients in this process, each with its own rows and its own directory, and an
    executor that asks them.
    """

    def __init__(
        self,
        algorithm,
        federation,
        model,
        directory,
        *,
        seed=0,
        groups=None,
        evaluate=True,
        uplink=(),
        **options,
    ):
        self.federation, self.directory = federation, directory
        self.plan = Plan(EXPERIMENT, algorithm, model, seed, uplink, evaluate=evaluate)
        self.shares = {
            name: share(federation, place)
            for place, name in enumerate(federation.names)
        }
        self.responders = {name: self.client(name) for name in federation.names}
        self.transport = LoopbackTransport(self.responders)
        self.groups, self.lines, self.options = groups, [], options
        Lines(self.lines.append).listen(COORDINATOR_LOG)

    def client(self, name):
        """A client as it is after its process started."""
        store = ClientStore(self.directory / name.replace(" ", "-"), EXPERIMENT)
        return Responder(
            EXPERIMENT,
            name,
            RoundHandler(self.plan, self.shares[name], store),
            self.plan.common_vectors,
        )

    def start_again(self):
        """All clients as they are after their processes started again."""
        self.responders = {name: self.client(name) for name in self.responders}
        self.transport = LoopbackTransport(self.responders)

    def store(self, name):
        return ClientStore(self.directory / name.replace(" ", "-"), EXPERIMENT)

    def executor(self, transport=None, **rules):
        federation = self.federation
        seen, unseen = (
            np.flatnonzero(mask) for mask in (~federation.unseen, federation.unseen)
        )

        sizes = np.array(list(federation.sizes.values()))

        def table(places):
            found = population_table(
                tuple(federation.names[place] for place in places),
                federation.train.sizes[places],
                groups=None if federation.groups is None else federation.groups[places],
            )
            object.__setattr__(found, "original_index", places[found.original_index])
            return found

        return RemoteExecutor(
            self.plan,
            table(seen),
            transport or self.transport,
            self.shares[federation.names[0]],
            RemoteData(
                federation.name,
                EXPERIMENT,
                dict(zip(federation.names, sizes.T, strict=True)),
                frozenset(federation.names[place] for place in seen),
            ),
            unseen=table(unseen),
            rules=Rules(
                **{"poll_interval": 0.0, "deadline": 60.0, "minimum": 1} | rules
            ),
        )

    def training(self, executor=None, *, data="", secret=None, **options):
        executor = executor or self.executor()
        spec = RunSpec(
            self.plan.algorithm,
            self.plan.model,
            rounds=1,
            seed=self.plan.seed,
            uplink=self.plan.uplink,
            **{**self.options, **options},
        )
        return Training(spec, executor, data=data, secret=secret)

    def personal(self, training, ledger=None):
        """Client -> the predictor that stands in its directory, after all clients were
        asked to store it.
        """
        for table, unseen in (
            (training.executor.seen, False),
            (training.executor.unseen, True),
        ):
            if len(table):
                service = training.serve(unseen=unseen, ledger=ledger)
                drive(training.run_personal("personal", service), training.executor)
        assert not self.lines, self.lines
        return {
            name: (
                load_models(self.store(name).directory / PERSONAL, self.plan.model)[
                    name
                ].predictor
            )
            for name in self.federation.names
        }

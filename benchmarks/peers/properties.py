"""Properties of federated methods that need no opinion, for any library.

A library is a module of this folder with a class `Library`, which trains a linear model
on least squares: f_i(w) = |X_i w - y_i|^2 / (2 n_i), every local step on all samples of
a client. Then every property has an exact answer in NumPy, and a library either has it,
to rounding, or misses it by a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

LR, STEPS, ROUNDS = 0.1, 4, 3
LONG = 400
"""Rounds until a method with a fixed point has reached it."""
ALL = 1000
"""Size of a batch that holds all samples of any client."""
TOLERANCE = 1e-4
"""Of a relative error, where a library computes in float32; 1e-9 in float64."""

Client = tuple[np.ndarray, np.ndarray]
Vector = np.ndarray


class CannotBeAsked(Exception):
    """A library does not offer what a property needs; the text says what."""


@dataclass(frozen=True)
class Task:
    """What a library is asked to train.

    Attributes:
        clients: inputs [n_i, d] and targets [n_i] of each client.
        start: parameters [d] of the server and of all clients.
        rounds: rounds in which all clients report.
        steps: local steps a round, each on all samples of a client.
        lr: rate of the local steps.
        coupling: of methods that have one: mu of FedProx, lambda of Ditto and pFedMe,
            alpha of FedDyn, the mixing weight of APFL's local model.
        batch_size: samples of a local step; by default all of a client. `steps` are then
            passes through a client's samples.
        loss: of a batch's outputs and targets; None = half the mean of squares.
        after_round: called after each round.
    """

    clients: Sequence[Client]
    start: Vector
    rounds: int = ROUNDS
    steps: int = STEPS
    lr: float = LR
    coupling: float = 0.5
    batch_size: int = ALL
    loss: Callable[[Any, Any], Any] | None = None
    after_round: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Trained:
    """What training left: the server's parameters, and those with which each client
    predicts.
    """

    server: Vector
    personal: Sequence[Vector]


@dataclass(frozen=True)
class Buffers:
    """Running statistics of batch normalisation after a round.

    Attributes:
        received: of each client after it was sent the next model.
        server: of the model that is sent; None if the library has none.
        trained: of each client when its training ended.
        weights: of the clients in the server's average.
    """

    received: Sequence[Vector]
    server: Vector
    trained: Sequence[Vector]
    weights: Sequence[float]


class Library(Protocol):
    """What a module of this folder offers.

    Attributes:
        name: of the library.
        version: release or commit.
        precise: whether it computes in float64.
        methods: the names of methods that it has, among those of `PROPERTIES`.
    """

    name: str
    version: str
    precise: bool
    methods: Sequence[str]

    def train(self, method: str, task: Task) -> Trained:
        """Train.

        Raises:
            CannotBeAsked: the library has no such thing.
        """
        ...

    def buffers(self) -> Buffers:
        """One round of FedAvg with batch normalisation."""
        ...


def without_vision_operators() -> None:
    """Import torchvision also where its compiled operators, none of which is used here,
    are of another build than torch.
    """
    import torch

    register = torch.library.register_fake
    torch.library.register_fake = lambda *_, **__: lambda function: function
    try:
        import torchvision  # noqa: F401
    finally:
        torch.library.register_fake = register


def gradient(client: Client, w: Vector) -> Vector:
    """Of f_i."""
    x, y = client
    return x.T @ (x @ w - y) / len(y)


def descend(client: Client, w: Vector, task: Task, steps: int | None = None) -> Vector:
    """Plain gradient steps on a client."""
    for _ in range(task.steps if steps is None else steps):
        w = w - task.lr * gradient(client, w)
    return w


def clients(count: int = 3, d: int = 3, *, agree: bool = False, seed: int = 0) -> Any:
    """Clients of different sizes; if they agree, one w is best for all of them."""
    rng = np.random.default_rng(seed)
    found, shared = [], rng.normal(size=d)
    for number in range(count):
        x = rng.normal(size=(8 + 4 * number, d))
        w = shared if agree else rng.normal(size=d) * 2
        found.append((x, x @ w))
    return found, shared


def equal_clients(count: int = 3, d: int = 3, seed: int = 1) -> list[Client]:
    """Clients of one size that want different models."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        x = rng.normal(size=(12, d))
        found.append((x, x @ (2 * rng.normal(size=d))))
    return found


def error(found: Vector, expected: Vector, start: Vector) -> float:
    """Largest difference, relative to how far training should go from the start."""
    moved = np.abs(expected - start).max()
    difference = np.abs(np.asarray(found) - expected).max()
    return float(difference / (moved if moved > 1e-12 else 1.0))


START = np.array([0.3, -0.2, 0.1])


def one_client(library: Library, method: str) -> float:
    """One client alone is plain SGD."""
    (client,), _ = clients(1)
    task = Task([client], START)
    expected = descend(client, START, task, task.steps * task.rounds)
    return error(library.train(method, task).server, expected, START)


def order(library: Library, method: str) -> float:
    """Another order of clients changes nothing."""
    found, _ = clients()
    first = library.train(method, Task(found, START))
    second = library.train(method, Task(found[::-1], START))
    errors = [error(second.server, first.server, START)]
    for one, other in zip(first.personal, second.personal[::-1], strict=True):
        errors.append(error(other, one, START))
    return max(errors)


def halves(library: Library, method: str) -> float:
    """A client that is split into two equal halves changes nothing: one local step."""
    found, _ = clients()
    x, y = found[0]
    parts = [(x[::2], y[::2]), (x[1::2], y[1::2]), *found[1:]]
    whole = library.train(method, Task(found, START, steps=1)).server
    return error(
        library.train(method, Task(parts, START, steps=1)).server, whole, START
    )


def stays(library: Library, method: str) -> float:
    """At the common optimum of all clients nothing moves."""
    found, best = clients(agree=True)
    trained = library.train(method, Task(found, best))
    moves = [np.abs(w - best).max() for w in (trained.server, *trained.personal)]
    return float(max(moves) / np.abs(best).max())


def optimum(library: Library, method: str) -> float:
    """Clients that want different models: training ends at the best model of all, in
    spite of several local steps; how far off, relative to where FedAvg ends.
    """
    found = equal_clients()
    task = Task(found, START, rounds=LONG, lr=0.05)
    hessians = [x.T @ x / len(y) for x, y in found]
    slopes = [x.T @ y / len(y) for x, y in found]
    best = np.linalg.solve(np.sum(hessians, 0), np.sum(slopes, 0))
    # FedAvg's fixed point: the mean over clients of what they make of it.
    w = START
    for _ in range(task.rounds):
        w = np.mean([descend(client, w, task) for client in found], axis=0)
    server = library.train(method, task).server
    return float(np.abs(server - best).max() / np.abs(w - best).max())


def ditto_optimum(library: Library, method: str) -> float:
    """A personal model ends where grad f_i(v) + lambda (v - w) is 0."""
    found = equal_clients()
    task = Task(found, START, rounds=LONG, lr=0.05)
    trained = library.train(method, task)
    errors = []
    for (x, y), v in zip(found, trained.personal, strict=True):
        hessian = x.T @ x / len(y)
        best = np.linalg.solve(
            hessian + task.coupling * np.eye(len(v)),
            x.T @ y / len(y) + task.coupling * trained.server,
        )
        errors.append(error(v, best, trained.server))
    return max(errors)


def off(library: Library, method: str) -> float:
    """Without coupling a personal model is trained alone (FedProx: is FedAvg's)."""
    found = equal_clients()
    task = Task(found, START, coupling=1.0 if method == "APFL" else 0.0)
    trained = library.train(method, task)
    if method == "FedProx":
        w = START
        for _ in range(task.rounds):
            w = np.mean([descend(client, w, task) for client in found], axis=0)
        return error(trained.server, w, START)
    steps = task.steps * task.rounds
    return max(
        error(v, descend(client, START, task, steps), START)
        for client, v in zip(found, trained.personal, strict=True)
    )


def full(library: Library, method: str) -> float:
    """With full coupling a personal model is the shared one: as averaged, or as the
    client's last local steps left it.
    """
    task = Task(equal_clients(), START, coupling=0.0)
    trained = library.train(method, task)
    averaged = START
    for _ in range(task.rounds):
        left = [descend(client, averaged, task) for client in task.clients]
        averaged = np.mean(left, axis=0)
    candidates = ([averaged] * len(left), left)
    errors = [
        max(
            error(v, expected, START)
            for v, expected in zip(trained.personal, candidate, strict=True)
        )
        for candidate in candidates
    ]
    return max(min(errors), error(trained.server, averaged, START))


def acts(library: Library, method: str) -> float:
    """Another coefficient of the coupling gives other models: 0 if it does, 1 if not."""
    one, other = (
        library.train(method, Task(equal_clients(), START, coupling=coupling))
        for coupling in (0.5, 0.25)
    )
    moved = max(
        error(second, first, START)
        for first, second in zip(one.personal, other.personal, strict=True)
    )
    return 0.0 if moved > 1e-4 else 1.0


def mixture_gradient(library: Library, method: str) -> float:
    """APFL: a personal model moves by alpha times the gradient at the mixture."""
    (client,), _ = clients(1)
    other = equal_clients(2)
    task = Task([client, *other], START, rounds=2, steps=1, coupling=0.5)
    trained = library.train(method, task)
    w, v = START, [START] * 3
    for _ in range(2):
        mixtures = [0.5 * own + 0.5 * w for own in v]
        moved = [c for c in task.clients]
        v = [
            own - task.lr * 0.5 * gradient(c, mixture)
            for c, own, mixture in zip(moved, v, mixtures, strict=True)
        ]
        locals_ = [w - task.lr * gradient(c, w) for c in moved]
        sizes = np.array([len(c[1]) for c in moved], float)
        averages = {
            "samples": np.average(locals_, axis=0, weights=sizes),
            "uniform": np.mean(locals_, axis=0),
        }
        kind = min(
            averages, key=lambda name: np.abs(averages[name] - trained.server).max()
        )
        w = averages[kind]
    # A library predicts with the average, or with what a client has trained.
    candidates = [[0.5 * own + 0.5 * shared for own in v] for shared in (w,)]
    candidates.append(
        [0.5 * own + 0.5 * local for own, local in zip(v, locals_, strict=True)]
    )
    return min(
        max(
            error(found, expected, START)
            for found, expected in zip(trained.personal, mixture, strict=True)
        )
        for mixture in candidates
    )


def inner_step(library: Library, method: str) -> float:
    """Per-FedAvg (first order): w moves by the gradient after an inner step, from w; one
    or two such steps, as libraries pass once or twice through the data.
    """
    x = np.tile(np.array([[1.0, -0.5, 2.0]]), (8, 1)) / 2
    client = (x, np.full(8, 1.5))
    task = Task([client], START, rounds=1, steps=1)
    server = library.train(method, task).server
    w, errors = START, []
    for _ in range(2):
        inner = w - task.lr * gradient(client, w)
        w = w - task.lr * gradient(client, inner)
        errors.append(error(server, w, START))
    return min(errors)


def same_buffers(library: Library, method: str) -> float:
    """After a round every client's running statistics are the server's, which are the
    average of the clients'.
    """
    found = library.buffers()
    weights = np.array(found.weights) / np.sum(found.weights)
    average = np.tensordot(weights, np.array(found.trained), 1)
    scale = np.ptp(np.array(found.trained), axis=0).max()
    errors = [np.abs(one - found.server).max() for one in found.received]
    errors.append(np.abs(found.server - average).max())
    return float(max(errors) / scale)


Property = Callable[[Library, str], float]


@dataclass(frozen=True)
class Asked:
    """A property, and of which methods it is asked."""

    check: Property
    methods: Sequence[str] = field(default=())


PROPERTIES: Mapping[str, Asked] = {
    "one client is plain SGD": Asked(one_client, ("FedAvg", "SCAFFOLD")),
    "the order of clients": Asked(
        order, ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "Ditto", "APFL", "pFedMe")
    ),
    "a client in two halves": Asked(halves, ("FedAvg",)),
    "stays at the common optimum": Asked(
        stays, ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "Ditto", "pFedMe", "APFL")
    ),
    "reaches the optimum of all": Asked(optimum, ("SCAFFOLD", "FedDyn")),
    "personal optimum": Asked(ditto_optimum, ("Ditto",)),
    "coupling off": Asked(off, ("FedProx", "Ditto", "APFL")),
    "full coupling": Asked(full, ("APFL",)),
    "coupling acts": Asked(acts, ("Ditto", "APFL", "pFedMe", "FedAMP")),
    "gradient of the mixture": Asked(mixture_gradient, ("APFL",)),
    "step after an inner step": Asked(inner_step, ("Per-FedAvg",)),
    "buffers are the server's": Asked(same_buffers, ("FedAvg",)),
}


def ask(library: Library, only: str = "") -> list[dict[str, Any]]:
    """Properties of a library: rows with the error, or why it cannot be asked.

    Args:
        library: the library.
        only: name of one property; "" for all.
    """
    rows = []
    for name, asked in PROPERTIES.items():
        if only not in ("", name):
            continue
        for method in asked.methods:
            row: dict[str, Any] = {"property": name, "method": method}
            if method not in library.methods:
                row["cannot"] = "the library has no such method"
            else:
                try:
                    value = asked.check(library, method)
                    # None: training ended in infinity.
                    is_finite = np.isfinite(value)
                    row["error"] = float(f"{value:.2g}") if is_finite else None
                    row["holds"] = bool(
                        value < (1e-9 if library.precise else TOLERANCE)
                    )
                except CannotBeAsked as reason:
                    row["cannot"] = str(reason)
            rows.append(row)
    return rows


__all__ = ["Buffers", "CannotBeAsked", "Library", "Task", "Trained", "ask", "replace"]

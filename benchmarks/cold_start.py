"""Seconds until the first round ends, with an empty and with a filled cache of compiled
programs, and those of a PyTorch loop.

python benchmarks/cold_start.py                  all networks
python benchmarks/cold_start.py lenet5 --programs  some, and what each program took

Each measurement is a new process: it imports, converts the network if it is PyTorch's,
trains four clients for one epoch (two steps of ten) and evaluates them. The loop does the
same on one thread. Seconds are of all threads of the process: those of a clock would say
what else the machine does. "PyTorch: " are networks that `from_torch` converts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measuring import Results, load, machine, show
from rich.console import Console
from rich.table import Table

CLIENTS, TRAIN, TEST, BATCH = 4, 20, 10, 10
LR = 0.05
TRACING, LOWERING, XLA = (
    f"/jax/core/compile/{name}_duration"
    for name in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
KINDS = {TRACING: "tracing", LOWERING: "lowering", XLA: "XLA"}


@dataclass(frozen=True)
class Case:
    """A network and its inputs.

    Attributes:
        ours: makes the architecture.
        module: makes the PyTorch module that the loop trains.
        shape: of an example.
        classes: of the outputs.
        tokens: whether inputs are token ids, which are below `classes`.
    """

    ours: Callable[[], Any]
    module: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    tokens: bool = False

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Random inputs and targets of all clients."""
        rng = np.random.default_rng(0)
        shape = (CLIENTS * (TRAIN + TEST), *self.shape)
        x: np.ndarray = rng.standard_normal(shape, np.float32)
        if self.tokens:
            x = rng.integers(1, self.classes, shape, np.int32)
        return x, rng.integers(0, self.classes, len(x))


def _zoo(name: str, **options: Any) -> Any:
    import fedtailor as ft

    return getattr(ft.models, name)(**options)


def _module(name: str, *arguments: Any) -> Any:
    import torch_networks

    return getattr(torch_networks, name)(*arguments)


def _converted(name: str, case: str) -> Any:
    import torch

    import fedtailor as ft

    x, _ = CASES[case].examples()
    example = torch.from_numpy(x[:1])
    if example.ndim == 4:
        example = example.permute(0, 3, 1, 2)
    return ft.models.from_torch(lambda: _module(name), example.contiguous())


def _lenet() -> Any:
    import torch

    return _module("lenet5", 1, 28, 10, torch.nn.AvgPool2d)


CHARACTERS = ((40,), 90, True)
CASES = {
    "lenet5": Case(lambda: _zoo("lenet5"), _lenet, (28, 28, 1), 10),
    "resnet18": Case(
        lambda: _zoo("resnet", depth=18, stem="3x3"),
        lambda: _module("ResNet18"),
        (32, 32, 3),
        100,
    ),
    "PyTorch: resnet18": Case(
        lambda: _converted("ResNet18", "PyTorch: resnet18"),
        lambda: _module("ResNet18"),
        (32, 32, 3),
        100,
    ),
    "lstm": Case(
        lambda: _zoo("lstm", vocabulary=90), lambda: _module("Characters"), *CHARACTERS
    ),
    "PyTorch: lstm": Case(
        lambda: _converted("Characters", "PyTorch: lstm"),
        lambda: _module("Characters"),
        *CHARACTERS,
    ),
    "PyTorch: transformer": Case(
        lambda: _converted("Encoder", "PyTorch: transformer"),
        lambda: _module("Encoder"),
        *CHARACTERS,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}"
    )
    parser.add_argument(
        "--programs", action="store_true", help="what each program took"
    )
    parser.add_argument(
        "--out", type=Path, help="a file of results; a second call goes on"
    )
    parser.add_argument("--of", choices=("ours", "loop"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"there is no {unknown.pop()!r}; choose from {', '.join(CASES)}")
    if options.of:
        case = CASES[options.names[0]]
        print(json.dumps(_ours(case) if options.of == "ours" else _loop(case)))
        return
    console = Console(width=160, highlight=False)
    console.print(machine("jax", "torch"))
    table = Table("network", "programs", "in all, s", "import", "network", "round")
    for heading in ("evaluation", "XLA programs", "tracing", "lowering", "XLA"):
        table.add_column(heading)
    table.add_column("loop, s")
    results = Results(options.out)
    for name in options.names:
        loop = results.of(f"{name}: loop", partial(_measured, name, "loop"))["seconds"]
        pair = results.of(name, partial(_pair, name))
        for kept, found in pair.items():
            table.add_row(name, kept, *_cells(found), f"{loop:.1f}")
            console.print(f"{name}, {kept}: {found['seconds']:.1f} s")
            if options.programs:
                for program, seconds in found["of programs"].items():
                    console.print(f"    {program}: {seconds:.2f} s")
    console.print(f"processor seconds; load {load()}")
    show(console, table, "first-round", "jax", "torch")


def _pair(name: str) -> dict[str, dict[str, Any]]:
    """Without and with kept programs."""
    with TemporaryDirectory() as cache:
        return {
            kept: _measured(name, "ours", JAX_COMPILATION_CACHE_DIR=cache)
            for kept in ("none kept", "kept")
        }


def _cells(found: dict[str, Any]) -> Iterable[str]:
    """A row of the table."""
    yield f"{found['seconds']:.1f}"
    for phase in ("import", "network", "round", "evaluation"):
        yield f"{found[phase]:.1f}"
    yield str(found["programs"])
    for kind in KINDS.values():
        yield f"{found[kind]:.1f}"


def _measured(name: str, of: str, **environment: str) -> dict[str, Any]:
    """What a new process reports."""
    # The cache takes what compiles in less than a second, too, as fedtailor sets it up
    # for its own cache.
    settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **environment}
    done = subprocess.run(
        [sys.executable, __file__, name, "--of", of],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )
    return json.loads(done.stdout.splitlines()[-1])


class Phases:
    """Processor seconds of one phase after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = 0.0

    def end(self, name: str) -> None:
        now = time.process_time()
        self.seconds[name], self._last = now - self._last, now


class Compiling:
    """What JAX reports of its compiling, in seconds of a clock."""

    def __init__(self) -> None:
        self.programs: dict[str, float] = defaultdict(float)
        self.count = 0
        self._spans: list[tuple[str, float, float]] = []

    def listen(self, event: str, duration_secs: float, **about: Any) -> None:
        if event not in KINDS:
            return
        end = time.perf_counter()
        self._spans.append((event, end - duration_secs, end))
        if event == XLA:
            self.count += 1
            self.programs[str(about.get("fun_name"))] += duration_secs

    def shares(self) -> dict[str, float]:
        """Seconds of a clock by kind. Functions are traced inside of others, and small
        programs compiled: a moment counts once, for XLA before lowering before tracing.
        """
        seconds, before, kinds = {}, 0.0, []
        for kind in (XLA, LOWERING, TRACING):
            kinds.append(kind)
            covered = _covered([(a, b) for name, a, b in self._spans if name in kinds])
            seconds[KINDS[kind]], before = covered - before, covered
        return seconds


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of a union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _ours(case: Case) -> dict[str, Any]:
    """One process of fedtailor."""
    phases, compiling = Phases(), Compiling()
    import jax

    from fedtailor.algorithms import FedAvg
    from fedtailor.data.federation import Federation, Ragged
    from fedtailor.engine.runs import simulate
    from fedtailor.protocol import SGD

    jax.monitoring.register_event_duration_secs_listener(compiling.listen)
    phases.end("import")
    architecture = case.ours()
    x, y = case.examples()
    rows = np.arange(len(x)).reshape(CLIENTS, -1)
    train, test = rows[:, :TRAIN], rows[:, TRAIN:]
    federation = Federation(
        x,
        y,
        Ragged.cut(train.ravel(), np.full(CLIENTS, TRAIN)),
        Ragged.empty(CLIENTS),
        Ragged.cut(test.ravel(), np.full(CLIENTS, TEST)),
        tuple(f"client {client}" for client in range(CLIENTS)),
        classes=case.classes,
    )
    algorithm = FedAvg(SGD(lr=LR, batch_size=BATCH))
    training = simulate(algorithm, federation, architecture)
    phases.end("network")
    training.advance()
    jax.block_until_ready(training.server)
    phases.end("round")
    training.evaluate()
    phases.end("evaluation")
    seconds = sum(phases.seconds.values())
    # JAX knows seconds of a clock only. Their shares of the process's seconds are the
    # same if all else that runs slows it down evenly.
    shares, clock = compiling.shares(), time.perf_counter() - STARTED
    scaled = {kind: share / clock * seconds for kind, share in shares.items()}
    of_programs = sorted(compiling.programs.items(), key=lambda item: -item[1])
    return {
        "seconds": seconds,
        **phases.seconds,
        **scaled,
        "programs": compiling.count,
        "of programs": {name: one / clock * seconds for name, one in of_programs},
    }


def _loop(case: Case) -> dict[str, Any]:
    """One process of the loop."""
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    torch.set_num_threads(1)
    model, loss = case.module(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = map(torch.from_numpy, case.examples())
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    theta = parameters_to_vector(model.parameters()).detach()
    average = torch.zeros_like(theta)
    for rows in torch.arange(len(x)).reshape(CLIENTS, -1):
        vector_to_parameters(theta.clone(), model.parameters())
        for batch in rows[torch.randperm(TRAIN)].split(BATCH):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        average += parameters_to_vector(model.parameters()).detach() / CLIENTS
    vector_to_parameters(average, model.parameters())
    model.eval()
    with torch.no_grad():
        for rows in torch.arange(len(x)).reshape(CLIENTS, -1):
            model(x[rows[TRAIN:]]).argmax(1).eq(y[rows[TRAIN:]]).float().mean()
    return {"seconds": time.process_time()}


STARTED = time.perf_counter()

if __name__ == "__main__":
    main()

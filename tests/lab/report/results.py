"""A small result directory with real runs: some diverged, some still to come, one
judged by its loss.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import tomli_w

from fedtailor._base.digests import with_digest
from fedtailor._base.files import file_digest
from fedtailor.algorithms import UCFL
from fedtailor.engine.runs import run as train
from fedtailor.engine.storage.comparison_index import MethodRun
from fedtailor.engine.storage.diagnostics import (
    ARRAYS,
    DIAGNOSTICS,
    read_diagnostics,
    write_diagnostics,
)
from fedtailor.engine.storage.run_files import (
    COMPARISON_INDEX,
    DIGESTS,
    MANIFEST,
    SUMMARY,
)
from fedtailor.lab.report.drawing import FIGURES
from fedtailor.lab.results.measures import MEASURES
from fedtailor.lab.scenarios import find
from fedtailor.protocol import SGD, Diverged
from fedtailor.protocol.diagnostics import Diagnostic, LineDiagnostic

NAME = "small"
CLIENTS, UNSEEN, ROUNDS, SEEDS = 22, 2, 3, (0, 1)
SGD_ = SGD(lr=0.05, momentum=0.9, epochs=1, batch_size=16)
SCENARIOS = {"shift": "digits-label-shift", "permuted": "digits-permuted"}


def build(results: Path) -> Path:
    """FedAvg and Local on both scenarios, UCFL on the second with its second seed still
    to come; "Wild" always diverges there, "Half" for one seed."""
    shift, permuted = (_federations(name) for name in SCENARIOS.values())
    cells = [
        *(
            _run(results, "shift", label, seed, shift[seed])
            for label in ("Local", "FedAvg")
            for seed in SEEDS
        ),
        *(
            _run(results, "permuted", label, seed, permuted[seed])
            for label in ("Local", "FedAvg")
            for seed in SEEDS
        ),
        _run(results, "permuted", "UCFL, auto", 0, permuted[0]),
        *(_run(results, "permuted", "Wild", seed, permuted[seed]) for seed in SEEDS),
    ]
    ucfl = results / cells[-3].run  # as if the method told one thing more
    gains = LineDiagnostic(
        "gain", "Gains", np.arange(3), np.arange(3.0), "client", "gain"
    )
    put_diagnostics(ucfl, [*read_diagnostics(ucfl), gains])
    half = [
        replace(cell, algorithm="Half") for cell in (cells[-5], cells[-1])
    ]  # FedAvg of seed 0, Wild of seed 1
    write_index(results, [*cells, *half])
    return results


def put_diagnostics(run: Path, diagnostics: Sequence[Diagnostic]) -> None:
    """Other diagnostics for a finished run, with their digests."""
    write_diagnostics(run, diagnostics)
    summary = json.loads((run / SUMMARY).read_text())
    summary[DIGESTS] |= {
        name: file_digest(run / name) for name in (DIAGNOSTICS, ARRAYS)
    }
    (run / SUMMARY).write_text(json.dumps(with_digest(summary)))


def write_index(results: Path, cells: list[MethodRun], **changes) -> None:
    """The index that `compare` would write."""
    used = {
        "arguments": {"clients": CLIENTS},
        "model": "mlp(64)",
        "rounds": ROUNDS,
        "participation": 1.0,
    }
    grid = {0.01: 0.5, 0.05: 0.75, 1e30: None}
    index = {
        "name": NAME,
        "size": "quick",
        "title": "A small comparison",
        "source": "Somebody 2020, table 1",
        "note": "fewer rounds",
        "seeds": list(SEEDS),
        "metrics": list(MEASURES),
        "figures": list(FIGURES),
        "scenarios": {
            label: {"use": name, **used} for label, name in SCENARIOS.items()
        },
        "algorithms": ["Local", "FedAvg", "UCFL, auto", "Wild", "Half"],
        "published": {"mean": {"shift": {"FedAvg": "76.7 ± 4.0", "Local": 68.2}}},
        "sweeps": {
            "FedAvg": {
                "parameter": "sgd.lr",
                "rows": {"0.05": "FedAvg", "1e30": "Wild"},
            }
        },
        "runs": 16,
        "cells": [asdict(cell) for cell in cells],
        "candidates": [
            {
                "scenario": "shift",
                "algorithm": "FedAvg",
                "parameters": {"sgd.lr": lr},
                "seed": 0,
                "run": "runs/x",
                "val": val,
                "chosen": lr == 0.05,
            }
            for lr, val in grid.items()
        ],
        "seconds": 150.0,
        "core_seconds": 270_000.0,
        "machine": "2 cores",
        "versions": {"fedtailor": "1.0"},
    }
    (results / NAME).mkdir(parents=True, exist_ok=True)
    (results / NAME / COMPARISON_INDEX).write_text(
        json.dumps(with_digest(index | changes))
    )


def as_loss(run: Path, copy: Path) -> Path:
    """The same run, judged by its loss, as a model without classes is."""
    shutil.copytree(run, copy)
    summary = json.loads((copy / SUMMARY).read_text())
    (copy / SUMMARY).write_text(json.dumps(with_digest(summary | {"metric": "loss"})))
    return copy


def without_digests(run: Path) -> None:
    """Let the files of a run be changed."""
    summary = json.loads((run / SUMMARY).read_text())
    (run / SUMMARY).write_text(
        json.dumps(
            with_digest({name: summary[name] for name in summary if name != DIGESTS})
        )
    )


def _federations(name: str):
    scenario = find(name)
    federations = [scenario.build(seed, clients=CLIENTS, val=0.2) for seed in SEEDS]
    return [
        replace(federation, unseen=np.arange(CLIENTS) < UNSEEN)
        for federation in federations
    ]


def _run(results: Path, label: str, algorithm: str, seed: int, federation) -> MethodRun:
    scenario = find(SCENARIOS[label])
    method = scenario.algorithm(
        {"Local": "local", "UCFL, auto": "ucfl"}.get(algorithm, "fedavg")
    )
    method = replace(
        method, sgd=replace(SGD_, lr=1e30) if algorithm == "Wild" else SGD_
    )
    # Three rounds are too few for it to be sure that so few rows differ.
    if isinstance(method, UCFL):
        method = replace(method, warm=0)
    run = f"runs/{scenario.name}/{algorithm.split(',')[0].lower()}-s{seed}"
    with suppress(Diverged):
        train(
            method,
            federation,
            scenario.model,
            ROUNDS,
            seed=seed,
            directory=results / run,
        )
    return MethodRun(label, algorithm, seed, run)


def write_manifest(run: Path, method: str, seed: int) -> None:
    """The manifest of a run that never was, with what reports ask for."""
    model = {
        "architecture": "logistic()",
        "loss": "cross_entropy",
        "input_shape": [2],
        "outputs": 2,
        "dtype": "float32",
    }
    settings = {"seed": seed, "evaluate_every": 1, "participation": 1.0}
    data = {"name": "digits", "clients": 3}
    content = {
        "run": settings,
        "algorithm": {"name": method},
        "model": model,
        "data": data,
    }
    (run / MANIFEST).write_text(tomli_w.dumps(content))

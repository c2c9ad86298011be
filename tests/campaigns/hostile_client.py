"""A client that answers whatever it likes, among three honest ones."""

import shutil
import time
from pathlib import Path

import numpy as np

from campaigns.grammar import Grammar
from campaigns.marked import NAMES, TRAINED, MarkedFederation, quick_waits, train
from fedtailor.engine.storage import check, load_models
from fedtailor.remote.client.client import responder_of
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients

HOSTILE = "d"
HONEST = NAMES[:-1]
FURTHEST = 100.0
"""How often the norm of an honest run's model an honest client's model may have."""


MASKED = ("sums", "ucfl", "passes")
"""Jobs that add updates behind masks."""


class HostileClient:
    """Tries of whole trainings.

    Args:
        folder: for their files.
        jobs: kinds of jobs.
    """

    def __init__(self, folder: Path, jobs: tuple[str, ...] = TRAINED) -> None:
        self._folder, self._jobs = folder, jobs
        self._federations: dict[str, MarkedFederation] = {}
        self._norms: dict[str, float] = {}
        self.answers = 0
        folder.mkdir(exist_ok=True)

    def hostile_client(self, rng: np.random.Generator) -> None:
        """A training in which one client's answers are drawn: it ends, blames nobody
        else, and leaves a sound run and honest clients with models.
        """
        kind = self._jobs[int(rng.integers(len(self._jobs)))]
        federation = self._federation(kind)
        share, start = float(rng.choice([0.1, 0.5, 1.0])), time.monotonic()
        drawn: list[list[str]] = []
        lines: list[str] = []
        problem = ""
        try:
            models = self._train(federation, rng, share, drawn, lines)
        except (TooFewClients, ValueError) as error:
            # Pooled statistics need all clients: a client that refuses to give them is
            # named, and the federation begins again without it.
            problem = str(error)
            models = {}
        where = f"{kind}: {drawn[-6:]}"
        assert "\n" not in problem, where
        for name in HONEST:
            # Of a damaged share nobody can say whose it is: who refuses it is named.
            blamed = [
                line
                for line in lines
                if f"client {name}" in line
                and not (kind in MASKED and "it refused" in line)
            ]
            assert not blamed, f"{where}; an honest client is blamed: {blamed[:2]}"
            assert f"client {name}:" not in problem, f"{where}; {problem}"
        if problem:
            assert HOSTILE in problem or any(HOSTILE in line for line in lines), (
                f"{where}; nobody is named: {problem}"
            )
            assert drawn, f"{where}; {problem}"
            # A description adds up over all clients that have begun it.
            has_begun = (self._folder / "try" / "run").exists()
            needs_all = ("pooled", "categories", *MASKED)
            if has_begun and federation.kind not in needs_all:
                raise AssertionError(f"{where}; the training has ended: {problem}")
            return
        for name, model in models.items():
            assert np.isfinite(model).all(), f"{where}; {name}'s model is not finite"
            far = np.linalg.norm(model) / self._norms[kind]
            assert far < FURTHEST, f"{where}; {name}'s model is {far:.3g} times too far"
        run = self._folder / "try" / "run"
        assert all(finding.whole for finding in check(run)), where
        assert time.monotonic() - start < 600, where

    def _train(
        self,
        federation: MarkedFederation,
        rng: np.random.Generator | None,
        share: float,
        drawn: list[list[str]],
        lines: list[str],
    ) -> dict[str, np.ndarray]:
        """Train; a share of one client's answers is drawn."""
        folder = self._folder / "try"
        shutil.rmtree(folder, ignore_errors=True)
        kits = {
            name: shutil.copytree(federation.kit(name), folder / name) for name in NAMES
        }
        responders, stores = {}, {}
        for name, directory in kits.items():
            kit = read_kit(Path(directory))
            stores[name] = ClientStore(kit.state, kit.job.identity)
            responders[name] = responder_of(kit, stores[name], federation.files[name])
        honest, answers = responders[HOSTILE], []

        def hostile(body: bytes) -> bytes:
            answer = honest(body)
            answers.append(answer)
            self.answers += 1
            if rng is None or rng.random() > share:
                return answer
            message = Grammar(rng, answers).message(answer)
            drawn.append(message.drawn)
            try:
                return message.encode()
            except (ValueError, TypeError, OverflowError):
                return b""

        job = read_kit(Path(kits[HOSTILE])).job
        with quick_waits(1000.0):
            train(
                job,
                LoopbackTransport(responders | {HOSTILE: hostile}),
                folder / "run",
                lines,
                patience=0.0,
            )
        models = {}
        for name in HONEST:
            directory = stores[name].directory / PERSONAL
            models[name] = np.asarray(load_models(directory)[name].theta)
        return models

    def _federation(self, kind: str) -> MarkedFederation:
        if kind not in self._federations:
            shutil.rmtree(self._folder / kind, ignore_errors=True)
            federation = MarkedFederation(kind, self._folder / kind)
            models = self._train(federation, None, 0.0, [], [])
            norms = [float(np.linalg.norm(model)) for model in models.values()]
            self._federations[kind], self._norms[kind] = federation, max(norms)
        return self._federations[kind]

"""Personalized federated learning on JAX: one fitted model per client.

Example:
    >>> import fedtailor as ft
    >>> run = ft.run(ft.UCFL(streams="auto"), ft.scenarios.digits_rotated(seed=0), ft.models.mlp(hidden=64), rounds=50)
    >>> run.summary()

Every algorithm of `fedtailor.algorithms` is also a name of this module. Names are
imported when they are first used, so that importing fedtailor costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedtailor._version import __version__ as __version__

if TYPE_CHECKING:
    from fedtailor import algorithms as algorithms
    from fedtailor import federation as federation
    from fedtailor import models as models
    from fedtailor import tables as tables
    from fedtailor import trackers as trackers
    from fedtailor.algorithms import *  # noqa: F403
    from fedtailor.data.federation import Federation as Federation
    from fedtailor.deployment import model_card as model_card
    from fedtailor.deployment import open_run
    from fedtailor.deployment import unlearn as unlearn
    from fedtailor.engine.executors import Settings as Settings
    from fedtailor.engine.runs import Run as Run
    from fedtailor.engine.runs import run as run
    from fedtailor.engine.storage import PersonalModel as PersonalModel
    from fedtailor.engine.storage import load_models as load_models
    from fedtailor.engine.training import AsynchronousServer as AsynchronousServer
    from fedtailor.engine.training import EarlyStopping as EarlyStopping
    from fedtailor.engine.training import Participation as Participation
    from fedtailor.engine.training import Privacy as Privacy
    from fedtailor.lab import scenarios as scenarios
    from fedtailor.lab.experiments.diagnose import diagnose as diagnose
    from fedtailor.lab.report import plot as plot
    from fedtailor.protocol import SGD as SGD
    from fedtailor.protocol import Diverged as Diverged

    # An assignment, as type checkers take an import under another name as private.
    # Python's own `open` is not hidden: see _NAMES_THERE.
    open = open_run


_MODULES = {
    "algorithms": "fedtailor.algorithms",
    "federation": "fedtailor.data.federation",
    "models": "fedtailor.models",
    "plot": "fedtailor.lab.report.plot",
    "scenarios": "fedtailor.lab.scenarios",
    "tables": "fedtailor.data.tables",
    "trackers": "fedtailor.lab.trackers",
}
_HOMES = {
    "Diverged": "fedtailor.protocol",
    "EarlyStopping": "fedtailor.engine.training",
    "Federation": "fedtailor.data.federation",
    "AsynchronousServer": "fedtailor.engine.training",
    "Participation": "fedtailor.engine.training",
    "Privacy": "fedtailor.engine.training",
    "Run": "fedtailor.engine.runs",
    "PersonalModel": "fedtailor.engine.storage",
    "SGD": "fedtailor.protocol",
    "Settings": "fedtailor.engine.executors",
    "diagnose": "fedtailor.lab.experiments.diagnose",
    "load_models": "fedtailor.engine.storage",
    "model_card": "fedtailor.deployment",
    "open": "fedtailor.deployment",
    "run": "fedtailor.engine.runs",
    "unlearn": "fedtailor.deployment",
}
_NAMES_THERE = {"open": "open_run"}
"""Names that would hide one of Python's where they are defined."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name.startswith("_") or name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        import_module(_HOMES.get(name, "fedtailor.algorithms")),
        _NAMES_THERE.get(name, name),
    )


def __dir__() -> list[str]:
    return [
        "__version__",
        *_MODULES,
        *_HOMES,
        *import_module("fedtailor.algorithms").__all__,
    ]

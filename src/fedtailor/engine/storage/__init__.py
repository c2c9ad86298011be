"""Run directories with exact resume, checkpoints, manifests and exported models."""

from fedtailor.engine.storage.check import Finding, check
from fedtailor.engine.storage.errors import Damaged, InUse, Unusable
from fedtailor.engine.storage.export import export_models, load_models
from fedtailor.engine.storage.interrupts import Interrupted, interrupts
from fedtailor.engine.storage.lock import DirectoryLock
from fedtailor.engine.storage.manifest import manifest
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.engine.storage.run_directory import Checkpoints, RunDirectory

__all__ = [
    "Checkpoints",
    "Damaged",
    "DirectoryLock",
    "Finding",
    "InUse",
    "Interrupted",
    "PersonalModel",
    "RunDirectory",
    "Unusable",
    "check",
    "export_models",
    "interrupts",
    "load_models",
    "manifest",
]

"""Run directories with exact resume, checkpoints, manifests and exported models."""

from fedtailor.storage.check import Finding, check
from fedtailor.storage.errors import Damaged, InUse, Unusable
from fedtailor.storage.export import export_models, load_models
from fedtailor.storage.interrupts import Interrupted, interrupts
from fedtailor.storage.lock import DirectoryLock
from fedtailor.storage.manifest import manifest
from fedtailor.storage.personal_model import PersonalModel
from fedtailor.storage.run_directory import Checkpoints, RunDirectory

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

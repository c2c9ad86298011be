"""What is stored: run directories with exact resume, checkpoints, manifests, exported models."""

from fedtailor.storage.export import export_models, load_models
from fedtailor.storage.manifest import manifest
from fedtailor.storage.run_directory import Checkpoints, Interrupted, RunDirectory, interrupts

__all__ = ["Checkpoints", "Interrupted", "RunDirectory", "export_models", "interrupts", "load_models", "manifest"]

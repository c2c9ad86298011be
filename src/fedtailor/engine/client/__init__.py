"""How one client learns: its examples, its trainer, and what it does in an exchange."""

from fedtailor.engine.client.tasks import client_task
from fedtailor.engine.client.trainer import DeviceTrainer

__all__ = ["DeviceTrainer", "client_task"]

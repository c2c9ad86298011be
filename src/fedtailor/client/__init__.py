"""How one client learns: its examples, its trainer, and what it does in an exchange."""

from fedtailor.client.tasks import client_task
from fedtailor.client.trainer import DeviceTrainer

__all__ = ["DeviceTrainer", "client_task"]

"""Transforms of what travels between clients and the server: `run(..., uplink=(Clip(1.0), Cast("float16")))`."""

from fedtailor.pipelines.cast import Cast
from fedtailor.pipelines.clip import Clip

__all__ = ["Cast", "Clip"]

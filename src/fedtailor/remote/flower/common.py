"""Settings, messages and errors of Flower, for both sides of a federation."""

import logging
import os
import ssl
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx
    from flwr.app import Message, RecordDict

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Environment variables for Flower.

With them Flower connects only to the addresses that it is given, and installs nothing.
"""

MESSAGE_TYPE = "query"
"""Flower's message type; the task of a request is part of the body."""

_RECORD, _BODY = "fedtailor", "body"


def require_flower() -> None:
    """Check that Flower is installed, and set its environment before its first import.

    Raises:
        ValueError: Flower is not installed.
    """
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise ValueError(
            "a federation of machines needs Flower; run: pip install"
            " 'fedtailor[flower]'"
        )
    os.environ.update(SETTINGS)
    logging.getLogger("flwr").setLevel(logging.ERROR)


def wrap(body: bytes) -> "RecordDict":
    """Make the content of a Flower message that carries `body`."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_BODY: body})})


def unwrap(message: "Message") -> bytes:
    """The body of a Flower message; empty, which nobody can decode, if it has none."""
    from flwr.app import ConfigRecord

    if not message.has_content():  # it carries an error
        return b""
    record = message.content.get(_RECORD)
    body = record.get(_BODY) if isinstance(record, ConfigRecord) else None
    return body if isinstance(body, bytes) else b""


def is_untrusted(error: "httpx.TransportError") -> bool:
    """Whether a connection failed because of the other side's certificate."""
    # httpx wraps the error of the TLS library, some versions more than once.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False

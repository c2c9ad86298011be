"""The costs of personalization: traffic, computation, and time over a network."""

from fedtailor.aggregation.accounting.ledger import (
    MODEL_KINDS,
    Entry,
    Ledger,
    LedgerPhase,
    Totals,
)
from fedtailor.aggregation.accounting.wireless import (
    WIRELESS_PRESETS,
    Wireless,
    time_to_reach,
)

__all__ = [
    "MODEL_KINDS",
    "WIRELESS_PRESETS",
    "Entry",
    "Ledger",
    "LedgerPhase",
    "Totals",
    "Wireless",
    "time_to_reach",
]

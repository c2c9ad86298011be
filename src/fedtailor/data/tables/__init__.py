"""Build federations from tables: files or data frames with a column of clients.

Names are imported when they are first used, so that a table's header can be checked
before JAX is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.data.tables.options import TableOptions as TableOptions
    from fedtailor.data.tables.options import TableTask as TableTask
    from fedtailor.data.tables.preprocessing import Preprocessing as Preprocessing
    from fedtailor.data.tables.rates import stable_rate as stable_rate
    from fedtailor.data.tables.reading import ENDINGS as ENDINGS
    from fedtailor.data.tables.table import Table as Table
    from fedtailor.data.tables.table import TableOrigin as TableOrigin
    from fedtailor.data.tables.table import from_table as from_table

_HOMES = {
    "ENDINGS": "reading",
    "Preprocessing": "preprocessing",
    "Table": "table",
    "TableOptions": "options",
    "TableOrigin": "table",
    "TableTask": "options",
    "from_table": "table",
    "stable_rate": "rates",
}

__all__ = [
    "ENDINGS",
    "Preprocessing",
    "Table",
    "TableOptions",
    "TableOrigin",
    "TableTask",
    "from_table",
    "stable_rate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

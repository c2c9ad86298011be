"""Build federations from tables: files or data frames with a column of clients."""

from fedtailor.tables.options import TableOptions, Task
from fedtailor.tables.preprocessing import Preprocessing
from fedtailor.tables.rates import stable_rate
from fedtailor.tables.reading import ENDINGS
from fedtailor.tables.table import Table, TableOrigin, from_table

__all__ = [
    "ENDINGS",
    "Preprocessing",
    "Table",
    "TableOptions",
    "TableOrigin",
    "Task",
    "from_table",
    "stable_rate",
]

"""`Frame`: a table as a field of a dataclass that is kept in a JSON file."""

from typing import Annotated, Any

import polars as pl


def frame_to_json(frame: pl.DataFrame) -> dict[str, Any]:
    """A table as plain values: column -> its type and its values."""
    return {
        column.name: {"type": str(column.dtype), "values": column.to_list()}
        for column in frame.iter_columns()
    }


def frame_from_json(content: Any) -> pl.DataFrame:
    """The table that `frame_to_json` turned into `content`.

    Raises:
        ValueError: `content` is no such table.
    """
    try:
        return pl.DataFrame(
            [
                pl.Series(name, column["values"], getattr(pl, column["type"]))
                for name, column in content.items()
            ]
        )
    except (AttributeError, TypeError, KeyError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"no table: {error}") from None


class _AsTable:
    """Tells pydantic how to read a table."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # not before a file is read

        return core_schema.no_info_plain_validator_function(frame_from_json)


Frame = Annotated[pl.DataFrame, _AsTable]
"""A table, which `fedtailor.protocol.plain.parse` reads."""

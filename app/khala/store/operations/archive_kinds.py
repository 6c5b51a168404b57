"""A kind of row of an account's archive: the query that reads its rows, and the columns that are exported."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Column, Table


class RowKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of row: `query` reads the rows for the user `$1`, and `file` contains them as lines.

    `left_out` are the columns that are not exported, with the reasons. `added` are text columns of the query that the
    table does not have. `imported` says whether an import inserts the lines. `added_later`: older archives lack
    the file. `defaults` are the values of columns that older archives lack; lines leave them out.
    `page` is the number of rows in memory at once.
    """

    name: str
    file: str
    table: Table
    query: str
    left_out: Mapping[str, str] = {}
    added: tuple[str, ...] = ()
    imported: bool = True
    added_later: bool = False
    defaults: Mapping[str, Any] = {}
    page: int = 500

    @property
    def columns(self) -> list["Column[Any]"]:
        """The columns of the table that are exported."""
        return [column for column in self.table.columns if column.name not in self.left_out]

    @property
    def needed(self) -> bool:
        """Whether an archive must have at least one such row."""
        return self.name == "user"

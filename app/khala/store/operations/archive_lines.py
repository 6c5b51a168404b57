"""The lines of an archive: their types, which follow from the columns of the tables, and their encoder."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from sqlalchemy import ARRAY, BigInteger, Column, Integer, LargeBinary, Numeric, SmallInteger
from sqlalchemy.dialects.postgresql import JSONB

from khala.domain.decimals import format_decimal
from khala.store.operations.archive_kinds import RowKind
from khala.store.operations.archive_rows import BASE64
from khala.store.postgres.rows import Record

ZonedTime = Annotated[datetime, msgspec.Meta(tz=True)]
HexText = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*$(?!\n)")]


def line_type(kind: RowKind) -> type[msgspec.Struct]:
    """The struct of a line of this kind: `{type, data}`. The data has a field for each exported column."""
    fields: list[Any] = [_field(kind, column) for column in kind.columns]
    fields += [(name, str | None, None) for name in kind.added]
    data = msgspec.defstruct(
        f"Archived{kind.name.title()}",
        fields,
        rename="camel",
        kw_only=True,
        frozen=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )
    tag = Annotated[str, msgspec.Meta(pattern=rf"^{kind.name}$(?!\n)")]
    return msgspec.defstruct(
        f"Archived{kind.name.title()}Line", [("type", tag), ("data", data)], frozen=True, forbid_unknown_fields=True
    )


def _field(kind: RowKind, column: "Column[Any]") -> Any:
    name, kept = str(column.name), _type(column, base64=f"{kind.table.name}.{column.name}" in BASE64)
    if name in kind.defaults:
        return name, kept, kind.defaults[name]
    if not column.nullable:
        return name, kept
    # A JSON null is a value, unlike the database's NULL.
    return name, kept if kept is msgspec.Raw else kept | None, None


def _type(column: "Column[Any]", *, base64: bool) -> Any:
    match column.type:
        case JSONB():
            return msgspec.Raw
        case ARRAY():
            return list[str]
        case LargeBinary():
            return bytes if base64 else HexText
        case Numeric():
            return Decimal
        case SmallInteger():
            return _whole(16)
        case BigInteger():
            return _whole(64)
        case Integer():
            return _whole(32)
    python = column.type.python_type
    return ZonedTime if python is datetime else python


def _whole(bits: int) -> Any:
    most = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]


class RowEncoder:
    """Encodes rows of one kind as lines."""

    def __init__(self, kind: RowKind) -> None:
        self._line = line_type(kind)
        self._data = self._line.__annotations__["data"]
        self._kind = kind
        self._names = [column.name for column in kind.columns] + list(kind.added)
        self._json = {column.name for column in kind.columns if isinstance(column.type, JSONB)}
        self._encoder = msgspec.json.Encoder()

    def line(self, row: Record) -> bytes:
        """The row as a line, with its line break."""
        values = {name: self._value(name, row[name]) for name in self._names}
        return self._encoder.encode(self._line(self._kind.name, self._data(**values))) + b"\n"

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, bytes) and f"{self._kind.table.name}.{name}" not in BASE64:
            return value.hex()
        if isinstance(value, Decimal):
            return format_decimal(value)
        return msgspec.Raw(value.encode()) if name in self._json and value is not None else value

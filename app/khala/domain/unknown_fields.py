"""Finds the fields of a JSON value that its type does not have, with paths and hints. Pure."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import inspect

MAX_NAME_CHARACTERS = 64
"""Characters of an unknown name that are shown. A longer name gets no hint."""
HINT_SIMILARITY = 0.7
"""The similarity, from 0 to 1, from which a known name is suggested."""


class UnknownField(msgspec.Struct, frozen=True, kw_only=True):
    """A field that its object's type does not have. `path` is like `options.functions[0].nam`.

    `known` has the names that the type has.
    """

    path: str
    name: str
    known: Mapping[str, Any]
    value: Any = None
    kind: Literal["field", "query parameter"] = "field"

    @property
    def hint(self) -> str | None:
        """The name that the client probably meant. It is searched when it is shown: a body may have 100,000 fields."""
        return nearest_name(self.name, self.known)

    @property
    def message(self) -> str:
        """The error message for people."""
        hint = self.hint
        return f"There is no {self.kind} {self.name} here." + (f" Did you mean {hint}?" if hint else "")


class FieldShape(msgspec.Struct, frozen=True, kw_only=True):
    """The field names of a type: an object's fields, or its fields by tag, and the shapes of the values within.

    None instead of a shape allows anything.
    """

    fields: Mapping[str, "FieldShape | None"] | None = None
    tag_field: str | None = None
    by_tag: Mapping[Any, "FieldShape"] = {}
    items: "FieldShape | None" = None
    values: "FieldShape | None" = None


def find(value: Any, kind: Any) -> Iterator[UnknownField]:
    """The unknown fields of this decoded JSON value, in order. A part that does not match the type has none."""
    shape = shape_of(kind)
    return iter(()) if shape is None else _find(value, shape, "")


def nearest_name(name: str, known: Mapping[str, Any]) -> str | None:
    """The known name that the client probably meant; None without one."""
    if len(name) > MAX_NAME_CHARACTERS:
        return None
    by_lower = {known_name.lower(): known_name for known_name in known}
    matches = get_close_matches(name.lower(), by_lower, 1, HINT_SIMILARITY)
    return by_lower[matches[0]] if matches else None


@lru_cache(maxsize=256)
def shape_of(kind: Any) -> FieldShape | None:
    """The field names of a type. The type must not contain itself."""
    return _shape(inspect.type_info(kind))


def _find(value: Any, shape: FieldShape, path: str) -> Iterator[UnknownField]:
    if isinstance(value, dict):
        yield from _find_in_object(value, shape, path)
    elif isinstance(value, list) and shape.items is not None:
        for index, item in enumerate(value):
            yield from _find(item, shape.items, f"{path}[{index}]")


def _find_in_object(value: dict[str, Any], shape: FieldShape, path: str) -> Iterator[UnknownField]:
    if shape.tag_field is not None:
        tag = value.get(shape.tag_field)
        tagged = shape.by_tag.get(tag) if isinstance(tag, str | int) else None
        if tagged is not None:
            yield from _find_in_object(value, tagged, path)
        return
    for name, item in value.items():
        item_shape = shape.values
        item_path = f"{path}.{name[:MAX_NAME_CHARACTERS]}" if path else name[:MAX_NAME_CHARACTERS]
        if shape.fields is not None:
            if name not in shape.fields:
                known = shape.fields if len(name) <= MAX_NAME_CHARACTERS else {}
                yield UnknownField(path=item_path, name=name[:MAX_NAME_CHARACTERS], known=known, value=item)
                continue
            item_shape = shape.fields[name]
        if item_shape is not None:
            yield from _find(item, item_shape, item_path)


def _shape(info: Any) -> FieldShape | None:
    match info:
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.StructType(fields=fields):
            names: dict[str, FieldShape | None] = {field.encode_name: _shape(field.type) for field in fields}
            return FieldShape(fields=names if info.tag_field is None else names | {info.tag_field: None})
        case inspect.UnionType(types=types):
            return _union(types)
        case inspect.DictType(value_type=inner):
            values = _shape(inner)
            return None if values is None else FieldShape(values=values)
        case inspect.CollectionType(item_type=inner):
            items = _shape(inner)
            return None if items is None else FieldShape(items=items)
    return None


def _union(types: Any) -> FieldShape | None:
    """The shape of a union: at most one kind of array, and one kind of object or several with tags."""
    members = [info.type if isinstance(info, inspect.Metadata) else info for info in types]
    by_tag = {
        info.tag: shape
        for info in members
        if isinstance(info, inspect.StructType) and info.tag_field is not None and (shape := _shape(info)) is not None
    }
    tag_field = next((info.tag_field for info in members if isinstance(info, inspect.StructType)), None)
    untagged = [shape for info in members if (shape := _shape(info)) is not None and not _tagged(info)]
    return FieldShape(
        fields=next((shape.fields for shape in untagged if shape.fields is not None), None),
        tag_field=tag_field,
        by_tag=by_tag,
        items=next((shape.items for shape in untagged if shape.items is not None), None),
        values=next((shape.values for shape in untagged if shape.values is not None), None),
    )


def _tagged(info: Any) -> bool:
    return isinstance(info, inspect.StructType) and info.tag_field is not None

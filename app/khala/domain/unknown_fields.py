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
    """A field that its object's type does not have. `path` is like `options.functions[0].nam`."""

    path: str
    name: str
    hint: str | None
    value: Any = None
    kind: Literal["field", "query parameter"] = "field"

    @property
    def message(self) -> str:
        """The error message for people."""
        return f"There is no {self.kind} {self.name} here." + (f" Did you mean {self.hint}?" if self.hint else "")


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
    by_lower = {one.lower(): one for one in known}
    return next((by_lower[one] for one in get_close_matches(name.lower(), by_lower, 1, HINT_SIMILARITY)), None)


@lru_cache(maxsize=256)
def shape_of(kind: Any) -> FieldShape | None:
    """The field names of a type. The type must not contain itself."""
    return _shape(inspect.type_info(kind))


def _find(value: Any, shape: FieldShape, path: str) -> Iterator[UnknownField]:
    if isinstance(value, dict):
        yield from _find_in_object(value, shape, path)
    elif isinstance(value, list) and shape.items is not None:
        for place, one in enumerate(value):
            yield from _find(one, shape.items, f"{path}[{place}]")


def _find_in_object(value: dict[str, Any], shape: FieldShape, path: str) -> Iterator[UnknownField]:
    if shape.tag_field is not None:
        tag = value.get(shape.tag_field)
        tagged = shape.by_tag.get(tag) if isinstance(tag, str | int) else None
        if tagged is not None:
            yield from _find_in_object(value, tagged, path)
        return
    for name, one in value.items():
        within = shape.values
        here = f"{path}.{name[:MAX_NAME_CHARACTERS]}" if path else name[:MAX_NAME_CHARACTERS]
        if shape.fields is not None:
            if name not in shape.fields:
                yield UnknownField(
                    path=here, name=name[:MAX_NAME_CHARACTERS], hint=nearest_name(name, shape.fields), value=one
                )
                continue
            within = shape.fields[name]
        if within is not None:
            yield from _find(one, within, here)


def _shape(info: Any) -> FieldShape | None:
    match info:
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.StructType(fields=fields):
            names: dict[str, FieldShape | None] = {one.encode_name: _shape(one.type) for one in fields}
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
    plain = [one.type if isinstance(one, inspect.Metadata) else one for one in types]
    by_tag = {
        one.tag: shape
        for one in plain
        if isinstance(one, inspect.StructType) and one.tag_field is not None and (shape := _shape(one)) is not None
    }
    tag_field = next((one.tag_field for one in plain if isinstance(one, inspect.StructType)), None)
    others = [shape for one in plain if (shape := _shape(one)) is not None and not _tagged(one)]
    return FieldShape(
        fields=next((one.fields for one in others if one.fields is not None), None),
        tag_field=tag_field,
        by_tag=by_tag,
        items=next((one.items for one in others if one.items is not None), None),
        values=next((one.values for one in others if one.values is not None), None),
    )


def _tagged(info: Any) -> bool:
    return isinstance(info, inspect.StructType) and info.tag_field is not None

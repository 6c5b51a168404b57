"""Building blocks of settings: fields that know their environment variable, and the kinds of values they take."""

import base64
import math
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

MAX_NUMBER = 1_000_000_000
MAX_PATTERN_CHARACTERS = 200


class SettingError(ValueError):
    """A setting cannot be used. The message names it and says what it should be."""


@dataclass(frozen=True, kw_only=True)
class SettingDefinition:
    """One setting: its place in `khala.toml`, its environment variables, and what the documentation says of it."""

    path: tuple[str, ...]
    variables: tuple[str, ...]
    """The first one that is set counts."""
    kind: str
    default: str
    description: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    blank_is_value: bool = False
    """An empty value is a value, and does not stand for the default."""


@dataclass(frozen=True)
class ValueKind:
    """The name of a type's values in the documentation."""

    name: str


def setting(
    variable: str,
    default: Any,
    description: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    shown_default: str | None = None,
    blank_is_value: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field that is read from an environment variable.

    `minimum` and `maximum` are inclusive. `shown_default` is the default in words, where it depends on something else.
    A `secret` is left out of the representation of settings.
    """
    return Field(
        default,
        ge=minimum,
        le=maximum,
        description=description,
        repr=not secret,
        json_schema_extra={
            "variable": variable,
            "unit": unit,
            "minimum": minimum,
            "maximum": maximum,
            "default": shown_default if shown_default is not None else _shown(default),
            "blank_is_value": blank_is_value,
        },
    )


class SettingGroup(BaseModel):
    """Settings of one subject: a table of `khala.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_blank(cls, values: Any) -> Any:
        """Drop empty values, which stand for the default, except where emptiness is a value."""
        table = read_table(values)
        return {name: value for name, value in table.items() if not _is_blank(value, cls.model_fields.get(name))}

    @classmethod
    def definitions(cls, group: str) -> list[SettingDefinition]:
        """The group's settings, in order."""
        return [_definition((group, name), field) for name, field in cls.model_fields.items()]


def read_table(value: object) -> dict[str, Any]:
    """The value, if it is a table. Raises `ValueError`."""
    if not isinstance(value, dict):
        raise ValueError(f"must be a table, not {value!r}.")  # noqa: TRY004  # pydantic reports a ValueError
    return value


def _is_blank(value: object, field: FieldInfo | None) -> bool:
    if field is None:
        return value is None
    return value is None or (value == "" and not _extra(field)["blank_is_value"])


def _definition(path: tuple[str, ...], field: FieldInfo) -> SettingDefinition:
    extra = _extra(field)
    return SettingDefinition(
        path=path,
        variables=(extra["variable"],),
        kind=_kind(field),
        default=extra["default"],
        description=field.description or "",
        unit=extra["unit"],
        minimum=extra["minimum"],
        maximum=extra["maximum"],
        blank_is_value=extra["blank_is_value"],
    )


def _extra(field: FieldInfo) -> dict[str, Any]:
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra


def _kind(field: FieldInfo) -> str:
    """The name of the field's type: of its `ValueKind`, of the choices of a `Literal`, or plain text."""
    for found in (*field.metadata, *get_args(field.annotation)):
        for metadata in (found, *getattr(found, "__metadata__", ())):
            if isinstance(metadata, ValueKind):
                return metadata.name
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    return " or ".join(f"`{choice}`" for choice in choices) or "text"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return f"`{int(default)}`"
    if default is None or default == ():
        return "none"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number, not {value!r}.")  # noqa: TRY004  # pydantic reports a ValueError
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"must be a number, not {value!r}.") from error


def _whole(value: object) -> float:
    number = _number(value)
    if not math.isfinite(number):
        return number  # The bounds refuse it.
    if number != int(number):
        raise ValueError("must be a whole number.")
    return int(number)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    number = _number(value)
    if number not in (0, 1):
        raise ValueError(f"must be 0 or 1, not {value}.")
    return bool(number)


def _amount(value: object) -> Decimal:
    """Keep the digits as they are given: binary fractions would change amounts of money."""
    if not 0 <= _number(value) <= MAX_NUMBER:
        raise ValueError(f"must be between 0 and {MAX_NUMBER}, not {value}.")
    return Decimal(str(value).replace("_", ""))


def _whole_amount(value: object) -> Decimal:
    amount = _amount(value)
    if amount != int(amount):
        raise ValueError("must be a whole number.")
    return amount


def read_words(value: object) -> tuple[str, ...]:
    """Read words separated by commas, or a list of them."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"must be a list of texts, not {value!r}.")
    return tuple(word.strip() for word in words if word.strip())


def _patterns(value: object) -> tuple[str, ...]:
    words = read_words(value)
    if any(len(word) > MAX_PATTERN_CHARACTERS for word in words):
        raise ValueError(f"has a pattern of more than {MAX_PATTERN_CHARACTERS} characters.")
    return words


def _networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(word, strict=False) for word in read_words(value))
    except ValueError as error:
        raise ValueError(f"must be addresses and networks like 10.0.0.0/8: {error}.") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {value!r}.")  # noqa: TRY004  # as above
    return value


def _web_url(value: object) -> str:
    split = urlsplit(_text(value))
    if split.scheme not in ("http", "https") or not split.netloc or split.query or split.fragment:
        raise ValueError(f"must be like https://chat.example.com, not {value!r}.")
    return _text(value)


def _postgres_url(value: object) -> str:
    if urlsplit(_text(value)).scheme.partition("+")[0] not in ("postgres", "postgresql"):
        # The value is not repeated: it may hold a password.
        raise ValueError("must be like postgresql://user:password@host:5432/database.")
    return _text(value)


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser().absolute()


def _address(value: object) -> tuple[str, int]:
    host, _, port = _text(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"must be like 127.0.0.1:9464, not {value!r}.")
    return host, int(port)


def _secret_keys(value: object) -> tuple[bytes, ...]:
    # Its cipher takes time to load, and most commands need none.
    from khala.domain.secret_box import KEY_BYTES

    try:
        keys = tuple(base64.b64decode(word, validate=True) for word in read_words(value))
    except ValueError:
        keys = (b"",)
    if any(len(key) != KEY_BYTES for key in keys):
        # The value is not repeated: it is a secret.
        raise ValueError(f"must be keys of {KEY_BYTES} bytes in base64, as `openssl rand -base64 32` prints.")
    return keys


TextValue: TypeAlias = Annotated[str, BeforeValidator(_text), ValueKind("text")]
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole), ValueKind("whole number")]
Number: TypeAlias = Annotated[float, BeforeValidator(_number), ValueKind("number")]
SwitchValue: TypeAlias = Annotated[bool, BeforeValidator(_switch), ValueKind("`0` or `1`")]
Amount: TypeAlias = Annotated[Decimal, BeforeValidator(_amount), ValueKind("number")]
WholeAmount: TypeAlias = Annotated[Decimal, BeforeValidator(_whole_amount), ValueKind("whole number")]
Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_words), ValueKind("list")]
Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_patterns), ValueKind("list of patterns")]
Networks: TypeAlias = Annotated[
    tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_networks), ValueKind("list of networks")
]
WebUrl: TypeAlias = Annotated[str, BeforeValidator(_web_url), ValueKind("URL")]
PostgresUrl: TypeAlias = Annotated[str, BeforeValidator(_postgres_url), ValueKind("URL")]
FilePath: TypeAlias = Annotated[Path, BeforeValidator(_path), ValueKind("path")]
SecretKeys: TypeAlias = Annotated[tuple[bytes, ...], BeforeValidator(_secret_keys), ValueKind("list of keys")]
NetworkAddress: TypeAlias = Annotated[tuple[str, int], BeforeValidator(_address), ValueKind("address and port")]

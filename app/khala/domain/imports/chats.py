"""A conversation of an export, and its messages in an order in which each follows its parent."""

import base64
import binascii
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal

import msgspec

from khala.domain.chat import MessageRole

MAX_TEXT_CHARACTERS = 100_000
MAX_TITLE_CHARACTERS = 200
MAX_MESSAGES = 5_000
"""Messages of one conversation; the newest are imported."""
MAX_FILES = 10
"""Files of one message."""

Source = Literal["chatgpt", "claude", "open-webui"]


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message: its bytes, or the beginning of its name in the export's archive."""

    name: str
    media_type: str = ""
    content: bytes | None = None
    stem: str | None = None


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of an export. `parent` is the id of the message that it follows in the export."""

    id: str
    parent: str | None
    role: MessageRole
    text: str
    created_at: datetime | None = None
    files: tuple[SourceFile, ...] = ()


class SourceChat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. `leaf` is the id of the last message of its current branch; None without messages."""

    source: Source
    id: str
    title: str | None
    created_at: datetime | None
    messages: tuple[SourceMessage, ...]
    leaf: str | None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of an export's tree. One without a message only links those above and below it."""

    parent: str | None
    message: SourceMessage | None = None


def ordered(
    nodes: Mapping[str, Node], leaf: str | None, left_out: Counter[str]
) -> tuple[list[SourceMessage], str | None]:
    """The messages of the tree, each after its parent and else by time, and the last one of the branch of `leaf`.

    Nodes without a message are removed: what is below them follows what is above. Counts what cannot be reached.
    """
    parents = {key: _kept_ancestor(nodes, node.parent) for key, node in nodes.items() if node.message is not None}
    children: dict[str | None, list[str]] = {}
    for key, parent in parents.items():
        children.setdefault(parent, []).append(key)
    found: list[SourceMessage] = []
    waiting = [_place(nodes, key) for key in children.get(None, ())]
    heapq.heapify(waiting)
    while waiting:
        key = heapq.heappop(waiting)[1]
        message = nodes[key].message
        assert message is not None
        found.append(msgspec.structs.replace(message, id=key, parent=parents[key]))
        for child in children.get(key, ()):
            heapq.heappush(waiting, _place(nodes, child))
    left_out["messages in a damaged tree"] += len(parents) - len(found)
    if len(found) > MAX_MESSAGES:
        left_out["messages of very long conversations"] += len(found) - MAX_MESSAGES
        found = found[-MAX_MESSAGES:]
        kept = {message.id for message in found}
        found = [one if one.parent in kept else msgspec.structs.replace(one, parent=None) for one in found]
    known = {message.id for message in found}
    end = leaf if leaf in known else _kept_ancestor(nodes, leaf)
    if end not in known:
        end = found[-1].id if found else None
    return found, end


def _place(nodes: Mapping[str, Node], key: str) -> tuple[float, str]:
    message = nodes[key].message
    created_at = None if message is None else message.created_at
    return (0.0 if created_at is None else created_at.timestamp()), key


def _kept_ancestor(nodes: Mapping[str, Node], key: str | None) -> str | None:
    """The nearest node from this one upwards that has a message; None without one, and in a circle."""
    seen: set[str] = set()
    while key is not None and key in nodes and key not in seen:
        if nodes[key].message is not None:
            return key
        seen.add(key)
        key = nodes[key].parent
    return None


def text(value: Any) -> str:
    """The value as text that can be stored; empty if it is none."""
    if not isinstance(value, str):
        return ""
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def title(value: Any) -> str | None:
    """The value as a title."""
    return text(value).strip()[:MAX_TITLE_CHARACTERS] or None


def time(value: Any) -> datetime | None:
    """A time in seconds (or a smaller unit, if that would be far ahead) or in ISO 8601; None if it is none."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = float(value)
            if not isfinite(seconds):
                return None
            while seconds > 1e11:
                seconds /= 1000
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def data_url(value: Any, name: str) -> SourceFile | None:
    """The file of a `data:` URL in base64; None if it is none."""
    if not isinstance(value, str) or not value.startswith("data:"):
        return None
    head, _, encoded = value[5:].partition(",")
    if not head.endswith(";base64"):
        return None
    try:
        content = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return None
    return SourceFile(name=name, media_type=head.removesuffix(";base64"), content=content)


def objects(value: Any) -> Iterable[dict[str, Any]]:
    """The objects of a list; nothing if it is none."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()

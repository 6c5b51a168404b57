"""Chats of Open WebUI's export: each has a tree of messages (`history`), whose branches are answers and edits."""

from collections import Counter
from typing import Any

from khala.domain.imports.chats import (
    MAX_FILES,
    Node,
    SourceChat,
    SourceMessage,
    data_url,
    objects,
    ordered,
    text,
    time,
    title,
)


def read(entry: dict[str, Any], left_out: Counter[str]) -> SourceChat:
    """The conversation. Counts what is left out: files that are not in the export."""
    chat = entry["chat"]
    history = _object(chat.get("history"))
    messages = _object(history.get("messages"))
    nodes: dict[str, Node] = {}
    for key, message in messages.items():
        if isinstance(message, dict):
            parent = message.get("parentId")
            nodes[key] = Node(
                parent=parent if isinstance(parent, str) else None, message=_message(key, message, left_out)
            )
    current = history.get("currentId")
    found, leaf = ordered(nodes, current if isinstance(current, str) else None, left_out)
    return SourceChat(
        source="open-webui",
        id=text(entry.get("id") or chat.get("id")),
        title=title(entry.get("title") or chat.get("title")),
        created_at=time(entry.get("created_at") or chat.get("timestamp")),
        messages=tuple(found),
        leaf=leaf,
    )


def _message(key: str, message: dict[str, Any], left_out: Counter[str]) -> SourceMessage | None:
    role, body = message.get("role"), text(message.get("content"))
    files = []
    for attached in objects(message.get("files")):
        file = data_url(attached.get("url"), text(attached.get("name")) or "image")
        if file is None:
            left_out["files that are not in the export"] += 1
        else:
            files.append(file)
    if role not in ("user", "assistant", "system") or (not body.strip() and not files):
        return None
    return SourceMessage(
        id=key,
        parent=None,
        role=role,
        text=body,
        created_at=time(message.get("timestamp")),
        files=tuple(files[:MAX_FILES]),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Conversations of ChatGPT's export: each has a tree of nodes (`mapping`), whose branches are edits and new answers."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from khala.domain.imports.chats import (
    MAX_FILES,
    Node,
    SourceChat,
    SourceFile,
    SourceMessage,
    objects,
    ordered,
    text,
    time,
    title,
)

TEXTS = ("text", "multimodal_text")
POINTERS = ("file-service://", "sediment://")


def read(chat: dict[str, Any], left_out: Counter[str]) -> SourceChat:
    """The conversation. Counts what is left out: the calls of tools, their results, and hidden messages."""
    mapping = chat.get("mapping")
    nodes: dict[str, Node] = {}
    for key, node in (mapping if isinstance(mapping, dict) else {}).items():
        if isinstance(node, dict):
            parent = node.get("parent")
            message = _message(key, node.get("message"), left_out)
            nodes[key] = Node(parent=parent if isinstance(parent, str) else None, message=message)
    current = chat.get("current_node")
    messages, leaf = ordered(nodes, current if isinstance(current, str) else None, left_out)
    return SourceChat(
        source="chatgpt",
        id=text(chat.get("conversation_id") or chat.get("id")),
        title=title(chat.get("title")),
        created_at=time(chat.get("create_time")),
        messages=tuple(messages),
        leaf=leaf,
    )


def _message(key: str, message: Any, left_out: Counter[str]) -> SourceMessage | None:
    if not isinstance(message, dict):
        return None
    author, content, metadata = (_object(message.get(name)) for name in ("author", "content", "metadata"))
    role = author.get("role")
    if role not in ("user", "assistant", "system"):
        left_out["results of tools"] += 1
        return None
    if message.get("recipient", "all") != "all":
        left_out["calls of tools"] += 1
        return None
    body = "".join(_texts(content))
    files = tuple(_files(content, metadata))[:MAX_FILES]
    is_hidden = metadata.get("is_visually_hidden_from_conversation") is True or role == "system"
    if is_hidden or (not body.strip() and not files):
        if body.strip():
            left_out["hidden messages"] += 1
        return None
    return SourceMessage(
        id=key, parent=None, role=role, text=body, created_at=time(message.get("create_time")), files=files
    )


def _texts(content: dict[str, Any]) -> Iterator[str]:
    if content.get("content_type") not in TEXTS or not isinstance(content.get("parts"), list):
        return
    for part in content["parts"]:
        if isinstance(part, dict) and part.get("content_type") == "audio_transcription":
            yield text(part.get("text"))
        yield text(part)


def _files(content: dict[str, Any], metadata: dict[str, Any]) -> Iterator[SourceFile]:
    """The files of a message: first those that `attachments` names, then further images."""
    named: set[str] = set()
    for attached in objects(metadata.get("attachments")):
        stem = text(attached.get("id"))
        if stem:
            named.add(stem)
            media_type = text(attached.get("mimeType") or attached.get("mime_type"))
            yield SourceFile(name=text(attached.get("name")) or stem, media_type=media_type, stem=stem)
    for part in objects(content.get("parts")):
        pointer = text(part.get("asset_pointer"))
        stem = next((pointer.removeprefix(kind) for kind in POINTERS if pointer.startswith(kind)), "")
        if stem and stem not in named:
            named.add(stem)
            yield SourceFile(name=stem, stem=stem)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

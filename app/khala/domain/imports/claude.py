"""Conversations of Claude's export: a list of messages, in newer exports with the parent of each."""

from collections import Counter
from typing import Any

from khala.domain.chat import MessageRole
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

ROLES: dict[str, MessageRole] = {"human": "user", "user": "user", "assistant": "assistant"}


def read(chat: dict[str, Any], left_out: Counter[str]) -> SourceChat:
    """The conversation. Counts what is left out: reasoning, calls of tools, and files without content."""
    nodes: dict[str, Node] = {}
    previous: str | None = None
    for index, message in enumerate(objects(chat.get("chat_messages"))):
        key = text(message.get("uuid")) or f"message {index}"
        # Without its parent, a message follows the one before it.
        parent = text(message["parent_message_uuid"]) if message.get("parent_message_uuid") else previous
        nodes[key] = Node(parent=parent, message=_message(key, message, left_out))
        previous = key
    current = chat.get("current_leaf_message_uuid")
    messages, leaf = ordered(nodes, current if isinstance(current, str) else previous, left_out)
    return SourceChat(
        source="claude",
        id=text(chat.get("uuid")),
        title=title(chat.get("name")),
        created_at=time(chat.get("created_at")),
        messages=tuple(messages),
        leaf=leaf,
    )


def _message(key: str, message: dict[str, Any], left_out: Counter[str]) -> SourceMessage | None:
    role = ROLES.get(text(message.get("sender")))
    blocks = list(objects(message.get("content")))
    parts = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    body = "\n\n".join(filter(None, parts)) or text(message.get("text"))
    for kind, name in (("thinking", "reasoning"), ("tool_use", "calls of tools"), ("tool_result", "results of tools")):
        left_out[name] += sum(block.get("type") == kind for block in blocks)
    files = []
    for attached in objects(message.get("attachments")):
        name, extracted = text(attached.get("file_name")) or "attachment", text(attached.get("extracted_content"))
        if extracted:
            files.append(SourceFile(name=name, media_type="text/plain", content=extracted.encode()))
        else:
            left_out["files that are not in the export"] += 1
    left_out["files that are not in the export"] += sum(1 for _ in objects(message.get("files")))
    if role is None or (not body.strip() and not files):
        return None
    return SourceMessage(
        id=key,
        parent=None,
        role=role,
        text=body,
        created_at=time(message.get("created_at")),
        files=tuple(files[:MAX_FILES]),
    )

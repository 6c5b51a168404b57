"""Writes the messages of a thread as a Markdown document, message by message. No I/O."""

from typing import assert_never

from khala.domain.chat import Message, MessageRole, Thread
from khala.domain.fold import Block, CompactionBlock, DataBlock, FileBlock, NoticeBlock, TextBlock, ToolBlock

AUTHORS: dict[MessageRole, str] = {"user": "User", "assistant": "Assistant", "system": "Instructions"}
UNTITLED = "Chat"


def write_beginning(thread: Thread) -> str:
    """The title of the document."""
    return f"# {_line(thread.title or UNTITLED)}\n"


def write_message(message: Message) -> str:
    """A message, with its author and time. Its own Markdown stays as it is."""
    author = _line(message.author_name or AUTHORS[message.role])
    head = f"\n## {author} · {message.created_at:%Y-%m-%d %H:%M} UTC\n"
    return head + "".join(f"\n{text}\n" for block in message.content or () if (text := _block(block)))


def _block(block: Block) -> str:
    match block:
        case TextBlock():
            return block.text.strip("\n")
        case ToolBlock():
            return f"> Tool `{_line(block.tool)}`: {_line(block.summary or block.state)}"
        case FileBlock():
            return f"> File: {_line(block.blob.name or block.blob.media_type)}"
        case NoticeBlock():
            return f"> {_line(block.message)}"
        case CompactionBlock() | DataBlock():
            return ""
        case _:
            assert_never(block)


def _line(text: str) -> str:
    """The text as one line, in which no character begins a line of Markdown."""
    return " ".join(text.split()).replace("`", "'")

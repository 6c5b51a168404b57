"""The prompt for a command: its instructions, the recent conversation as text, and the question."""

from collections.abc import Iterator, Sequence

from khala.domain.chat import Message
from khala.domain.fold import FileBlock, text_of

MAX_MESSAGES = 20
"""Earlier messages in a prompt."""
MAX_MESSAGE_CHARACTERS = 8_000
"""Characters of an earlier message, of which the end is kept."""
ROLES = {"user": "User", "assistant": "Assistant", "system": "System"}


def build(instructions: str, history: Sequence[Message], *, max_bytes: int) -> str | None:
    """The prompt for the last message of the history. Earlier messages are left out as far as it would be too long.

    None if it is too long even without them.
    """
    *earlier, question = history
    task = _text(question)
    room = max_bytes - len(_join(instructions, [], task).encode())
    if room < 0:
        return None
    return _join(instructions, list(_newest(earlier, room)), task)


def _join(instructions: str, earlier: list[str], task: str) -> str:
    if earlier:
        conversation = "\n\n".join(reversed(earlier))
        task = f"The conversation so far:\n\n{conversation}\n\nThe new message:\n\n{task}"
    return "\n\n".join(filter(None, (instructions.strip(), task)))


def _newest(messages: Sequence[Message], room: int) -> Iterator[str]:
    """The newest messages that fit, the newest first."""
    room -= len(_join("", [" "], "").encode())
    for message in reversed(messages[-MAX_MESSAGES:]):
        text = _text(message)[-MAX_MESSAGE_CHARACTERS:]
        if not text.strip():
            continue
        entry = f"{ROLES[message.role]}: {text}"
        room -= len(entry.encode()) + 2
        if room < 0:
            return
        yield entry


def _text(message: Message) -> str:
    """The text of a message. Files are only named."""
    content = message.content or ()
    names = [f"[File: {block.blob.name or block.blob.media_type}]" for block in content if isinstance(block, FileBlock)]
    return "\n".join(filter(None, (text_of(content), *names)))

"""Requests of the AI SDK's chat transports. Fields that Khala does not use are ignored: each version adds some."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_CHAT_ID_CHARACTERS = 200
MAX_MESSAGES = 1_000
MAX_MESSAGE_ID_CHARACTERS = 200
MAX_PARTS = 1_000
"""Of one message."""

ChatId = Annotated[str, Meta(min_length=1, max_length=MAX_CHAT_ID_CHARACTERS)]
MessageId = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_ID_CHARACTERS)]


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The user's answer to a request for approval, as `addToolApprovalResponse` stores it in the tool's part."""

    id: str
    approved: bool = False
    reason: str | None = None


class ChatRequestPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a message, as far as Khala reads it: a text, a file or the state of a tool call."""

    type: str
    text: str = ""
    url: str = ""
    filename: str | None = None
    tool_call_id: str = ""
    state: str = ""
    provider_executed: bool | None = None
    approval: ApprovalAnswer | None = None
    output: Any = None
    error_text: str = ""


class ChatRequestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the client's list. Only the parts of the messages that matter are read."""

    id: MessageId
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)] = []


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A POST of the AI SDK. The thread is the history: of `messages`, the last one is answered.

    `options` are those of `POST /api/threads/{thread_id}/send`; send them as `body: { options }`.
    """

    id: ChatId
    messages: Annotated[list[ChatRequestMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: MessageId | None = None
    options: dict[str, Any] = {}


class UiMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the AI SDK's `UIMessage`."""

    id: str
    role: Literal["system", "user", "assistant"]
    metadata: dict[str, Any]
    parts: list[dict[str, Any]]

"""Reads the messages of a request: questions, results of the client's tools, and decisions. Without I/O."""

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from khala.api.ag_ui.types import AgentInputPart, AgentRequestMessage, PartSource, ResumeEntry
from khala.api.blobs.attached_files import MAX_FILES, AttachedFile, decode_data_url
from khala.api.chats.chat_ids import as_uuid
from khala.api.chats.client_results import ClientResult
from khala.api.chats.questions import BLOB_PATH, ApprovalReply, ChatQuestion, read_approval_id
from khala.api.validation import check_json, check_message_text, check_text
from khala.domain.errors import InvalidInput

CANCELED_BY_USER = "Canceled by the user."
FILE_KINDS = ("image", "audio", "video", "document")
MAX_REASON_CHARACTERS = 1_000

T = TypeVar("T")


def read_messages(messages: Sequence[dict[str, Any]]) -> list[AgentRequestMessage]:
    """Return the messages. Raises `InvalidInput`."""
    return [_convert(message, AgentRequestMessage, f"messages[{i}]") for i, message in enumerate(messages)]


def _convert(value: Any, kind: type[T], path: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{problem}.", path=path + where.rstrip("`")) from error


def read_question(message: AgentRequestMessage, path: str) -> ChatQuestion:
    """Return a user's message. Raises `InvalidInput` for content that cannot be stored."""
    content = message.content or ""
    given: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [_convert(part, AgentInputPart, f"{path}.content[{i}]") for i, part in enumerate(given)]
    texts = [part.text for part in parts if part.type == "text" and part.text]
    files: list[AttachedFile] = []
    uploads: list[UUID] = []
    urls = [_url(part.source) for part in parts if part.type in FILE_KINDS and part.source is not None]
    for url in urls:
        uploaded = BLOB_PATH.fullmatch(url)
        blob_id = as_uuid(uploaded[1]) if uploaded else None
        if blob_id is not None:
            uploads.append(blob_id)
        else:
            files.append(decode_data_url(url, name=None, path=f"{path}.content"))
    if len(urls) > MAX_FILES:
        raise InvalidInput(f"A message has at most {MAX_FILES} files.", path=f"{path}.content")
    text = check_message_text("\n".join(texts), may_be_empty=bool(urls))
    return ChatQuestion(
        client_id=check_text(message.id, f"{path}.id"),
        text=text,
        files=tuple(files),
        uploads=tuple(uploads),
        urls=tuple(urls),
    )


def _url(source: PartSource) -> str:
    return source.value if source.type == "url" else f"data:{source.mime_type};base64,{source.value}"


def possible_ids(message: AgentRequestMessage, thread_id: UUID) -> list[UUID]:
    """Return the ids under which the thread may have an earlier message, which may be one that it never got."""
    if message.role == "user":
        try:
            return read_question(message, "messages").possible_ids(thread_id)
        except InvalidInput:
            return []
    known = as_uuid(message.id.partition(":")[0]) if message.role == "assistant" else None
    return [known] if known else []


def read_results(messages: Sequence[AgentRequestMessage]) -> list[ClientResult]:
    """Return the results of calls at the end of the list. Raises `InvalidInput`."""
    found: dict[str, ClientResult] = {}
    for index in range(len(messages) - 1, -1, -1):
        message, path = messages[index], f"messages[{index}]"
        if message.role != "tool":
            break
        content = message.content or ""
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        check_json([text, message.error, message.tool_call_id], path)
        result = ClientResult(call_id=message.tool_call_id, ok=not message.error, output=message.error or text)
        found.setdefault(result.call_id, result)
    return list(found.values())[::-1]


def read_decisions(entries: Sequence[ResumeEntry]) -> list[ApprovalReply]:
    """Return the decisions about one run's calls. Raises `InvalidInput`."""
    decisions = [_decision(entry, f"resume[{index}]") for index, entry in enumerate(entries)]
    if not decisions:
        raise InvalidInput("Answer at least one interrupt.", path="resume")
    if any(decision.run_id != decisions[0].run_id for decision in decisions):
        raise InvalidInput("These decisions are about calls of several runs.", path="resume")
    return decisions


def _decision(entry: ResumeEntry, path: str) -> ApprovalReply:
    run_id, digest, call_id = read_approval_id(entry.interrupt_id, f"{path}.interruptId")
    payload = {"approved": entry.payload} if isinstance(entry.payload, bool) else entry.payload
    if entry.status == "cancelled":
        payload = {"approved": False, "reason": CANCELED_BY_USER}
    if not isinstance(payload, dict) or not isinstance(payload.get("approved"), bool):
        raise InvalidInput("Send {approved: true} or {approved: false} as the payload.", path=f"{path}.payload")
    reason, edited = payload.get("reason"), payload.get("editedArgs")
    if reason is not None and not isinstance(reason, str):
        raise InvalidInput("The reason is a text.", path=f"{path}.payload.reason")
    if edited is not None and (not isinstance(edited, dict) or not payload["approved"]):
        raise InvalidInput("editedArgs are an object, with approved: true.", path=f"{path}.payload.editedArgs")
    return ApprovalReply(
        run_id=run_id,
        digest=digest,
        call_id=call_id,
        approved=payload["approved"],
        reason=check_text(reason, f"{path}.payload.reason")[:MAX_REASON_CHARACTERS] if reason else None,
        edited_args=edited,
    )


def read_instructions(messages: Sequence[AgentRequestMessage]) -> list[str]:
    """Return the texts of the messages for the model: those of the application, and none of a person."""
    asked = [message.content for message in messages if message.role in ("system", "developer")]
    return [content for content in asked if isinstance(content, str) and content]

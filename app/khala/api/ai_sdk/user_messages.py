"""Reads the messages of a request: the text and files of a user's message, and the answers to requests for approval."""

from uuid import UUID

import msgspec

from khala.api.ai_sdk.client_results import results_in
from khala.api.ai_sdk.types import ApprovalAnswer, ChatRequestMessage, ChatRequestPart
from khala.api.blobs.attached_files import MAX_FILES, decode_data_url
from khala.api.chats.chat_ids import as_uuid
from khala.api.chats.client_results import ClientResult
from khala.api.chats.questions import BLOB_PATH, ApprovalReply, ChatQuestion, read_approval_id
from khala.api.validation import check_message_text, check_text
from khala.domain.errors import InvalidInput


def read_user_message(message: ChatRequestMessage, path: str) -> ChatQuestion:
    """Return the message. Raises `InvalidInput` for content that cannot be stored."""
    texts, files, uploads, urls = [], [], [], []
    for index, part in enumerate(_parts(message, path)):
        if part.type == "text":
            texts.append(part.text)
        elif part.type == "file":
            urls.append(part.url)
            uploaded = BLOB_PATH.fullmatch(part.url)
            blob_id = as_uuid(uploaded[1]) if uploaded else None
            if blob_id is not None:
                uploads.append(blob_id)
            else:
                files.append(decode_data_url(part.url, name=_name(part, path), path=f"{path}.parts[{index}].url"))
    if len(urls) > MAX_FILES:
        raise InvalidInput(f"A message has at most {MAX_FILES} files.", path=f"{path}.parts")
    text = check_message_text("\n".join(texts), may_be_empty=bool(urls))
    check_text(message.id, f"{path}.id")
    return ChatQuestion(client_id=message.id, text=text, files=tuple(files), uploads=tuple(uploads), urls=tuple(urls))


def possible_ids(message: ChatRequestMessage, thread_id: UUID) -> list[UUID]:
    """Return the ids under which the thread may have an earlier message, which may be one that it never got."""
    if message.role == "user":
        try:
            return read_user_message(message, "messages").possible_ids(thread_id)
        except (InvalidInput, msgspec.ValidationError):
            return []
    known = as_uuid(message.id)
    return [known] if known else []


def read_results(message: ChatRequestMessage, path: str) -> list[ClientResult]:
    """Return the results of the client's own tools in the last step. Raises `InvalidInput`."""
    return results_in(_parts(message, path), f"{path}.parts")


def read_decisions(message: ChatRequestMessage, path: str) -> list[ApprovalReply]:
    """Return the user's decisions that no result has followed. Raises `InvalidInput` for an id that is not Khala's."""
    answered = [part.approval for part in _parts(message, path) if part.state == "approval-responded" and part.approval]
    return [_decision(answer, path) for answer in answered]


def _decision(answer: ApprovalAnswer, path: str) -> ApprovalReply:
    run_id, digest, call_id = read_approval_id(answer.id, f"{path}.parts")
    reason = None if not answer.reason else check_text(answer.reason, f"{path}.parts")[:1000]
    return ApprovalReply(run_id=run_id, digest=digest, call_id=call_id, approved=answer.approved, reason=reason)


def _parts(message: ChatRequestMessage, path: str) -> list[ChatRequestPart]:
    try:
        return msgspec.convert(message.parts, list[ChatRequestPart])
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{problem}.", path=f"{path}.parts{where.rstrip('`')}") from error


def _name(part: ChatRequestPart, path: str) -> str | None:
    return check_text(part.filename, path)[:200] if part.filename else None

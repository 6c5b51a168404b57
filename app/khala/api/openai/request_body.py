"""Parses the body of a completion request, and names the options in it that are ignored."""

from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from khala.api.openai.types import (
    CompletionBody,
    DeveloperMessage,
    FilePart,
    ImagePart,
    MessageContent,
    RefusalPart,
    RequestMessage,
    SystemMessage,
    TextPart,
    UserMessage,
)
from khala.api.validation import check_text
from khala.domain import unknown_fields
from khala.domain.errors import InvalidInput, PayloadTooLarge

MAX_COMPLETION_BODY_BYTES = 8 << 20
"""Includes files, which the body contains as data URLs."""
MAX_TEXT_BYTES = 1 << 20
"""Without files. The same limit as for other requests."""
MAX_MESSAGES = 1000
MAX_IGNORED_PATHS = 64
"""Paths that one response lists."""
EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Values that request nothing."""

decoder = msgspec.json.Decoder(CompletionBody)


def parse(body: bytes) -> CompletionBody:
    """Return the decoded body.

    Raises `InvalidInput` if it is malformed or asks for something unsupported, and `PayloadTooLarge` if it is too large
    without its files.
    """
    try:
        request = decoder.decode(body)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=place.rstrip("`").removeprefix(".")) from error
    _refuse_unsupported(request)
    if len(body) - sum(map(file_characters, request.messages)) > MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"A request has at most {MAX_TEXT_BYTES:,} bytes besides its files.")
    return request


def text_of(content: MessageContent, path: str) -> str:
    """Return the text of a message that may only contain text. Raises `InvalidInput`."""
    if content is None or isinstance(content, str):
        return check_text(content or "", path)
    texts = []
    for part in content:
        match part:
            case TextPart():
                texts.append(part.text)
            case RefusalPart():
                texts.append(part.refusal)
            case _:
                raise InvalidInput("Only a user's message may have files.", path=path)
    return check_text("".join(texts), path)


def _refuse_unsupported(request: CompletionBody) -> None:
    """Raise `InvalidInput` for options that would change the answer's meaning if they were ignored."""
    refused = {
        "top_logprobs": (bool(request.top_logprobs) and not request.logprobs, "Send logprobs: true with it."),
        "modalities": (request.modalities not in (None, [], ["text"]), "Only text is supported."),
        "functions": (bool(request.functions), "Send functions as tools."),
        "function_call": (request.function_call not in (None, "auto"), "Send functions as tools."),
        "max_tokens": (
            request.max_output_tokens is not None and request.max_output_tokens < 1,
            "max_tokens must be at least 1.",
        ),
        "messages": (not 1 <= len(request.messages) <= MAX_MESSAGES, f"Send 1 to {MAX_MESSAGES:,} messages."),
    }
    for name, (is_refused, message) in refused.items():
        if is_refused:
            raise InvalidInput(message, path=name)


def file_characters(message: RequestMessage) -> int:
    """Return how many characters of the message are its files."""
    if not isinstance(message, UserMessage) or not isinstance(message.content, list):
        return 0
    return sum(len(file_of(part)[0]) for part in message.content if isinstance(part, ImagePart | FilePart))


def file_of(part: ImagePart | FilePart) -> tuple[str, str | None]:
    """Return the URL of the file, and its name."""
    if isinstance(part, ImagePart):
        return part.image_url.url, None
    return part.file.file_data or "", part.file.filename


def ignored_paths(body: Any, request: CompletionBody, thread_id: UUID | None) -> tuple[str, ...]:
    """Return the paths of the decoded body that have no effect, such as `tools[0].function.strict`: the first 64.

    Instructions are ignored in a thread that continues. Clients learn from the list that an option is not honoured.
    """
    unknown = unknown_fields.find(body, CompletionBody)
    ignored = list(islice((field.path for field in unknown if field.value not in EMPTY), MAX_IGNORED_PATHS))
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        ignored.append("max_tokens")
    instructions = SystemMessage | DeveloperMessage
    if thread_id is not None:
        messages = enumerate(request.messages)
        ignored += [f"messages[{index}]" for index, message in messages if isinstance(message, instructions)]
    return tuple(ignored[:MAX_IGNORED_PATHS])

"""Says which places of a request for a chat completion change nothing, so that no client takes them for honoured."""

from itertools import islice
from typing import Any
from uuid import UUID

from khala.api.openai.request_body import Completion, DeveloperMessage, SystemMessage
from khala.domain import unknown_fields

MAX_IGNORED = 64
"""Places that one answer lists."""
EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Values that ask for nothing."""


def places(body: Any, asked: Completion, thread_id: UUID | None) -> tuple[str, ...]:
    """The places of this decoded body that are not honoured, as in `tools[0].function.strict`; of many, the first.

    In a thread that goes on, instructions are not sent.
    """
    unknown = unknown_fields.find(body, Completion)
    found = list(islice((one.path for one in unknown if one.value not in EMPTY), MAX_IGNORED))
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        found.append("max_tokens")
    instructions = SystemMessage | DeveloperMessage
    if thread_id is not None:
        found += [f"messages[{place}]" for place, one in enumerate(asked.messages) if isinstance(one, instructions)]
    return tuple(found[:MAX_IGNORED])

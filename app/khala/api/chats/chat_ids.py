"""Maps the ids that clients make up to the ids of threads and messages.

The same id of the same caller always gives the same thread, and the same content under the same id the same message.
So a request that arrives twice finds what the first one stored. Ids of answers follow from ids that all readers of a
thread know, and are of a version that no client can give to a message: nobody else can take them.
"""

import hashlib
import re
from collections.abc import Sequence
from uuid import UUID

from khala.domain import ids
from khala.domain.access import Caller, author_id_of_key
from khala.domain.errors import InvalidInput, Unauthorized

CANONICAL_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def as_uuid(text: str) -> UUID | None:
    """Return the UUID if the text is one in its usual form."""
    return UUID(text) if CANONICAL_UUID.fullmatch(text) else None


def thread_id_of(chat_id: str, caller: Caller) -> UUID:
    """Return the id of the chat's thread: the chat's id if it is a UUID, else one that belongs to the caller.

    Raises `Unauthorized` without credentials, and `InvalidInput` for a caller who has only a share key, and for an id
    with a slash, which no path can contain.
    """
    if "/" in chat_id:
        raise InvalidInput("A chat's id has no slash.", path="id")
    thread_id = as_uuid(chat_id)
    if thread_id is not None:
        return thread_id
    if caller.user_id is not None:
        return ids.derived(caller.user_id, f"chat:{chat_id}", version=ids.RESERVED_VERSION)
    if caller.anon_key_hash is not None:
        author_id = author_id_of_key(caller.anon_key_hash)
        return ids.derived(author_id, f"chat:{chat_id}", version=ids.RESERVED_VERSION)
    if caller.share_key_hash is not None:
        raise InvalidInput("A share link opens one thread. Use the thread's id as the chat's id.", path="id")
    raise Unauthorized("Sign in, or send a key of your own as X-Anon-Key.")


def message_id_of(thread_id: UUID, client_id: str, text: str, urls: Sequence[str]) -> UUID:
    """Return the id under which a user's message is stored. Another content under the same id is another message."""
    content = hashlib.sha256()
    for value in (text, *urls):
        encoded = value.encode(errors="surrogatepass")
        content.update(len(encoded).to_bytes(8) + encoded)
    return ids.derived(thread_id, f"message:{client_id}:{content.hexdigest()}")


def regenerated_id(message_id: UUID) -> UUID:
    """Return the id of the answer that replaces this one."""
    return ids.derived(message_id, "regenerated", version=ids.RESERVED_VERSION)


def results_id(thread_id: UUID, call_ids: Sequence[str]) -> UUID:
    """Return the id of the copy of an answer that has the results of these calls."""
    return ids.derived(thread_id, _results_name(call_ids), version=ids.RESERVED_VERSION)


def is_results_id(message_id: UUID, thread_id: UUID, call_ids: Sequence[str]) -> bool:
    """Whether the message is the copy of an answer that has the results of these calls: also one of version 0.1."""
    earlier = ids.derived(thread_id, _results_name(call_ids))
    return message_id in (results_id(thread_id, call_ids), earlier)


def _results_name(call_ids: Sequence[str]) -> str:
    return "results:" + ",".join(sorted(call_ids))


def answer_id_of(owner: UUID, run_id: str) -> UUID:
    """Return the id of the answer of a run to which a client has given an id, for the run's author or thread."""
    return ids.derived(owner, f"run:{run_id}", version=ids.RESERVED_VERSION)

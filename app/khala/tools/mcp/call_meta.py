"""The fields of a call's `_meta` that Khala sends to MCP servers."""

from khala.domain.tools import ToolActor

IDEMPOTENCY_KEY_FIELD = "khala/idempotencyKey"
"""The key of the call, the same for each attempt."""
USER_FIELD = "khala/user"
"""The id of the user for whom the tool acts. A guest has none."""
THREAD_FIELD = "khala/thread"
"""The id of the thread that the call belongs to."""


def call_meta(key: str, actor: ToolActor, *, share_identity: bool) -> dict[str, str]:
    """The fields for a call. The user and the thread are named only to a server that the operator trusts with them."""
    meta = {IDEMPOTENCY_KEY_FIELD: key}
    if share_identity:
        ids = {USER_FIELD: actor.user_id, THREAD_FIELD: actor.thread_id}
        meta |= {field: str(value) for field, value in ids.items() if value is not None}
    return meta

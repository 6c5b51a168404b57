"""The order in which a transaction takes locks, so that no two transactions wait for each other.

A transaction that waits for a lock holds none that comes later in this order. Postgres ends one of the transactions of
a cycle with a deadlock error; in this order there is no cycle. The tests read the locks of every statement that
Khala runs, and fail where a transaction breaks the order (`tests/support/lock_order.py`).

How to keep it:

- Lock first, change later. A lock that the transaction holds already may be requested again at any time.
- Lock several rows of a table by one statement, in the order of their keys: `SELECT … ORDER BY id FOR NO KEY UPDATE`.
  An `UPDATE` or `DELETE` of several rows names no order, so it comes after such a statement, or contains one.
- `FOR UPDATE SKIP LOCKED` never waits, so it may come at any time.
- An `INSERT` waits where another transaction is inserting the same key: for example a message id, which clients choose.
- An `INSERT` locks the rows that its foreign keys refer to (`FOR KEY SHARE`), and a `DELETE` the rows that it cascades
  to. Before rows that refer to a user are changed, lock the user.
"""

LOCK_ORDER = (
    "deleted_accounts",
    "completion_requests",  # and, just before it, the advisory lock of equal requests
    "gate",  # advisory, of an owner: `owners.close_gate`
    "keeping",  # advisory, of an uploader and then of a thread: `blobs.add`
    "threads",
    "thread_resets",
    "plans",
    "runs",
    "messages",  # an `INSERT` only
    "objects",
    "usage_ledger",
    "budgets",
    "users",
    "webhook_endpoints",
    "stream_subscriptions",
    "space",  # advisory, of the streams of an account: `byte_reservations.lock_free_bytes`
    "streams",
    "owner",  # advisory, of an owner: `owners.lock`
    "push_subscriptions",
    "processes",
    "search_walk",
    "stream_signing_keys",
    "push_keys",
    "usage_rollup",
)
"""Tables and advisory locks, each before those that follow. Several rows of a table are locked in order of key."""

GUARDS = {
    # The purge of a reset thread holds only the row of `thread_resets`: no other transaction changes marked rows.
    "messages": ("threads", "thread_resets"),
    "message_parts": ("threads", "thread_resets"),
    "receipts": ("threads", "thread_resets"),
    "approvals": ("threads", "thread_resets"),
    "memberships": ("threads", "users"),
    "invitations": ("threads", "users"),
    "share_links": ("threads",),
    "detail_tokens": ("threads", "thread_resets"),
    "ephemeral_threads": ("threads",),
    "guest_listings": ("threads",),
    "thread_deletions": ("threads", "users"),
    "title_jobs": ("threads", "users"),
    "message_feedback": ("threads", "thread_resets", "users"),
    "preferences": ("owner", "users"),
    "thread_folders": ("owner", "users"),
    "folder_files": ("owner", "users"),
    "blobs": ("threads", "thread_resets"),
    "plan_steps": ("threads", "thread_resets"),
    "plan_events": ("threads", "thread_resets"),
    "listings": ("users",),
    "files": ("owner", "threads", "users"),
    "todos": ("owner", "threads", "users"),
    "memories": ("owner", "threads", "users"),
    "memory_proposals": ("owner", "threads", "users"),
    "memory_settings": ("owner", "threads", "users"),
    "memory_extractions": ("owner", "threads", "users"),
    "usage_receipts": ("usage_ledger", "threads", "users"),
    "schedules": ("threads", "users"),
    "search_segments": ("search_walk",),
    "search_queue": ("threads", "search_walk"),
    "stream_chunks": ("streams",),
    "stream_producers": ("streams",),
    "stream_links": ("stream_subscriptions",),
    # Only deliveries of the endpoint and the purge change rows that are stored.
    "webhook_deliveries": ("webhook_endpoints",),
    # Only deliveries and the purge change rows that are stored.
    "push_messages": ("push_subscriptions",),
    "passwords": ("users",),
    "identities": ("users",),
    "sessions": ("users",),
    "api_tokens": ("users",),
    "oidc_logins": ("users",),
    "oauth_grants": ("users",),
    # A refresh changes its own row and nothing else.
    "mcp_accounts": ("users",),
    "mcp_authorizations": ("users",),
    # Nothing else is changed with a client.
    "mcp_clients": (),
    "oauth_clients": (),
    "user_tools": ("users",),
    "agents": ("users",),
    "agent_links": ("users",),
    # Only the holder of the one row of `usage_rollup` counts.
    "spend_days": ("usage_rollup",),
    "spend_user_days": ("usage_rollup",),
    "spend_windows": ("usage_rollup",),
    "tool_days": ("usage_rollup",),
    "blob_owners": ("usage_rollup",),
    # An executor writes only its own row.
    "executors": (),
    # Stripes are locked with SKIP LOCKED, or deleted with their window.
    "budget_stripes": ("budgets",),
    # A process writes only its own rows; only a transaction that holds its row cleans up after it.
    "presences": ("processes",),
}
"""Tables whose rows are changed under one of these locks, so that their own locks never wait: they have no place in the
order. A transaction that changes rows of one such table and nothing else needs no guard.
"""

UNCONTENDED = frozenset(
    {
        "deleted_accounts",
        "runs",
        "usage_ledger",
        "budget_stripes",
        "users",
        "message_parts",
        "receipts",
        "approvals",
        "share_links",
        "detail_tokens",
        "blobs",
        "folder_files",
        "plan_steps",
        "plan_events",
        "sessions",
        "api_tokens",
        "oidc_logins",
        "oauth_clients",
        "oauth_grants",
        "mcp_accounts",
        "mcp_authorizations",
        "todos",
        "memories",
        "memory_proposals",
        "usage_receipts",
        "agents",
        "search_segments",
        "search_queue",
        "webhook_endpoints",
        "webhook_deliveries",
        "push_messages",
        "audit",
        "spend_days",
        "spend_user_days",
        "spend_windows",
        "tool_days",
        "blob_owners",
        "executors",
    }
)
"""Tables into which an `INSERT` never waits: the server has just created the key, or holds a lock that guards it."""

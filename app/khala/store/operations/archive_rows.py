"""The rows of an account's archive: its tables and columns, and the reasons why others are left out.

Each kind of row is one query over one table. A column is exported unless `left_out` names it with the reason;
`archive_exclusions` names the tables without a kind. A test compares both with the schema.
"""

from khala.store.memories import memories
from khala.store.operations.archive_kinds import RowKind
from khala.store.schema import tables
from khala.store.threads.reset_marks import IS_BLOB, IS_MESSAGE, IS_PLAN, IS_RUN

MINE = "(SELECT id FROM threads WHERE owner_id = $1 AND deleted_at IS NULL)"
MY_RUNS = f"(SELECT id FROM runs WHERE thread_id IN {MINE} AND {IS_RUN})"
MY_PLANS = f"(SELECT id FROM plans WHERE thread_id IN {MINE} AND {IS_PLAN})"
IS_VALID = "coalesce(expires_at > clock_timestamp(), true)"
BASE64 = frozenset({"files.content", "stream_chunks.data"})
"""Columns whose bytes are written in base64; all others are hashes, and are written as hex digits."""


KINDS: tuple[RowKind, ...] = (
    RowKind(
        name="user",
        file="user.jsonl",
        table=tables.users,
        query="SELECT * FROM users WHERE id = $1",
        left_out={
            "revision": "counts the changes of one server's list",
            "floor_revision": "as `revision`",
            "invited_revision": "as `revision`",
            "admin": "a decision of one server's operator",
            "blocked_at": "as `admin`",
            "budget_plan": "as `admin`",
            "budget_limits": "as `admin`",
        },
    ),
    RowKind(
        name="login",
        file="logins.jsonl",
        table=tables.passwords,
        query="SELECT * FROM passwords WHERE user_id = $1",
        left_out={"user_id": "the user", "hash": "a secret"},
        imported=False,
    ),
    RowKind(
        name="identity",
        file="identities.jsonl",
        table=tables.identities,
        query="SELECT * FROM identities WHERE user_id = $1 ORDER BY issuer, subject",
        left_out={"user_id": "the user"},
    ),
    RowKind(
        name="session",
        file="sessions.jsonl",
        table=tables.sessions,
        query="SELECT * FROM sessions WHERE user_id = $1 ORDER BY id",
        left_out={"user_id": "the user", "secret_hash": "a secret", "id_token": "a secret"},
        imported=False,
    ),
    RowKind(
        name="token",
        file="tokens.jsonl",
        table=tables.api_tokens,
        query="SELECT * FROM api_tokens WHERE user_id = $1 ORDER BY id",
        left_out={
            "user_id": "the user",
            "secret_hash": "a secret",
            **dict.fromkeys(("service", "user_issuer"), "services belong to one server's operator"),
        },
        imported=False,
    ),
    RowKind(
        name="thread",
        file="threads.jsonl",
        table=tables.threads,
        query="SELECT * FROM threads WHERE owner_id = $1 AND deleted_at IS NULL ORDER BY id",
        left_out={
            "owner_id": "the user",
            "anon_key_hash": "a secret",
            "access_id": "means something to one server only",
            "deleted_at": "deleted threads are not exported",
        },
    ),
    RowKind(
        name="listing",
        file="listings.jsonl",
        table=tables.listings,
        query=f"SELECT * FROM listings WHERE user_id = $1 AND NOT gone AND thread_id IN {MINE} ORDER BY thread_id",
        left_out={
            "user_id": "the user",
            "revision": "counts the changes of one server's list",
            "gone": "entries that are gone are not exported",
        },
        defaults={"pinned": False, "archived": False},
    ),
    RowKind(
        name="plan",
        file="plans.jsonl",
        table=tables.plans,
        query=f"SELECT * FROM plans WHERE thread_id IN {MINE} AND {IS_PLAN} ORDER BY id",
        left_out={
            "requester_key_id": "stands for a key of one server",
            "network": "of one server's budgets; plans that go on are paused by an import",
            "creator_id": "is for notifications; may stand for a key of one server",
            "edited_by": "is for notifications; plans that go on are paused by an import",
            "epoch": "of one server's drivers",
            "lease_owner": "of one server's drivers",
            "lease_expires_at": "of one server's drivers",
        },
        added_later=True,
        page=20,
    ),
    RowKind(
        name="step",
        file="steps.jsonl",
        table=tables.plan_steps,
        query=f"SELECT * FROM plan_steps WHERE plan_id IN {MY_PLANS} ORDER BY plan_id, position",
        added_later=True,
        page=100,
    ),
    RowKind(
        name="event",
        file="events.jsonl",
        table=tables.plan_events,
        query=f"SELECT * FROM plan_events WHERE plan_id IN {MY_PLANS} ORDER BY plan_id, seq",
        added_later=True,
        page=100,
    ),
    RowKind(
        name="message",
        file="messages.jsonl",
        table=tables.messages,
        query=f"SELECT * FROM messages WHERE thread_id IN {MINE} AND {IS_MESSAGE} ORDER BY thread_id, position",
        page=20,
    ),
    RowKind(
        name="run",
        file="runs.jsonl",
        table=tables.runs,
        query=f"SELECT * FROM runs WHERE thread_id IN {MINE} AND {IS_RUN} ORDER BY thread_id, position, id",
        left_out={
            "fairness_key": "of one server's queue",
            "lost": "of one server's executors",
            "started_at": "of one server's queue",
            "lease_owner": "of one server's executors",
            "lease_expires_at": "of one server's executors",
            "traceparent": "of one server's traces",
            "asker_key_id": "stands for a key of one server",
            "remote_owner_id": "of one server's workers",
            "remote_claim": "of one server's workers",
            "remote_request": "of one server's workers",
            "remote_deadline": "of one server's workers",
        },
        page=20,
    ),
    RowKind(
        name="part",
        file="parts.jsonl",
        table=tables.message_parts,
        query="SELECT part.* FROM runs JOIN message_parts AS part"
        " ON part.run_id = runs.id AND part.thread_id = runs.thread_id"
        f" WHERE runs.thread_id IN {MINE} AND {IS_RUN} ORDER BY part.run_id, part.seq",
    ),
    RowKind(
        name="receipt",
        file="receipts.jsonl",
        table=tables.receipts,
        query=f"SELECT * FROM receipts WHERE thread_id IN {MINE} AND run_id IN {MY_RUNS} ORDER BY run_id, seq",
    ),
    RowKind(
        name="approval",
        file="approvals.jsonl",
        table=tables.approvals,
        query=f"SELECT * FROM approvals WHERE thread_id IN {MINE} AND run_id IN {MY_RUNS}"
        " ORDER BY run_id, tool_call_id",
        page=10,
    ),
    RowKind(
        name="feedback",
        file="feedback.jsonl",
        table=tables.message_feedback,
        query="SELECT * FROM message_feedback WHERE person_id = $1 ORDER BY message_id",
        left_out={"person_id": "the user"},
        imported=False,
        added_later=True,
        page=100,
    ),
    RowKind(
        name="preference",
        file="preferences.jsonl",
        table=tables.preferences,
        query="SELECT * FROM preferences WHERE subject_id = $1",
        left_out={"subject_id": "the user", "anon_key_hash": "accounts have none"},
        added_later=True,
    ),
    RowKind(
        name="folder",
        file="folders.jsonl",
        table=tables.thread_folders,
        query='SELECT * FROM thread_folders WHERE subject_id = $1 ORDER BY name COLLATE "C"',
        left_out={"subject_id": "the user", "anon_key_hash": "accounts have none"},
        added_later=True,
        page=100,
    ),
    RowKind(
        name="charge",
        file="charges.jsonl",
        table=tables.usage_ledger,
        query=f"SELECT * FROM usage_ledger WHERE run_id IN {MY_RUNS}"
        " AND (scope IN ('thread', 'run') OR (scope = 'user' AND key = uuid_send($1))) ORDER BY run_id, scope, measure",
        left_out={"key": "follows from the scope"},
        imported=False,
    ),
    RowKind(
        name="usage",
        file="usage.jsonl",
        table=tables.budgets,
        query="SELECT * FROM budgets WHERE scope = 'user' AND key = uuid_send($1) ORDER BY measure, starts_at",
        left_out={"key": "the user"},
        imported=False,
    ),
    RowKind(
        name="blob",
        file="blobs.jsonl",
        table=tables.blobs,
        query=f"SELECT * FROM blobs WHERE thread_id IN {MINE} AND {IS_VALID} AND {IS_BLOB} ORDER BY id",
        left_out={"signature": "follows from the bytes", "message_id": "follows from the messages and runs"},
    ),
    RowKind(
        name="folder_file",
        file="folder_files.jsonl",
        table=tables.folder_files,
        query="SELECT * FROM folder_files WHERE user_id = $1 ORDER BY id",
        left_out={"user_id": "the user"},
        added_later=True,
    ),
    RowKind(
        name="member",
        file="members.jsonl",
        table=tables.memberships,
        query="SELECT memberships.*, users.name FROM memberships JOIN users ON users.id = memberships.user_id"
        f" WHERE thread_id IN {MINE} ORDER BY thread_id, user_id",
        added=("name",),
    ),
    RowKind(
        name="link",
        file="links.jsonl",
        table=tables.share_links,
        query=f"SELECT * FROM share_links WHERE thread_id IN {MINE} AND {IS_VALID} AND kind = 'link' ORDER BY"
        " thread_id, id",
        left_out={"key_hash": "a secret", "kind": "thread tokens are not exported"},
        imported=False,
    ),
    RowKind(
        name="membership",
        file="memberships.jsonl",
        table=tables.memberships,
        query="SELECT memberships.*, threads.title FROM memberships JOIN threads ON threads.id = memberships.thread_id"
        " WHERE user_id = $1 AND threads.deleted_at IS NULL ORDER BY thread_id",
        added=("title",),
        left_out={"user_id": "the user"},
        imported=False,
    ),
    RowKind(
        name="invitation",
        file="invitations.jsonl",
        table=tables.invitations,
        query="SELECT invitations.*, threads.title FROM invitations JOIN threads ON threads.id = invitations.thread_id"
        f" WHERE (user_id = $1 OR thread_id IN {MINE}) AND threads.deleted_at IS NULL ORDER BY thread_id, user_id",
        added=("title",),
        imported=False,
    ),
    RowKind(
        name="written",
        file="written.jsonl",
        table=tables.messages,
        query="SELECT messages.* FROM messages JOIN threads ON threads.id = messages.thread_id"
        " WHERE author_id = $1 AND threads.owner_id IS DISTINCT FROM $1 AND threads.deleted_at IS NULL"
        f" AND {IS_MESSAGE}"
        " ORDER BY messages.id",
        imported=False,
        page=20,
    ),
    RowKind(
        name="file",
        file="files.jsonl",
        table=tables.files,
        query='SELECT * FROM files WHERE owner_id = $1 ORDER BY path COLLATE "C"',
        left_out={"owner_id": "the user"},
        page=4,
    ),
    RowKind(
        name="todo",
        file="todos.jsonl",
        table=tables.todos,
        query="SELECT * FROM todos WHERE owner_id = $1 ORDER BY id",
        left_out={"owner_id": "the user"},
    ),
    RowKind(
        name="memory",
        file="memories.jsonl",
        table=tables.memories,
        query=memories.EXPORT,
        left_out={
            "owner_id": "the user, or the thread for its own memories",
            "space_id": "follows from the owner",
            "fingerprint": "follows from the text",
            "terms": "follow from the text",
            "generation": "of one server's vectors",
            "key": "of one server's calls",
        },
    ),
    RowKind(
        name="tool",
        file="tools.jsonl",
        table=tables.user_tools,
        query='SELECT * FROM user_tools WHERE user_id = $1 ORDER BY name COLLATE "C"',
        left_out={"user_id": "the user"},
        page=20,
    ),
    RowKind(
        name="agent",
        file="agents.jsonl",
        table=tables.agents,
        query="SELECT * FROM agents WHERE user_id = $1 ORDER BY id",
        left_out={"user_id": "the user"},
        page=20,
    ),
    RowKind(
        name="stream",
        file="streams.jsonl",
        table=tables.streams,
        query="SELECT * FROM streams WHERE user_id = $1 AND name IS NOT NULL ORDER BY id",
        left_out={
            "user_id": "the user",
            "space_id": "the user",
            "inherited_ids": "follow from the source",
            "inherited_ends": "follow from the source",
        },
        imported=False,
        added_later=True,
    ),
    RowKind(
        name="chunk",
        file="stream_chunks.jsonl",
        table=tables.stream_chunks,
        query="SELECT stream_chunks.* FROM streams JOIN stream_chunks ON stream_chunks.stream_id = streams.id"
        " WHERE user_id = $1 AND name IS NOT NULL ORDER BY stream_id, position",
        imported=False,
        added_later=True,
        page=4,
    ),
    RowKind(
        name="call",
        file="calls.jsonl",
        table=tables.usage_receipts,
        query="SELECT * FROM usage_receipts WHERE user_id = $1 ORDER BY id",
        left_out={"user_id": "the user"},
        imported=False,
    ),
    RowKind(
        name="trace",
        file="audit.jsonl",
        table=tables.audit,
        query="SELECT * FROM audit WHERE user_id = $1 ORDER BY id",
        left_out={"user_id": "the user"},
    ),
)
"""The kinds, in the order of an import."""
OBJECTS = f"""
    SELECT sha256, max(size) AS size FROM (
        SELECT sha256, size FROM blobs WHERE thread_id IN {MINE} AND {IS_VALID} AND {IS_BLOB}
        UNION ALL
        SELECT sha256, size FROM folder_files WHERE user_id = $1
    ) AS referred GROUP BY 1 ORDER BY 1
"""

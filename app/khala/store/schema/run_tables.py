"""Tables of runs: parts, receipts, approvals, completion requests, detail tokens, budgets and their usage."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import INSERT_ONLY, OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, thread_id_column, time_column

runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    thread_id_column(),
    Column("message_id", Uuid, nullable=False),
    Column("user_message_id", Uuid, nullable=False),
    # The position of the message before its answer: the runs of a thread are executed in this order. Runs at the same
    # position are executed at once: those of further choices have the position of the first one's run.
    Column("position", Integer, nullable=False),
    # The thread's revision in which the run was queued.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # The queue is fair between the values of this column: the owner, or the thread of a caller without an account.
    Column("fairness_key", Uuid, nullable=False),
    Column("status", Text, nullable=False),
    Column("options", JSONB, nullable=False),
    # The requester, if they have an account: tools act for them.
    Column("user_id", Uuid),
    # The author id of the key that the requester presented (`author_id_of_key`); null if they presented none.
    Column("asker_key_id", Uuid),
    Column("epoch", Integer, nullable=False, server_default="0"),
    # Executors that were lost while they executed the run, without giving up the lease themselves.
    Column("lost", SmallInteger, nullable=False, server_default="0"),
    Column("steps", SmallInteger, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    time_column("lease_expires_at", nullable=True),
    time_column("cancel_requested_at", nullable=True),
    Column("finish", JSONB),
    time_column("created_at"),
    # The time of the first claim by an executor or worker; null for runs that began under a version without it.
    time_column("started_at", nullable=True),
    time_column("finished_at", nullable=True),
    # The W3C trace context of the request that queued the run, if it is traced.
    Column("traceparent", Text),
    # The parts, once they are packed, and the hash chain over them: `khala.domain.packed_parts`.
    Column("parts_layout", LargeBinary),
    Column("parts_digest", LargeBinary),
    # The plan of which the run executes a step. Such runs go beside the others of the thread.
    Column("plan_id", Uuid),
    # The owner of the remote agent of which only workers execute the run; null for the server's executors.
    Column("remote_owner_id", Uuid),
    # The last claim by a worker, as "token id:epoch", and the id that the worker gave to its request.
    Column("remote_claim", Text),
    Column("remote_request", Uuid),
    # The time at which the run fails unless a worker claims it; null until it is first seen waiting.
    time_column("remote_deadline", nullable=True),
    CheckConstraint("status IN ('queued', 'running', 'blocked', 'final', 'error', 'canceled')", name="status"),
    Index("runs_user_message_id_idx", "user_message_id", "position"),
    Index("runs_thread_id_id_idx", "thread_id", "id"),
    Index("runs_active_idx", "status", "id", postgresql_where=text("status IN ('queued', 'running', 'blocked')")),
    Index(
        "runs_active_remote_owner_id_idx",
        "remote_owner_id",
        postgresql_where=text("remote_owner_id IS NOT NULL AND status IN ('queued', 'running', 'blocked')"),
    ),
    Index(
        "runs_active_fairness_key_idx",
        "fairness_key",
        postgresql_where=text("status IN ('queued', 'running', 'blocked')"),
    ),
    Index(
        "runs_active_thread_id_idx",
        "thread_id",
        "position",
        postgresql_where=text("status IN ('queued', 'running', 'blocked')"),
    ),
    # Of ended runs only: a run gets one entry, at its end, and not one at each change of its status.
    Index(
        "runs_ended_user_id_idx",
        "user_id",
        "id",
        postgresql_where=text("user_id IS NOT NULL AND status IN ('final', 'error', 'canceled')"),
    ),
    Index(
        "runs_ended_agent_idx",
        text("(options ->> 'agent')"),
        "id",
        postgresql_where=text("options ->> 'agent' IS NOT NULL AND status IN ('final', 'error', 'canceled')"),
    ),
    Index("runs_failed_idx", "status", "id", postgresql_where=text("status IN ('error', 'canceled')")),
    Index(
        "runs_failed_user_id_idx",
        "user_id",
        "status",
        "id",
        postgresql_where=text("user_id IS NOT NULL AND status IN ('error', 'canceled')"),
    ),
    postgresql_with=OFTEN_UPDATED,
)

message_parts = Table(
    "message_parts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("message_id", Uuid, nullable=False),
    Column("thread_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False),
    time_column("created_at"),
    # No foreign keys: they would cost a lookup and a row lock for each part. Deleting a thread deletes its parts.
    # No other index: its entries would be a fifth of the WAL of a part. Runs lead to the parts of a thread.
    postgresql_with=INSERT_ONLY,
)

receipts = Table(
    "receipts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("seq", Integer, primary_key=True),
    thread_id_column(),
    Column("type", Text, nullable=False),
    Column("tool_call_id", Text),
    Column("data", JSONB, nullable=False),
    Column("cost_usd", Numeric(20, 10)),
    # The hash of this receipt and of the previous receipt's hash.
    Column("hash", LargeBinary),
    time_column("created_at"),
    CheckConstraint("type IN ('model', 'tool')", name="type"),
    Index("receipts_thread_id_idx", "thread_id"),
    # A few bytes for each 32 pages: the rows are stored in the order of their times.
    Index(
        "receipts_created_at_idx",
        "created_at",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
    postgresql_with=INSERT_ONLY,
)

# Tool calls that wait for approval, and the decisions.
approvals = Table(
    "approvals",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("tool_call_id", Text, primary_key=True),
    thread_id_column(),
    Column("tool", Text, nullable=False),
    Column("args", JSONB, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("digest", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    # Requested before the thread was claimed: the call now acts for the new owner, who alone may approve it.
    Column("asker_only", Boolean, nullable=False, server_default="false"),
    Column("reason", Text),
    Column("edited_args", JSONB(none_as_null=True)),
    Column("decided_by", Uuid),
    Column("decided_name", Text),
    time_column("created_at"),
    required_time_column("expires_at"),
    time_column("decided_at", nullable=True),
    # How far an approval reaches, if further than to this call: `run` or `thread`.
    Column("allowed", Text),
    CheckConstraint("state IN ('pending', 'approved', 'denied', 'expired')", name="state"),
    Index("approvals_thread_id_idx", "thread_id"),
    Index("approvals_pending_idx", "expires_at", postgresql_where=text("state = 'pending'")),
)

# Requests that clients may send again, and the run that each has queued. There are no foreign keys to users and runs,
# because those rows are locked later, and an idempotency key must stay known after its run was deleted.
completion_requests = Table(
    "completion_requests",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("user_id", Uuid, nullable=False),
    # The hash of its Idempotency-Key, if it had one.
    Column("key_hash", LargeBinary),
    # The hash of its body and of everything else that determines the answer.
    Column("fingerprint", LargeBinary, nullable=False),
    # The number of the attempt that queued the run, and of the latest one that joined it.
    Column("first_attempt", SmallInteger, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    time_column("created_at"),
    required_time_column("expires_at"),
    Index("completion_requests_user_id_key_hash_key", "user_id", "key_hash", unique=True),
    Index("completion_requests_user_id_fingerprint_idx", "user_id", "fingerprint", "created_at"),
    Index("completion_requests_expires_at_idx", "expires_at"),
)

# Tokens that give the details of single tool calls to clients without other credentials, until they expire.
detail_tokens = Table(
    "detail_tokens",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    thread_id_column(),
    Column("run_id", Uuid, nullable=False),
    Column("tool_call_id", Text, nullable=False),
    required_time_column("expires_at"),
    Index("detail_tokens_thread_id_idx", "thread_id"),
    Index("detail_tokens_expires_at_idx", "expires_at"),
)

# The usage of a limit in one of its windows. `key` is the subject of the limit: a run's or user's id, or a key's hash.
budgets = Table(
    "budgets",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("measure", Text, primary_key=True),
    required_time_column("starts_at", primary_key=True),
    required_time_column("ends_at"),
    Column("reserved", Numeric(20, 10), nullable=False, server_default="0"),
    Column("settled", Numeric(20, 10), nullable=False, server_default="0"),
    Index("budgets_ends_at_idx", "ends_at"),
    postgresql_with={"fillfactor": 70} | OFTEN_UPDATED,
)

# Rows among which a window that all sends share is divided. The usage of the window is the sum over its row of
# `budgets` and its stripes. A stripe has left what its own usage is below zero: see `khala.store.budgets.stripes`.
budget_stripes = Table(
    "budget_stripes",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("measure", Text, primary_key=True),
    required_time_column("starts_at", primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("reserved", Numeric(20, 10), nullable=False, server_default="0"),
    Column("settled", Numeric(20, 10), nullable=False, server_default="0"),
    # The limit under which the share was granted. Reservations under a lower limit may not take from it.
    Column("most", Numeric(20, 10), nullable=False),
    ForeignKeyConstraint(
        ["scope", "key", "measure", "starts_at"],
        ["budgets.scope", "budgets.key", "budgets.measure", "budgets.starts_at"],
        name="budget_stripes_window_fkey",
        ondelete="CASCADE",
    ),
    postgresql_with={"fillfactor": 70} | OFTEN_UPDATED,
)

# The amount that each run has reserved of a budget, and the amount that it used.
usage_ledger = Table(
    "usage_ledger",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("key", LargeBinary, nullable=False),
    required_time_column("starts_at"),
    Column("reserved", Numeric(20, 10), nullable=False),
    Column("settled", Numeric(20, 10)),
    Column("most", Numeric(20, 10), nullable=False),
    time_column("created_at"),
    Index("usage_ledger_created_at_idx", "created_at"),
    postgresql_with=OFTEN_UPDATED,
)

# Calls of models that no run has made: extractions of memories, and embeddings. Their budgets are in `usage_ledger`,
# under the id of the call. No foreign keys: a call stays when its thread or run is deleted before its account.
usage_receipts = Table(
    "usage_receipts",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid),
    Column("thread_id", Uuid),
    Column("run_id", Uuid),
    Column("purpose", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("cost_usd", Numeric(20, 10)),
    time_column("created_at"),
    CheckConstraint("purpose IN ('extraction', 'embedding', 'title')", name="purpose"),
    Index("usage_receipts_user_id_idx", "user_id", "id"),
    Index("usage_receipts_thread_id_idx", "thread_id"),
    Index("usage_receipts_created_at_idx", "created_at"),
)

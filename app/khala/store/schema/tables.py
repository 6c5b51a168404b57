"""The one schema. Alembic's migrations equal it; a test says so."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}

metadata = MetaData(naming_convention=NAMES)


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    default = None if nullable else func.now()
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def _moment(name: str, *, primary_key: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, primary_key=primary_key)


def _thread_id(*, primary_key: bool = False) -> Column[object]:
    key = ForeignKey("threads.id", ondelete="CASCADE")
    return Column("thread_id", Uuid, key, nullable=False, primary_key=primary_key)


threads = Table(
    "threads",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner_id", Uuid),
    Column("anon_key_hash", LargeBinary),
    Column("title", Text),
    Column("visibility", Text, nullable=False, server_default="private"),
    # Changes with every flush: no index may name it or `updated_at`, so that updates stay HOT.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("meta_revision", BigInteger, nullable=False, server_default="0"),
    Column("reset_revision", BigInteger, nullable=False, server_default="0"),
    # Another one whenever it changes who may do what: whoever was let in under an earlier one is checked again.
    Column("access_id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    # The message that the next one follows unless it says otherwise.
    Column("active_leaf", Uuid),
    Column("tool_rules", JSONB),
    # The user, or the id that stands for the key, by whom the rules were set: they loosen nobody else's calls.
    Column("tool_rules_by", Uuid),
    _time("created_at"),
    _time("updated_at"),
    # A deleted thread is closed at once; what is in it is purged a little later, and the row last.
    _time("deleted_at", nullable=True),
    CheckConstraint("visibility IN ('private', 'link', 'public')", name="visibility"),
    Index("threads_anon_key_hash_idx", "anon_key_hash", "created_at", "id"),
    Index("threads_owner_id_idx", "owner_id"),
    Index("threads_unclaimed_idx", "created_at", "id", postgresql_where=text("owner_id IS NULL")),
    Index("threads_deleted_at_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    # Room on each page for the next versions of its rows, which HOT needs.
    postgresql_with={"fillfactor": 70},
)

messages = Table(
    "messages",
    metadata,
    Column("id", Uuid, primary_key=True),
    _thread_id(),
    Column("position", Integer, nullable=False),
    Column("parent_id", Uuid),
    Column("role", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("author_id", Uuid),
    Column("author_name", Text),
    Column("run_id", Uuid),
    Column("seq", Integer, nullable=False, server_default="0"),
    Column("content", JSONB),
    Column("finish", JSONB),
    Column("revision", BigInteger, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    CheckConstraint("role IN ('user', 'assistant', 'system')", name="role"),
    CheckConstraint("status IN ('draft', 'streaming', 'final', 'error', 'canceled')", name="status"),
    Index("messages_thread_id_position_key", "thread_id", "position", unique=True),
    Index("messages_thread_id_revision_idx", "thread_id", "revision"),
    Index("messages_author_id_idx", "author_id", postgresql_where=text("author_id IS NOT NULL")),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    _thread_id(),
    Column("message_id", Uuid, nullable=False),
    Column("user_message_id", Uuid, nullable=False),
    # The place in the thread before its answer: runs of a thread go in this order.
    Column("position", Integer, nullable=False),
    # That of the thread in which it was asked for.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # Whose turn it is among those who wait: the owner, or the thread of a caller without an account.
    Column("fairness_key", Uuid, nullable=False),
    Column("status", Text, nullable=False),
    Column("options", JSONB, nullable=False),
    # Who asked, if they have an account: tools act for them.
    Column("user_id", Uuid),
    # Stands for the key that the asker showed, as `khala.domain.access.author_of` makes it; null if they showed none.
    Column("asker_key_id", Uuid),
    Column("epoch", Integer, nullable=False, server_default="0"),
    # Executors that were lost over it, and did not let go by themselves.
    Column("lost", SmallInteger, nullable=False, server_default="0"),
    Column("steps", SmallInteger, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    _time("lease_expires_at", nullable=True),
    _time("cancel_requested_at", nullable=True),
    Column("finish", JSONB),
    _time("created_at"),
    _time("finished_at", nullable=True),
    # W3C's, of the request that asked for it, if it is traced.
    Column("traceparent", Text),
    CheckConstraint("status IN ('queued', 'running', 'blocked', 'final', 'error', 'canceled')", name="status"),
    Index("runs_user_message_id_idx", "user_message_id", "position"),
    Index("runs_thread_id_idx", "thread_id"),
    Index("runs_active_idx", "status", "id", postgresql_where=text("status IN ('queued', 'running', 'blocked')")),
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
    _time("created_at"),
    # No foreign keys here: they would cost a lookup and a row lock a part; who deletes a thread deletes its parts.
    Index("message_parts_thread_id_revision_idx", "thread_id", "revision"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("seq", Integer, primary_key=True),
    _thread_id(),
    Column("type", Text, nullable=False),
    Column("tool_call_id", Text),
    Column("data", JSONB, nullable=False),
    Column("cost_usd", Numeric(20, 10)),
    # Of this receipt and the hash of the one before it.
    Column("hash", LargeBinary),
    _time("created_at"),
    CheckConstraint("type IN ('model', 'tool')", name="type"),
    Index("receipts_thread_id_idx", "thread_id"),
)

# Calls that wait for somebody's word, and what it was.
approvals = Table(
    "approvals",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("tool_call_id", Text, primary_key=True),
    _thread_id(),
    Column("tool", Text, nullable=False),
    Column("args", JSONB, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("digest", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    # Asked before a claim: the call would act for another person by now, who alone may approve of it.
    Column("asker_only", Boolean, nullable=False, server_default="false"),
    Column("reason", Text),
    Column("edited_args", JSONB(none_as_null=True)),
    Column("decided_by", Uuid),
    Column("decided_name", Text),
    _time("created_at"),
    _moment("expires_at"),
    _time("decided_at", nullable=True),
    CheckConstraint("state IN ('pending', 'approved', 'denied', 'expired')", name="state"),
    Index("approvals_thread_id_idx", "thread_id"),
    Index("approvals_pending_idx", "expires_at", postgresql_where=text("state = 'pending'")),
)

# What the blob store keeps, by the SHA-256 of its content. `touched_at` is when somebody last meant to refer to it.
objects = Table(
    "objects",
    metadata,
    Column("sha256", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("stored", Boolean, nullable=False, server_default="false"),
    _time("touched_at"),
    Index("objects_touched_at_idx", "touched_at"),
)

# What refers to an object, and opens it to whoever may read the thread.
blobs = Table(
    "blobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("run_id", Uuid),
    Column("sha256", LargeBinary, ForeignKey("objects.sha256"), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("name", Text),
    Column("preview", Text, nullable=False, server_default=""),
    # Of an upload: by whom, and whether a message has it by now.
    Column("author_id", Uuid),
    Column("attached", Boolean, nullable=False, server_default="true"),
    _time("created_at"),
    _time("expires_at", nullable=True),
    Index("blobs_thread_id_idx", "thread_id"),
    Index("blobs_sha256_idx", "sha256"),
    Index("blobs_expires_at_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    Index("blobs_waiting_idx", "author_id", postgresql_where=text("NOT attached")),
)

# The files that an agent sees: a user's, or those of a guest's thread. Paths are names only, no path leaves the rows.
files = Table(
    "files",
    metadata,
    Column("owner_id", Uuid, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    _time("changed_at"),
)

todos = Table(
    "todos",
    metadata,
    Column("owner_id", Uuid, primary_key=True),
    Column("id", Integer, primary_key=True),
    Column("text", Text, nullable=False),
    # The call that made it: the same call again makes no second one.
    Column("key", Text),
    _time("created_at"),
    _time("completed_at", nullable=True),
    Index("todos_owner_id_key_key", "owner_id", "key", unique=True),
)

users = Table(
    "users",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text),
    Column("email", Text),
    # Counts the changes of the user's list of threads, as a thread's revision counts those of the thread; a cursor
    # below the floor can't be served, because what it would have to hear of was forgotten.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("floor_revision", BigInteger, nullable=False, server_default="0"),
    # The revision at which the user's invitations changed last.
    Column("invited_revision", BigInteger, nullable=False, server_default="0"),
    # What the user's tool calls may do without being asked.
    Column("tool_rules", JSONB),
    _time("created_at"),
    postgresql_with={"fillfactor": 70},
)


def _user_id(*, primary_key: bool = False) -> Column[object]:
    key = ForeignKey("users.id", ondelete="CASCADE")
    return Column("user_id", Uuid, key, nullable=False, primary_key=primary_key)


# Tools that a user had made for themselves, and whether they approved of them.
user_tools = Table(
    "user_tools",
    metadata,
    _user_id(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("language", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("timeout", SmallInteger, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    _time("created_at"),
    _time("decided_at", nullable=True),
    CheckConstraint("state IN ('pending', 'approved', 'rejected')", name="state"),
)

# Threads that end by themselves and are on nobody's list, and when.
ephemeral_threads = Table(
    "ephemeral_threads",
    metadata,
    _thread_id(primary_key=True),
    _moment("expires_at"),
    Index("ephemeral_threads_expires_at_idx", "expires_at"),
)

# Requests that may be sent again, and the run that each has begun. No keys to users and runs: whoever locks those comes
# later, and a key that is known must stay known when its run is gone.
completion_requests = Table(
    "completion_requests",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("user_id", Uuid, nullable=False),
    # Of its Idempotency-Key, if it had one.
    Column("key_hash", LargeBinary),
    # Of its body and of what else says what is asked for.
    Column("fingerprint", LargeBinary, nullable=False),
    # The try that began the run, and the latest that has joined it.
    Column("first_attempt", SmallInteger, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    _time("created_at"),
    _moment("expires_at"),
    Index("completion_requests_user_id_key_hash_key", "user_id", "key_hash", unique=True),
    Index("completion_requests_user_id_fingerprint_idx", "user_id", "fingerprint", "created_at"),
    Index("completion_requests_expires_at_idx", "expires_at"),
)

# Keys to the details of single tool calls, for clients that hold nothing else; each ends by itself.
detail_tokens = Table(
    "detail_tokens",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    _thread_id(),
    Column("run_id", Uuid, nullable=False),
    Column("tool_call_id", Text, nullable=False),
    _moment("expires_at"),
    Index("detail_tokens_thread_id_idx", "thread_id"),
    Index("detail_tokens_expires_at_idx", "expires_at"),
)

passwords = Table(
    "passwords",
    metadata,
    _user_id(primary_key=True),
    Column("email", Text, nullable=False),
    Column("hash", Text, nullable=False),
    _time("changed_at"),
    Index("passwords_email_key", "email", unique=True),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    _user_id(),
    Column("email", Text),
    _time("created_at"),
    Index("identities_user_id_idx", "user_id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    _user_id(),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("user_agent", Text),
    Column("network", Text),
    # Of a session that began at an OpenID Provider: what ends it there, too.
    Column("id_token", Text),
    _time("created_at"),
    _time("seen_at"),
    _moment("expires_at"),
    Index("sessions_secret_hash_key", "secret_hash", unique=True),
    Index("sessions_user_id_idx", "user_id"),
    Index("sessions_expires_at_idx", "expires_at"),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    _user_id(),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    _time("created_at"),
    _time("used_at", nullable=True),
    _time("expires_at", nullable=True),
    Index("api_tokens_secret_hash_key", "secret_hash", unique=True),
    Index("api_tokens_user_id_idx", "user_id"),
)

oidc_logins = Table(
    "oidc_logins",
    metadata,
    Column("state_hash", LargeBinary, primary_key=True),
    Column("nonce", Text, nullable=False),
    Column("verifier", Text, nullable=False),
    Column("return_to", Text, nullable=False),
    # The user to whom the identity is to be linked; without one it is a login.
    Column("user_id", Uuid, ForeignKey("users.id", ondelete="CASCADE")),
    _moment("expires_at"),
    Index("oidc_logins_user_id_idx", "user_id"),
    Index("oidc_logins_expires_at_idx", "expires_at"),
)

memberships = Table(
    "memberships",
    metadata,
    _thread_id(primary_key=True),
    _user_id(primary_key=True),
    Column("role", Text, nullable=False),
    _time("created_at"),
    CheckConstraint("role IN ('viewer', 'editor', 'owner')", name="role"),
    Index("memberships_user_id_idx", "user_id"),
)

# Memberships that their users have not accepted yet. A declined one stays for a while, so that it is not sent again.
invitations = Table(
    "invitations",
    metadata,
    _thread_id(primary_key=True),
    _user_id(primary_key=True),
    Column("role", Text, nullable=False),
    # No key to `users`: an invitation outlives the account that sent it. Null for somebody without an account.
    Column("invited_by", Uuid),
    _time("created_at"),
    _time("declined_at", nullable=True),
    CheckConstraint("role IN ('viewer', 'editor', 'owner')", name="role"),
    Index("invitations_user_id_idx", "user_id"),
    Index("invitations_declined_at_idx", "declined_at", postgresql_where=text("declined_at IS NOT NULL")),
)

share_links = Table(
    "share_links",
    metadata,
    Column("id", Uuid, primary_key=True),
    _thread_id(),
    Column("key_hash", LargeBinary, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_by", Uuid),
    _time("created_at"),
    _time("expires_at", nullable=True),
    CheckConstraint("role IN ('viewer', 'editor')", name="role"),
    Index("share_links_key_hash_key", "key_hash", unique=True),
    Index("share_links_thread_id_idx", "thread_id"),
)

# What a user's list of threads says, and since when. No key to `threads`: that one is gone has to be told, too.
listings = Table(
    "listings",
    metadata,
    _user_id(primary_key=True),
    Column("thread_id", Uuid, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    # The thread's revision when something was last said in it by others, and up to which the user has read.
    Column("said_revision", BigInteger, nullable=False, server_default="0"),
    Column("read_revision", BigInteger, nullable=False, server_default="0"),
    Column("gone", Boolean, nullable=False, server_default="false"),
    _time("changed_at"),
    Index("listings_user_id_revision_idx", "user_id", "revision"),
    Index("listings_thread_id_idx", "thread_id"),
)

# Who is here now. Not logged: after a crash of the database they say it again.
processes = Table(
    "processes",
    metadata,
    Column("id", Uuid, primary_key=True),
    _time("beat_at"),
    prefixes=["UNLOGGED"],
)

presences = Table(
    "presences",
    metadata,
    Column("thread_id", Uuid, primary_key=True),
    Column("participant_id", Uuid, primary_key=True),
    Column("process_id", Uuid, ForeignKey("processes.id", ondelete="CASCADE"), nullable=False),
    Column("user_id", Uuid),
    Column("name", Text),
    Column("state", JSONB, nullable=False),
    _time("changed_at"),
    Index("presences_process_id_idx", "process_id"),
    prefixes=["UNLOGGED"],
)

# What has been used of a limit in one of its windows. `key` is whom it counts for: a run's or user's id, a key's hash.
budgets = Table(
    "budgets",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("measure", Text, primary_key=True),
    _moment("starts_at", primary_key=True),
    _moment("ends_at"),
    Column("reserved", Numeric(20, 10), nullable=False, server_default="0"),
    Column("settled", Numeric(20, 10), nullable=False, server_default="0"),
    Index("budgets_ends_at_idx", "ends_at"),
    postgresql_with={"fillfactor": 70},
)

# What each run has reserved of a budget, and what it turned out to use.
usage_ledger = Table(
    "usage_ledger",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("key", LargeBinary, nullable=False),
    _moment("starts_at"),
    Column("reserved", Numeric(20, 10), nullable=False),
    Column("settled", Numeric(20, 10)),
    Column("most", Numeric(20, 10), nullable=False),
    _time("created_at"),
    Index("usage_ledger_created_at_idx", "created_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True),
    # No key to `users`: the trail outlives the account.
    Column("user_id", Uuid),
    Column("action", Text, nullable=False),
    Column("thread_id", Uuid),
    Column("network", Text),
    Column("detail", JSONB, nullable=False),
    _time("created_at"),
    Index("audit_user_id_idx", "user_id", "id"),
    Index("audit_created_at_idx", "created_at"),
)

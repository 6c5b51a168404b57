"""Tables of push notifications: the server's key, the browsers that get notifications, and the outbox."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
)

from khala.store.schema.autovacuum import OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, time_column

# The key by which push services recognise this server (VAPID). Browsers subscribe with its public half.
push_keys = Table(
    "push_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("private_key", LargeBinary, nullable=False),
    time_column("created_at"),
)

push_subscriptions = Table(
    "push_subscriptions",
    metadata,
    # Derived from the subject and the endpoint.
    Column("id", Uuid, primary_key=True),
    # The user, or the author id of an anonymous key.
    Column("subject_id", Uuid, nullable=False),
    # The key of a guest.
    Column("anon_key_hash", LargeBinary),
    # The session or API token that subscribed: with it the subscription ends.
    Column("credential", Uuid),
    Column("endpoint", Text, nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    Column("auth", LargeBinary, nullable=False),
    # Whether long answers are told, too.
    Column("answers", Boolean, nullable=False, server_default="false"),
    Column("failures", Integer, nullable=False, server_default="0"),
    time_column("created_at"),
    time_column("confirmed_at"),
    Index("push_subscriptions_subject_id_idx", "subject_id", "confirmed_at"),
    Index("push_subscriptions_confirmed_at_idx", "confirmed_at"),
    # Endpoints are long.
    Index("push_subscriptions_endpoint_idx", "endpoint", postgresql_using="hash"),
)

# One row for each notification and browser, until it is delivered or given up. No foreign keys: their locks would have
# transactions wait for deliveries.
push_messages = Table(
    "push_messages",
    metadata,
    # From the sequence `push_messages_seq`.
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("subscription_id", Uuid, nullable=False),
    Column("thread_id", Uuid, nullable=False),
    # What the notification is about: a run, or a plan.
    Column("run_id", Uuid),
    Column("plan_id", Uuid),
    Column("kind", Text, nullable=False),
    # The next attempt, or the end of the lease of one.
    required_time_column("due_at"),
    Column("claim_id", Uuid),
    Column("attempts", Integer, nullable=False, server_default="0"),
    required_time_column("created_at"),
    CheckConstraint("kind IN ('waiting', 'answer')", name="kind"),
    Index("push_messages_due_at_idx", "due_at"),
    Index("push_messages_subscription_id_idx", "subscription_id", "thread_id", "seq"),
    Index("push_messages_created_at_idx", "created_at"),
    postgresql_with=OFTEN_UPDATED,
)

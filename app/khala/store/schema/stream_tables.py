"""Tables of durable streams: the streams that clients create, their contents, producers and subscriptions."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import INSERT_ONLY, OFTEN_UPDATED
from khala.store.schema.columns import metadata, time_column

streams = Table(
    "streams",
    metadata,
    Column("id", Uuid, primary_key=True),
    # The account, or the id of zeros for streams of people without one.
    Column("space_id", Uuid, nullable=False),
    Column("user_id", Uuid, ForeignKey("users.id", ondelete="CASCADE")),
    # Null once the stream is removed and the purge is about to delete it.
    Column("name", Text),
    Column("content_type", Text, nullable=False),
    # Seconds without a read or append after which the stream expires.
    Column("ttl_seconds", BigInteger),
    time_column("expires_at", nullable=True),
    # The position of the first content that the stream has not inherited, and the one after the last.
    Column("start_position", BigInteger, nullable=False),
    Column("tail", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    # Bytes of the space's limit that the stream may use. Appends of versions before 0038 do not raise them.
    Column("reserved_bytes", BigInteger, nullable=False, server_default="0"),
    Column("closed", Boolean, nullable=False),
    Column("closing_producer", Text),
    Column("closing_epoch", BigInteger),
    Column("closing_seq", BigInteger),
    Column("writer_seq", LargeBinary),
    # A fork: its source, what the request said of it, and the segments that it inherits.
    Column("source_id", Uuid, ForeignKey("streams.id", ondelete="SET NULL")),
    Column("source_name", Text),
    Column("source_offset", BigInteger),
    Column("source_sub_offset", BigInteger),
    Column("inherited_ids", ARRAY(Uuid), nullable=False),
    Column("inherited_ends", ARRAY(BigInteger), nullable=False),
    # Deleted while forks inherit from it.
    time_column("deleted_at", nullable=True),
    time_column("created_at"),
    time_column("updated_at"),
    CheckConstraint("user_id IS NULL OR user_id = space_id", name="space_id"),
    Index("streams_space_id_name_idx", "space_id", "name", unique=True),
    Index("streams_source_id_idx", "source_id", postgresql_where=text("source_id IS NOT NULL")),
    Index("streams_user_id_idx", "user_id", postgresql_where=text("user_id IS NOT NULL")),
    Index("streams_expires_at_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    Index("streams_removed_idx", "id", postgresql_where=text("name IS NULL")),
    postgresql_with=OFTEN_UPDATED,
)

stream_chunks = Table(
    "stream_chunks",
    metadata,
    Column("stream_id", Uuid, ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    # Messages of a JSON stream, else bytes.
    Column("length", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    time_column("created_at"),
    postgresql_with=INSERT_ONLY,
)

stream_producers = Table(
    "stream_producers",
    metadata,
    Column("stream_id", Uuid, ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True),
    Column("producer_id", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    postgresql_with=OFTEN_UPDATED,
)

stream_subscriptions = Table(
    "stream_subscriptions",
    metadata,
    Column("id", Uuid, primary_key=True),
    # As those of streams.
    Column("space_id", Uuid, nullable=False),
    Column("user_id", Uuid, ForeignKey("users.id", ondelete="CASCADE")),
    Column("name", Text, nullable=False),
    # The configuration as JSON, and a hash of it.
    Column("config", JSONB, nullable=False),
    Column("config_digest", LargeBinary, nullable=False),
    # The subscription's own, as the client that has created it knows the server.
    Column("url", Text, nullable=False),
    Column("token_key", LargeBinary, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    # Null while no wake is in flight.
    Column("wake_id", Text),
    Column("holder", Text),
    # The end of the wake's lease, or the time of the next attempt to deliver.
    time_column("due_at", nullable=True),
    Column("failures", Integer, nullable=False, server_default="0"),
    time_column("created_at"),
    CheckConstraint("user_id IS NULL OR user_id = space_id", name="space_id"),
    Index("stream_subscriptions_space_id_name_idx", "space_id", "name", unique=True),
    Index("stream_subscriptions_user_id_idx", "user_id", postgresql_where=text("user_id IS NOT NULL")),
    Index("stream_subscriptions_due_at_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    postgresql_with=OFTEN_UPDATED,
)

stream_links = Table(
    "stream_links",
    metadata,
    Column("subscription_id", Uuid, ForeignKey("stream_subscriptions.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    # Named one by one, and not only by the pattern.
    Column("explicit", Boolean, nullable=False),
    # The stream whose contents are acknowledged up to this position: another one may have its name later.
    Column("stream_id", Uuid),
    Column("acked_position", BigInteger, nullable=False),
    postgresql_with=OFTEN_UPDATED,
)

stream_signing_keys = Table(
    "stream_signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # The seed of an Ed25519 key.
    Column("private_key", LargeBinary, nullable=False),
    time_column("created_at"),
)

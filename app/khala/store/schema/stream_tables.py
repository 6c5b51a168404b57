"""Tables of durable streams: the streams that clients create, their contents and their producers."""

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

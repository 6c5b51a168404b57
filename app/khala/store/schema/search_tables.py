"""Tables of the search of past messages: signatures of their words, and what is still to be read for them."""

from sqlalchemy import CheckConstraint, Column, Integer, LargeBinary, SmallInteger, Table, Uuid

from khala.store.schema.autovacuum import INSERTED_AND_CHANGED
from khala.store.schema.columns import metadata, time_column

# Consecutive messages of a thread: `khala.domain.search_segments`. No text is stored here. No foreign key to `threads`:
# it would lock the thread's row, for which sends wait.
search_segments = Table(
    "search_segments",
    metadata,
    Column("thread_id", Uuid, primary_key=True),
    Column("first_position", Integer, primary_key=True),
    Column("piece", SmallInteger, primary_key=True),
    Column("last_position", Integer, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    postgresql_with=INSERTED_AND_CHANGED,
)

# Messages that ended and have no segment yet, by the run or the import that wrote them.
search_queue = Table(
    "search_queue",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("first_position", Integer, nullable=False),
    Column("last_position", Integer, nullable=False),
)

# One row, which is locked by whoever changes segments: the state of the walk that finds messages without a segment.
search_walk = Table(
    "search_walk",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    # The last thread that the walk has seen; null between two walks.
    Column("thread_id", Uuid),
    # The end of the last walk.
    time_column("ended_at", nullable=True),
    CheckConstraint("id = 1", name="id"),
)

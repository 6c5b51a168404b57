"""The table of agents: a row for each version."""

from sqlalchemy import ARRAY, Column, Integer, Table, Text, UniqueConstraint, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.columns import metadata, time_column, user_id_column

agents = Table(
    "agents",
    metadata,
    # Identifies the version: `StoredRunOptions.agent_id`.
    Column("id", Uuid, primary_key=True),
    user_id_column(),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("title", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("instructions", Text, nullable=False),
    Column("tools", ARRAY(Text), nullable=False),
    Column("model", Text),
    Column("fallbacks", ARRAY(Text), nullable=False),
    Column("examples", ARRAY(Text), nullable=False),
    Column("budget", JSONB),
    time_column("created_at"),
    # Set in the newest version of a deleted agent.
    time_column("deleted_at", nullable=True),
    UniqueConstraint("user_id", "name", "version"),
)

"""The tables of agents: a row for each version, and the links of shared agents."""

from sqlalchemy import ARRAY, Column, Integer, LargeBinary, Table, Text, UniqueConstraint, Uuid
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
    # `remote`: only remote workers execute its runs.
    Column("executor", Text, nullable=False, server_default="server"),
    time_column("created_at"),
    # Set in the newest version of a deleted agent.
    time_column("deleted_at", nullable=True),
    UniqueConstraint("user_id", "name", "version"),
)

# An agent has at most one link. A link belongs to the agent's name, not to a version.
agent_links = Table(
    "agent_links",
    metadata,
    user_id_column(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("key_hash", LargeBinary, nullable=False, unique=True),
    time_column("created_at"),
)

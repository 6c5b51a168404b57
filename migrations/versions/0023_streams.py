"""Add durable streams: their contents and their producers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INSERT_ONLY = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_vacuum_insert_threshold": "10000",
    "autovacuum_freeze_min_age": "0",
}
INDEXES: dict[str, tuple[list[str], bool, str | None]] = {
    "streams_space_id_name_idx": (["space_id", "name"], True, None),
    "streams_source_id_idx": (["source_id"], False, "source_id IS NOT NULL"),
    "streams_user_id_idx": (["user_id"], False, "user_id IS NOT NULL"),
    "streams_expires_at_idx": (["expires_at"], False, "expires_at IS NOT NULL"),
    "streams_removed_idx": (["id"], False, "name IS NULL"),
}


def upgrade() -> None:
    op.create_table(
        "streams",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("space_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("ttl_seconds", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_position", sa.BigInteger(), nullable=False),
        sa.Column("tail", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("closing_producer", sa.Text(), nullable=True),
        sa.Column("closing_epoch", sa.BigInteger(), nullable=True),
        sa.Column("closing_seq", sa.BigInteger(), nullable=True),
        sa.Column("writer_seq", sa.LargeBinary(), nullable=True),
        sa.Column("source_id", sa.Uuid(), nullable=True),
        sa.Column("source_name", sa.Text(), nullable=True),
        sa.Column("source_offset", sa.BigInteger(), nullable=True),
        sa.Column("source_sub_offset", sa.BigInteger(), nullable=True),
        sa.Column("inherited_ids", postgresql.ARRAY(sa.Uuid()), nullable=False),
        sa.Column("inherited_ends", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("user_id IS NULL OR user_id = space_id", name=op.f("streams_space_id_check")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("streams_user_id_fkey"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["source_id"], ["streams.id"], name=op.f("streams_source_id_fkey"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("streams_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    for name, (columns, unique, condition) in INDEXES.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, "streams", columns, unique=unique, postgresql_where=where)
    op.create_table(
        "stream_chunks",
        sa.Column("stream_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"], ["streams.id"], name=op.f("stream_chunks_stream_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stream_id", "position", name=op.f("stream_chunks_pkey")),
        postgresql_with=INSERT_ONLY,
    )
    op.create_table(
        "stream_producers",
        sa.Column("stream_id", sa.Uuid(), nullable=False),
        sa.Column("producer_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"], ["streams.id"], name=op.f("stream_producers_stream_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stream_id", "producer_id", name=op.f("stream_producers_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )


def downgrade() -> None:
    for table in ("stream_producers", "stream_chunks", "streams"):
        op.drop_table(table)

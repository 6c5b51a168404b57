"""Add the search of past messages: signatures of their words, and the queue of those without one."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

INSERTED_AND_CHANGED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_freeze_min_age": "1000000",
}


def upgrade() -> None:
    op.create_table(
        "search_segments",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("first_position", sa.Integer(), nullable=False),
        sa.Column("piece", sa.SmallInteger(), nullable=False),
        sa.Column("last_position", sa.Integer(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "first_position", "piece", name=op.f("search_segments_pkey")),
        postgresql_with=INSERTED_AND_CHANGED,
    )
    op.create_table(
        "search_queue",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("first_position", sa.Integer(), nullable=False),
        sa.Column("last_position", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("search_queue_pkey")),
    )
    op.create_table(
        "search_walk",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("search_walk_id_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("search_walk_pkey")),
    )
    op.execute("INSERT INTO search_walk (id) VALUES (1)")


def downgrade() -> None:
    op.drop_table("search_walk")
    op.drop_table("search_queue")
    op.drop_table("search_segments")

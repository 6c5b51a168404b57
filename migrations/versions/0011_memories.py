"""Add memories. Their vectors are in tables of their own, which exist where Postgres has pgvector."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memories",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("space_id", sa.Uuid(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("keywords", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("terms", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("message_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("uses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("supersedes", sa.Uuid(), nullable=True),
        sa.Column("superseded_by", sa.Uuid(), nullable=True),
        sa.Column("generation", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('user', 'thread', 'agent')", name=op.f("memories_scope_check")),
        sa.CheckConstraint(
            "kind IN ('fact', 'preference', 'instruction', 'summary')", name=op.f("memories_kind_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("memories_pkey")),
    )
    used = sa.text("superseded_by IS NULL")
    op.create_index("memories_owner_id_idx", "memories", ["owner_id", "id"])
    op.create_index(
        "memories_space_id_fingerprint_key",
        "memories",
        ["space_id", "fingerprint"],
        unique=True,
        postgresql_where=used,
    )
    op.create_index("memories_terms_idx", "memories", ["terms"], postgresql_using="gin", postgresql_where=used)
    op.create_index("memories_generation_idx", "memories", ["generation", "id"], postgresql_where=used)
    op.create_index(
        "memories_thread_id_idx", "memories", ["thread_id"], postgresql_where=sa.text("thread_id IS NOT NULL")
    )
    op.create_index(
        "memories_expires_at_idx", "memories", ["expires_at"], postgresql_where=sa.text("expires_at IS NOT NULL")
    )


def downgrade() -> None:
    # The tables of vectors, if there are some, refer to it.
    op.execute("DROP TABLE memories CASCADE")

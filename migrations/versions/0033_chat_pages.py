"""Add where people keep their threads, what undoes a deletion, preferences, feedback and titles."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

TABLES = ("title_jobs", "message_feedback", "preferences", "thread_deletions", "guest_listings")
LISTED = ("pinned", "archived")
NOW = sa.text("now()")


def upgrade() -> None:
    op.execute("LOCK TABLE threads, messages, approvals, usage_receipts, listings IN ACCESS EXCLUSIVE MODE")
    for name in LISTED:
        op.add_column("listings", sa.Column(name, sa.Boolean(), server_default="false", nullable=False))
    op.add_column("listings", sa.Column("folder", sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("allowed", sa.Text(), nullable=True))
    _allow_purposes("'extraction', 'embedding', 'title'")
    _create_lists()
    _create_preferences()
    _create_feedback()
    _create_titles()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
    op.execute("DELETE FROM usage_receipts WHERE purpose = 'title'")
    _allow_purposes("'extraction', 'embedding'")
    op.drop_column("approvals", "allowed")
    for name in ("folder", *LISTED):
        op.drop_column("listings", name)


def _allow_purposes(purposes: str) -> None:
    name = "usage_receipts_purpose_check"
    op.drop_constraint(op.f(name), "usage_receipts", type_="check")
    op.execute(f"ALTER TABLE usage_receipts ADD CONSTRAINT {name} CHECK (purpose IN ({purposes}))")


def _time(name: str, *, nullable: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=None if nullable else NOW)


def _of_thread(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"{table}_thread_id_fkey")
    return sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=name, ondelete="CASCADE")


def _create_lists() -> None:
    op.create_table(
        "guest_listings",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        *(sa.Column(name, sa.Boolean(), server_default="false", nullable=False) for name in LISTED),
        sa.Column("folder", sa.Text(), nullable=True),
        _of_thread("guest_listings"),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("guest_listings_pkey")),
    )
    op.create_table(
        "thread_deletions",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("client_metadata", postgresql.JSONB(), nullable=True),
        sa.Column("members", postgresql.JSONB(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        _of_thread("thread_deletions"),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("thread_deletions_pkey")),
    )
    op.create_index("thread_deletions_expires_at_idx", "thread_deletions", ["expires_at"])
    op.create_index("thread_deletions_owner_id_idx", "thread_deletions", ["owner_id"])


def _create_preferences() -> None:
    op.create_table(
        "preferences",
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("titles", sa.Boolean(), server_default="true", nullable=False),
        _time("changed_at"),
        sa.PrimaryKeyConstraint("subject_id", name=op.f("preferences_pkey")),
    )
    key = sa.text("anon_key_hash IS NOT NULL")
    op.create_index("preferences_changed_at_idx", "preferences", ["changed_at"], postgresql_where=key)


def _create_feedback() -> None:
    op.create_table(
        "message_feedback",
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("rating", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        _time("created_at"),
        _time("updated_at"),
        sa.CheckConstraint("rating IN ('up', 'down')", name=op.f("message_feedback_rating_check")),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name=op.f("message_feedback_message_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("message_id", "person_id", name=op.f("message_feedback_pkey")),
    )
    op.create_index("message_feedback_person_id_idx", "message_feedback", ["person_id"])
    op.create_index("message_feedback_thread_id_idx", "message_feedback", ["thread_id"])
    op.create_index("message_feedback_updated_at_idx", "message_feedback", ["updated_at", "message_id", "person_id"])


def _create_titles() -> None:
    op.create_table(
        "title_jobs",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        _time("leased_until", nullable=True),
        _time("due_at"),
        _of_thread("title_jobs"),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("title_jobs_pkey")),
    )
    op.create_index("title_jobs_due_at_idx", "title_jobs", ["due_at"])
    op.create_index(
        "title_jobs_user_id_idx", "title_jobs", ["user_id"], postgresql_where=sa.text("user_id IS NOT NULL")
    )

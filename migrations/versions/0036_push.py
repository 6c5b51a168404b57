"""Add push notifications: the server's key, the subscriptions of browsers, and the outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
NOW = sa.text("now()")
INDEXES = {
    "push_subscriptions_subject_id_idx": ("push_subscriptions", ["subject_id", "confirmed_at"]),
    "push_subscriptions_confirmed_at_idx": ("push_subscriptions", ["confirmed_at"]),
    "push_messages_due_at_idx": ("push_messages", ["due_at"]),
    "push_messages_subscription_id_idx": ("push_messages", ["subscription_id", "thread_id", "seq"]),
    "push_messages_created_at_idx": ("push_messages", ["created_at"]),
}


def _time(name: str, *, has_default: bool = True) -> "sa.Column[object]":
    return sa.Column(name, sa.DateTime(timezone=True), server_default=NOW if has_default else None, nullable=False)


def upgrade() -> None:
    op.create_table(
        "push_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("private_key", sa.LargeBinary(), nullable=False),
        _time("created_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("push_keys_pkey")),
    )
    op.create_table(
        "push_subscriptions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("credential", sa.Uuid(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("auth", sa.LargeBinary(), nullable=False),
        sa.Column("answers", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        _time("created_at"),
        _time("confirmed_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("push_subscriptions_pkey")),
    )
    op.create_table(
        "push_messages",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subscription_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _time("due_at", has_default=False),
        sa.Column("claim_id", sa.Uuid(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        _time("created_at", has_default=False),
        sa.CheckConstraint("kind IN ('waiting', 'answer')", name=op.f("push_messages_kind_check")),
        sa.PrimaryKeyConstraint("seq", name=op.f("push_messages_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.execute("CREATE SEQUENCE push_messages_seq OWNED BY push_messages.seq")
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)
    op.create_index("push_subscriptions_endpoint_idx", "push_subscriptions", ["endpoint"], postgresql_using="hash")


def downgrade() -> None:
    for table in ("push_messages", "push_subscriptions", "push_keys"):
        op.drop_table(table)

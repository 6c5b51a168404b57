"""Delete a memory with the newer one that supersedes it, and search words without a list of pending entries.

Nobody sees a superseded memory whose newer one is deleted, and nobody can forget it.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

DELETE_UNREACHABLE = """
    DELETE FROM memories WHERE superseded_by IS NOT NULL
    AND NOT EXISTS (SELECT FROM memories AS newer WHERE newer.id = memories.superseded_by)
"""
"""The constraint deletes those that they have superseded."""


def upgrade() -> None:
    # Validated later, with a weaker lock. The version before stores both rows of a correction in one transaction, too.
    op.create_foreign_key(
        op.f("memories_superseded_by_fkey"),
        "memories",
        "memories",
        ["superseded_by"],
        ["id"],
        ondelete="CASCADE",
        deferrable=True,
        initially="DEFERRED",
        postgresql_not_valid=True,
    )
    op.execute(DELETE_UNREACHABLE)
    op.execute("ALTER TABLE memories VALIDATE CONSTRAINT memories_superseded_by_fkey")
    op.execute("ALTER INDEX memories_terms_idx SET (fastupdate = off)")


def downgrade() -> None:
    op.execute("ALTER INDEX memories_terms_idx RESET (fastupdate)")
    op.drop_constraint(op.f("memories_superseded_by_fkey"), "memories")

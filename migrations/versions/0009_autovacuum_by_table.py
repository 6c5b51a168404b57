"""Vacuum the tables that grow earlier, and freeze rows that never change.

Each statement takes only a SHARE UPDATE EXCLUSIVE lock: reads and writes of the table continue.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INSERTED_AND_CHANGED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_freeze_min_age": "1000000",
}
INSERT_ONLY = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_vacuum_insert_threshold": "10000",
    "autovacuum_freeze_min_age": "0",
}
PARAMETERS = {
    "budgets": OFTEN_UPDATED,
    "listings": OFTEN_UPDATED,
    "runs": OFTEN_UPDATED,
    "threads": OFTEN_UPDATED,
    "usage_ledger": OFTEN_UPDATED,
    "users": OFTEN_UPDATED,
    "messages": INSERTED_AND_CHANGED,
    "message_parts": INSERT_ONLY,
    "receipts": INSERT_ONLY,
}

PARTITIONS = """
    SELECT relid::regclass::text FROM pg_partition_tree('message_parts') WHERE isleaf ORDER BY 1
"""
"""The tables into which an operator has split `message_parts`, if any. A partitioned table has no storage."""


def upgrade() -> None:
    for table, parameters in PARAMETERS.items():
        values = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        for stored in _stored_tables(table):
            op.execute(f"ALTER TABLE {stored} SET ({values})")


def downgrade() -> None:
    for table, parameters in PARAMETERS.items():
        for stored in _stored_tables(table):
            op.execute(f"ALTER TABLE {stored} RESET ({', '.join(parameters)})")


def _stored_tables(table: str) -> Iterable[str]:
    if table != "message_parts" or op.get_context().as_sql:
        return (table,)
    return op.get_bind().execute(sa.text(PARTITIONS)).scalars().all() or (table,)

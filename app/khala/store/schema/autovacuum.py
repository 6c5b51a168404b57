"""Storage parameters of autovacuum, for the tables that grow with a deployment.

The defaults of Postgres let garbage grow with the table: a fifth of its rows. A vacuum of 100 million rows then comes
late and takes long. With these values, it comes often and has little to do. `threshold` is a number of rows, and
`scale_factor` a fraction of the table that is added to it.
"""

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
"""Tables whose rows change many times."""

INSERTED_AND_CHANGED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_freeze_min_age": "1000000",
}
"""Tables whose rows are inserted and changed soon after, and then stay."""

INSERT_ONLY = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_vacuum_insert_threshold": "10000",
    # Freeze rows in the vacuum that follows their insertion, while their pages are cached: they never change.
    # Otherwise, every page is read and written again before transaction ids wrap around.
    "autovacuum_freeze_min_age": "0",
}
"""Tables whose rows are inserted, and later only deleted."""

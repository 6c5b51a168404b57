"""The connection to Postgres: pools and transactions, retries, the order of locks, migrations."""

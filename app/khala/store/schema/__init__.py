"""The tables. Alembic's migrations create the same schema. A test compares both."""

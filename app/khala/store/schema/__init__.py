"""The tables. Alembic's migrations create the same schema; a test compares them."""

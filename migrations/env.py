"""Alembic's environment: the connection comes from `khala.store.postgres.migrations`, the metadata from `khala.store.schema.tables`."""

from alembic import context

from khala.store.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    # For `--sql`, which has no connection to tell.
    dialect_name="postgresql",
    target_metadata=metadata,
)
with context.begin_transaction():
    context.run_migrations()

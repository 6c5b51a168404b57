"""Alembic's environment: the connection comes from `khala.store.postgres.migrations`, the metadata from `khala.store.schema.tables`."""

from alembic import context

from khala.store.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    # With `--sql` there is no connection from which Alembic could derive the dialect.
    dialect_name="postgresql",
    target_metadata=metadata,
)
with context.begin_transaction():
    context.run_migrations()

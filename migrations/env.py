"""Alembic's environment: the connection comes from `app.store.migrate`, the metadata from `app.store.tables`."""

from alembic import context

from app.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()

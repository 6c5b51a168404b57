"""The embedded Postgres: the first process that needs it starts it, and it stops after the last one has ended.

This package uses only the standard library, because its supervisor process must stay small and start quickly.
"""

from khala.store.embedded.binaries import find_binaries
from khala.store.embedded.layout import EmbeddedPostgresError, has_cluster
from khala.store.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "find_binaries", "has_cluster"]

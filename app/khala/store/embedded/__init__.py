"""A Postgres that comes with Khala: started by the first process that needs it, ended after the last.

Only the standard library is used in this package, because its keeper process imports it and must stay small and quick.
"""

from khala.store.embedded.binaries import find_binaries
from khala.store.embedded.layout import EmbeddedPostgresError
from khala.store.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "find_binaries"]

"""What the fork server does once for all processes that it forks: it is the last module that it imports."""

import gc

from tests.support import quick_hashes, shared_routes, statement_locks

shared_routes.install()
shared_routes.create_all()
quick_hashes.install()
# Loads the SQL dialect.
statement_locks.touches("SELECT 1 FOR UPDATE")
# No forked process examines, and thereby copies, what all of them share.
gc.collect()
gc.freeze()

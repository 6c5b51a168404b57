"""What the fork server does once for all processes that it forks: it is the last module that it imports."""

import gc

from tests.support import shared_routes

shared_routes.install()
shared_routes.create_all()
# No forked process examines, and thereby copies, what all of them share.
gc.collect()
gc.freeze()

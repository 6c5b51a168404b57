"""What the fork server does once for all processes that it forks: it is the last module that it imports."""

import gc

from tests.support import parsed_handlers

parsed_handlers.install()
parsed_handlers.parse_all()
# No forked process examines, and thereby copies, what all of them share.
gc.collect()
gc.freeze()

"""Has all servers of a process share their routes: tests start hundreds of servers in one process.

Litestar takes 0.2 s of a core to create the routes, which is most of a server's start.
"""

import functools

from khala.api import application
from khala.main import WEB
from khala.version import KHALA_VERSION


def install() -> None:
    """Create the routes of equal servers only once from now on."""
    application.create_routes = functools.cache(application.create_routes)


def create_all() -> None:
    """Create the routes of most servers now."""
    application.create_routes(web=WEB, version=KHALA_VERSION, allowed_origins=())

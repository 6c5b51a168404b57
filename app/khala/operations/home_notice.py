"""Says which embedded database a command uses, if nobody has chosen it: a server may use another one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from khala.console import KnownFailure, load_settings

if TYPE_CHECKING:
    from khala.settings import Settings

PROBE_TIMEOUT_SECONDS = 0.5
DEV_HOME = Path(".khala")
LIVE = b'{"ok":true}'
CHOOSE = "Set KHALA_HOME (or DATABASE_URL) as for your server to use its database."


def command_settings(*, creates: bool = False) -> "Settings":
    """Load the settings of a command that uses the database, and say which one that is unless it was chosen.

    Raises `KnownFailure`, also if the home has no database, unless the command may create one (`creates`).
    """
    from khala.store.embedded import has_cluster

    settings = load_settings()
    lines = notices(settings)
    home = settings.process.home
    if settings.database.url is None and not creates and not has_cluster(home):
        raise KnownFailure(
            " ".join([f"There is no database in {home}. {CHOOSE} `khala serve` creates one.", *lines[1:]])
        )
    for line in lines:
        click.echo(line, err=True)
    return settings


def notices(settings: "Settings") -> list[str]:
    """The lines to show: none if a setting names the database."""
    from khala.settings.process import default_home
    from khala.store.embedded import EmbeddedPostgres, has_cluster

    home = settings.process.home
    if settings.database.url is not None or home != Path(default_home(settings.process.user_data)).expanduser():
        return []
    if EmbeddedPostgres.is_used(home):
        return [f"Database: the embedded Postgres in {home}, which a server uses now."]
    state = "the embedded Postgres" if has_cluster(home) else "a new and empty embedded Postgres"
    found = [f"Database: {state} in {home}. {CHOOSE}"]
    if has_cluster(DEV_HOME):
        found.append("This folder has the database of `khala dev`: set KHALA_HOME=.khala to use it.")
    address = f"{settings.server.host}:{settings.server.port}"
    if _answers(settings.server.host, settings.server.port):
        found.append(f"The Khala server at http://{address} uses another database.")
    return found


def _answers(host: str, port: int) -> bool:
    """Whether a server of Khala answers there."""
    from http.client import HTTPConnection, HTTPException

    if not port:
        return False
    connection = HTTPConnection(_reachable(host), port, timeout=PROBE_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/api/health/live")
        response = connection.getresponse()
        return response.status == 200 and response.read(len(LIVE) + 1) == LIVE
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, and not listened on

"""`load_repo` against the local host of repositories."""

from typing import Any

from khala.blobs.blob_service import BlobService
from khala.domain.repository_hosts import HostKind
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.tools.http_client import GuardedClient
from khala.tools.repositories import LoadRepo, RepositoryLoader
from khala.tools.repositories.archive_limits import ArchiveLimits
from khala.tools.ssrf_guard import parse_networks
from tests.support.repository_host import ArchiveServer
from tests.support.tool_calls import call

HERE = parse_networks(["127.0.0.0/8", "::1"])
FOLDER = "repositories/owner/repo"


def tool_of(
    db: Database,
    blobs: BlobService,
    host: ArchiveServer,
    kind: HostKind = "github",
    limits: ArchiveLimits | None = None,
) -> LoadRepo:
    """The tool, for the local host alone."""
    client = GuardedClient(allow=HERE)
    return LoadRepo(RepositoryLoader(db, blobs, client, hosts=[host.host(kind)], limits=limits))


async def files_of(db: Database, actor: ToolActor) -> dict[str, bytes]:
    """All files of the workspace."""
    async with db.driver() as driver:
        paths = [entry.path for entry in await workspace_files.entries(driver, actor.owner_id)]
        return await workspace_files.contents(driver, actor.owner_id, paths)


async def refused(tool: LoadRepo, actor: ToolActor, **args: Any) -> tuple[str | None, str]:
    """The code and the message of a call that fails."""
    result = await call(tool, actor, **args)
    assert not result.ok
    return result.result.code, result.text

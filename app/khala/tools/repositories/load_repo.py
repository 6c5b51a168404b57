"""The tool `load_repo`: loads a Git repository, or an uploaded archive, into a folder of the workspace."""

from typing import Any
from uuid import UUID

import msgspec

from khala.domain.tools import ToolSpec
from khala.tools import tool_output
from khala.tools.http_client import MAX_URL_CHARACTERS
from khala.tools.paths import MAX_PATH_CHARACTERS
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.repositories.addresses import MAX_REF_CHARACTERS
from khala.tools.repositories.loader import (
    LOAD_TIMEOUT_SECONDS,
    ArchiveUpload,
    LoadedRepository,
    LoadProgress,
    RepositoryLoader,
    RepositoryRequest,
)

MIB = 1 << 20
MARGIN_SECONDS = 5.0
"""Time of a call beyond its load's."""

SPEC = ToolSpec(
    name="load_repo",
    description=(
        "Load the text files of a Git repository into a folder of the workspace, where grep, glob and read_file find "
        "them. Give `url`, the address of a public repository (GitHub, GitLab, Bitbucket, Codeberg) or of a folder of "
        "it; or `blobId`, an uploaded .zip or .tar.gz file of this conversation. Loading the same source again "
        "replaces its folder, with all changes that were made there."
    ),
    parameters={
        "type": "object",
        "properties": {
            "url": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_URL_CHARACTERS,
                "description": "For example https://github.com/OWNER/REPO.",
            },
            "ref": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_REF_CHARACTERS,
                "description": "A branch, tag or commit. Default: the default branch.",
            },
            "path": {
                "type": "string",
                "maxLength": MAX_PATH_CHARACTERS,
                "description": "Load only this folder or file of the repository.",
            },
            "blobId": {"type": "string", "format": "uuid", "description": "The uploaded archive, instead of url."},
            "into": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_PATH_CHARACTERS,
                "description": "The folder of the workspace. Default: repositories/ and the repository's name.",
            },
        },
        "additionalProperties": False,
    },
    permissions=frozenset({"fs", "network"}),
    timeout=LOAD_TIMEOUT_SECONDS + MARGIN_SECONDS,
    idempotent=True,
)


class LoadRepoArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of `load_repo`."""

    url: str | None = None
    ref: str | None = None
    path: str | None = None
    blob_id: UUID | None = None
    into: str | None = None


class LoadRepo:
    """`load_repo`: load a repository."""

    spec = SPEC

    def __init__(self, loader: RepositoryLoader) -> None:
        self._loader = loader

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Load, and return what was loaded and skipped as JSON."""
        asked = _parse_arguments(args)

        def report(progress: LoadProgress) -> None:
            call.progress(_describe(progress))

        if asked.url is not None:
            request = RepositoryRequest(url=asked.url, ref=asked.ref, path=asked.path, into=asked.into)
            loaded = await self._loader.load(call.actor.owner_id, request, report)
        else:
            loaded = await self._loader.unpack(call.actor.owner_id, _upload(asked, call), report)
        return await tool_output.json_result(call.sink, loaded, _summarize(loaded))


def _parse_arguments(args: dict[str, Any]) -> LoadRepoArguments:
    try:
        asked = msgspec.convert(args, LoadRepoArguments)
    except msgspec.ValidationError as error:
        raise ToolError(f"Invalid arguments: {error}.", code="bad_arguments") from error
    if (asked.url is None) == (asked.blob_id is None):
        raise ToolError("Give either url or blobId.", code="bad_arguments")
    if asked.blob_id is not None and (asked.ref is not None or asked.path is not None):
        raise ToolError("ref and path belong to url, not to blobId.", code="bad_arguments")
    return asked


def _upload(asked: LoadRepoArguments, call: CallContext) -> ArchiveUpload:
    if call.actor.thread_id is None or asked.blob_id is None:
        raise ToolError("This call belongs to no conversation, so there are no blobs.", code="not_found")
    return ArchiveUpload(blob_id=asked.blob_id, thread_id=call.actor.thread_id, into=asked.into)


def _describe(progress: LoadProgress) -> str:
    match progress.stage:
        case "downloading":
            return f"Downloaded {progress.bytes / MIB:.1f} MB" if progress.bytes else "Connecting"
        case "reading":
            return f"Read {tool_output.pluralize(progress.files, 'file')}" if progress.files else "Reading the archive"
        case "storing":
            return f"Storing {tool_output.pluralize(progress.files, 'file')}"


def _summarize(loaded: LoadedRepository) -> str:
    skipped = sum(skipped.count for skipped in loaded.skipped)
    files = tool_output.pluralize(loaded.files, "file")
    return f"Loaded {files} into {loaded.folder}" + (f", skipped {skipped:,}" if skipped else "")

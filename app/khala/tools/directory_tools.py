"""The tools `list_directory` and `glob`, which find files of the workspace."""

from collections.abc import Sequence
from typing import Any

from khala.domain.tools import ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.store.tools.workspace_files import WorkspaceEntry
from khala.tools import paths, tool_output
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.workspace_tools import FS, schema


class ListDirectory:
    """`list_directory`: the files and folders in a folder."""

    spec = ToolSpec(
        name="list_directory",
        description="List the files of a workspace folder with their sizes in bytes, and its subfolders.",
        parameters=schema(path={"type": "string", "description": "The folder. Default: the whole workspace."}),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """List the folder."""
        folder = paths.folder_prefix(args.get("path", ""))
        async with self._db.driver() as driver:
            entries = await workspace_files.entries(driver, call.actor.owner_id)
        lines = _list(entries, folder)
        if not lines and folder:
            raise ToolError(f"The folder {folder} does not exist.", code="not_found")
        return await tool_output.text_result(
            call.sink,
            "\n".join(lines) or "The workspace is empty.",
            tool_output.pluralize(len(lines), "entry", "entries"),
        )


def _list(entries: Sequence[WorkspaceEntry], folder: str) -> list[str]:
    names: dict[str, str] = {}
    for entry in entries:
        if entry.path.startswith(folder):
            name, below, _ = entry.path.removeprefix(folder).partition("/")
            names[name + below] = "" if below else f"  {entry.size}"
    return [name + size for name, size in sorted(names.items())]


class GlobFiles:
    """`glob`: the files whose path matches a pattern."""

    spec = ToolSpec(
        name="glob",
        description="Find workspace files whose whole path matches a pattern.",
        parameters=schema(
            "pattern",
            pattern={
                "type": "string",
                "minLength": 1,
                "description": "For example src/**/*.py: ** any folders, * and ? within a name, [a-z], {a,b}.",
            },
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """List the matching paths."""
        pattern = paths.compile_glob(args["pattern"])
        async with self._db.driver() as driver:
            entries = await workspace_files.entries(driver, call.actor.owner_id)
        matching = [entry.path for entry in entries if pattern.search(entry.path)]
        summary = tool_output.pluralize(len(matching), "file")
        return await tool_output.text_result(call.sink, "\n".join(matching) or "No file matches the pattern.", summary)

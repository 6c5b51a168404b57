"""The workspace: files that an agent reads and writes, kept as rows, which nobody but their owner sees."""

from typing import Any

from khala.domain.tools import ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.tools import paths, tool_output
from khala.tools.port import CallContext, CallResult, ToolError

FS: frozenset[Any] = frozenset({"fs"})
LINES = 2000
"""Lines that are read at once unless more or fewer are asked for."""
PATH = {"type": "string", "minLength": 1, "description": "Relative to the workspace, as in notes/plan.md."}


def schema(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def lines_of(content: bytes, path: str) -> list[str]:
    """The lines of a text file. Raises `ToolError` for what is no text."""
    text = text_of(content, path)
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def text_of(content: bytes, path: str) -> str:
    """The text in a file. Raises `ToolError` for what is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is no text (UTF-8), but {len(content):,} bytes of something else.") from error


class ReadFile:
    """`read_file`."""

    spec = ToolSpec(
        name="read_file",
        description=(
            f"Read a text file of the workspace. Gives up to {LINES} lines at once, and says so if there are more."
        ),
        parameters=schema(
            "path",
            path=PATH,
            **{
                "from": {"type": "integer", "minimum": 1, "description": "The first line to read; 1 unless given."},
                "lines": {"type": "integer", "minimum": 1, "description": f"How many lines; {LINES} unless given."},
            },
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """The lines that are asked for."""
        path = paths.normal(args["path"])
        async with self._db.driver() as driver:
            content = await workspace_files.read(driver, call.actor.owner_id, path)
        text = text_of(content, path)
        lines, first = lines_of(content, path), int(args.get("from", 1))
        chosen = lines[first - 1 : first - 1 + int(args.get("lines", LINES))]
        if len(chosen) == len(lines):
            return await tool_output.text_result(
                call.sink, text, f"{path}: {tool_output.pluralize(len(lines), 'line')}"
            )
        if not chosen:
            raise ToolError(f"{path} has {tool_output.pluralize(len(lines), 'line')}; there is no line {first}.")
        last = first + len(chosen) - 1
        where = f"Lines {first} to {last} of {len(lines)}"
        more = f"; go on with from={last + 1}" if last < len(lines) else ""
        return await tool_output.text_result(
            call.sink, f"[{where}{more}]\n" + "\n".join(chosen), f"{path}: {where.lower()}"
        )


class WriteFile:
    """`write_file`."""

    spec = ToolSpec(
        name="write_file",
        description="Make a text file in the workspace, or replace all that is in it. Folders are made as needed.",
        parameters=schema("path", "content", path=PATH, content={"type": "string", "description": "All of its text."}),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Write it."""
        path, content = paths.normal(args["path"], new=True), encoded(args["content"], "content")
        await workspace_files.write(self._db, call.actor.owner_id, path, content)
        return CallResult(output=f"Wrote {tool_output.pluralize(len(content), 'byte')} to {path}.")


class EditFile:
    """`edit_file`."""

    spec = ToolSpec(
        name="edit_file",
        description="Replace text in a file of the workspace. Fails unless the old text is there exactly once.",
        parameters=schema(
            "path",
            "old",
            "new",
            path=PATH,
            old={"type": "string", "minLength": 1, "description": "The text as it stands, with enough around it."},
            new={"type": "string", "description": "What takes its place."},
            all={"type": "boolean", "description": "Replace it wherever it is, even if that is more than once."},
        ),
        permissions=FS,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Edit it."""
        path, times = paths.normal(args["path"]), 0
        old, new = args["old"], args["new"]
        encoded(new, "new")

        def edit(content: bytes) -> bytes:
            nonlocal times
            text = text_of(content, path)
            times = text.count(old)
            if not times:
                raise ToolError(f"The old text is not in {path}.", code="not_found")
            if times > 1 and not args.get("all", False):
                raise ToolError(f"The old text is in {path} {times} times: give more of it, or set all.")
            size = len(content) + times * (len(new.encode()) - len(old.encode("utf-8", "replace")))
            if size > workspace_files.MAX_FILE_BYTES:
                raise ToolError(f"A file has at most {workspace_files.MAX_FILE_BYTES:,} bytes.", code="too_large")
            return text.replace(old, new).encode()

        await workspace_files.change(self._db, call.actor.owner_id, path, edit)
        return CallResult(output=f"Replaced it {tool_output.pluralize(times, 'time')} in {path}.")


class DeleteFile:
    """`delete_file`."""

    spec = ToolSpec(
        name="delete_file",
        description="Delete a file of the workspace.",
        parameters=schema("path", path=PATH),
        permissions=FS,
        approval="ask",
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Delete it."""
        path = paths.normal(args["path"])
        await workspace_files.delete(self._db, call.actor.owner_id, path)
        return CallResult(output=f"Deleted {path}.")


def encoded(text: str, name: str) -> bytes:
    """The text's bytes. Raises `ToolError` for what can't be text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"{name}: it has characters that are none.", code="bad_arguments") from error

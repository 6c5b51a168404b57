"""The tools that read and change files of the workspace. Files are rows in the database, private to their owner."""

from typing import Any

from khala.domain.tools import ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.tools import paths, tool_output
from khala.tools.port import CallContext, CallResult, ToolError

FS: frozenset[Any] = frozenset({"fs"})
DEFAULT_LINES = 2000
"""Lines that one call reads by default."""
PATH = {"type": "string", "minLength": 1, "description": "A path relative to the workspace, for example notes/plan.md."}


def schema(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def lines_of(content: bytes, path: str) -> list[str]:
    """The lines of a text file. Raises `ToolError` for a binary file."""
    text = text_of(content, path)
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def text_of(content: bytes, path: str) -> str:
    """The text of a file. Raises `ToolError` for a binary file."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text, but binary data of {len(content):,} bytes.") from error


class ReadFile:
    """`read_file`: read lines of a text file."""

    spec = ToolSpec(
        name="read_file",
        description=(
            f"Read a workspace text file, up to {DEFAULT_LINES} lines at once. The result says whether more follow."
        ),
        parameters=schema(
            "path",
            path=PATH,
            **{
                "from": {"type": "integer", "minimum": 1, "description": "The first line to read. Default: 1."},
                "lines": {"type": "integer", "minimum": 1, "description": f"How many lines. Default: {DEFAULT_LINES}."},
            },
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Read the requested lines."""
        path = paths.normalize(args["path"])
        async with self._db.driver() as driver:
            content = await workspace_files.read(driver, call.actor.owner_id, path)
        text = text_of(content, path)
        lines, first = lines_of(content, path), int(args.get("from", 1))
        chosen = lines[first - 1 : first - 1 + int(args.get("lines", DEFAULT_LINES))]
        if len(chosen) == len(lines):
            return await tool_output.text_result(
                call.sink, text, f"{path}: {tool_output.pluralize(len(lines), 'line')}"
            )
        if not chosen:
            raise ToolError(f"{path} has {tool_output.pluralize(len(lines), 'line')}; there is no line {first}.")
        last = first + len(chosen) - 1
        line_range = f"Lines {first} to {last} of {len(lines)}"
        more = f"; continue with from={last + 1}" if last < len(lines) else ""
        return await tool_output.text_result(
            call.sink, f"[{line_range}{more}]\n" + "\n".join(chosen), f"{path}: {line_range.lower()}"
        )


class WriteFile:
    """`write_file`: create or replace a text file."""

    spec = ToolSpec(
        name="write_file",
        description="Create a text file in the workspace, or replace its whole content. Folders are created as needed.",
        parameters=schema(
            "path", "content", path=PATH, content={"type": "string", "description": "The whole text of the file."}
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Write the file."""
        path, content = paths.normalize(args["path"], new=True), encode_text(args["content"], "content")
        await workspace_files.write(self._db, call.actor.owner_id, path, content)
        return CallResult(output=f"Wrote {tool_output.pluralize(len(content), 'byte')} to {path}.")


class EditFile:
    """`edit_file`: replace text in a file."""

    spec = ToolSpec(
        name="edit_file",
        description="Replace text in a workspace file. Fails unless the old text occurs exactly once.",
        parameters=schema(
            "path",
            "old",
            "new",
            path=PATH,
            old={
                "type": "string",
                "minLength": 1,
                "description": "The exact text to replace, long enough to be unique.",
            },
            new={"type": "string", "description": "The replacement."},
            all={"type": "boolean", "description": "Replace all occurrences."},
        ),
        permissions=FS,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Replace the text."""
        path, times = paths.normalize(args["path"]), 0
        old, new = args["old"], args["new"]
        encode_text(new, "new")

        def edit(content: bytes) -> bytes:
            nonlocal times
            text = text_of(content, path)
            times = text.count(old)
            if not times:
                raise ToolError(f"The old text does not occur in {path}.", code="not_found")
            if times > 1 and not args.get("all", False):
                raise ToolError(f"The old text occurs {times} times in {path}. Give more of it, or set all.")
            size = len(content) + times * (len(new.encode()) - len(old.encode("utf-8", "replace")))
            if size > workspace_files.MAX_FILE_BYTES:
                raise ToolError(f"A file has at most {workspace_files.MAX_FILE_BYTES:,} bytes.", code="too_large")
            return text.replace(old, new).encode()

        await workspace_files.change(self._db, call.actor.owner_id, path, edit)
        return CallResult(output=f"Replaced {tool_output.pluralize(times, 'occurrence')} in {path}.")


class DeleteFile:
    """`delete_file`: delete a file."""

    spec = ToolSpec(
        name="delete_file",
        description="Delete a file of the workspace.",
        parameters=schema("path", path=PATH),
        permissions=FS,
        approval="ask",
        destructive=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Delete the file."""
        path = paths.normalize(args["path"])
        await workspace_files.delete(self._db, call.actor.owner_id, path)
        return CallResult(output=f"Deleted {path}.")


def encode_text(text: str, name: str) -> bytes:
    """The text as UTF-8. Raises `ToolError` for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"{name}: lone surrogates are not allowed.", code="bad_arguments") from error

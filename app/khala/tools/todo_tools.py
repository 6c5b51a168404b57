"""The tools `todo_add`, `todo_list` and `todo_complete`."""

from typing import Any

from khala.domain.tools import ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import todos
from khala.tools import tool_output
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.workspace_tools import encode_text, schema


class TodoAdd:
    """`todo_add`: add a todo."""

    spec = ToolSpec(
        name="todo_add",
        description="Add a todo to the list. Returns its number.",
        parameters=schema(
            "text",
            text={
                "type": "string",
                "minLength": 1,
                "maxLength": todos.MAX_TODO_CHARACTERS,
                "description": "What is to be done.",
            },
        ),
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Add the todo. The same call again adds nothing."""
        text = args["text"]
        encode_text(text, "text")
        if "\0" in text:
            raise ToolError("text: NUL characters are not allowed.", code="bad_arguments")
        number = await todos.add(self._db, call.actor.owner_id, text, key=call.idempotency_key)
        return CallResult(output={"id": number, "text": text}, media_type="application/json", summary=f"Todo {number}")


class TodoList:
    """`todo_list`: list all todos."""

    spec = ToolSpec(
        name="todo_list",
        description="List all todos with their numbers, completed ones included.",
        parameters=schema(),
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """List the todos."""
        async with self._db.driver() as driver:
            todo_list = await todos.of_owner(driver, call.actor.owner_id)
        open_todos = sum(not todo.done for todo in todo_list)
        return await tool_output.json_result(
            call.sink, {"todos": todo_list}, f"{tool_output.pluralize(len(todo_list), 'todo')}, {open_todos} open"
        )


class TodoComplete:
    """`todo_complete`: mark a todo as done."""

    spec = ToolSpec(
        name="todo_complete",
        description="Mark a todo as done.",
        parameters=schema(
            "id", id={"type": "integer", "minimum": 1, "maximum": 2**31 - 1, "description": "The number of the todo."}
        ),
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Mark the todo as done."""
        todo = await todos.complete(self._db, call.actor.owner_id, int(args["id"]))
        return CallResult(output=f"Todo {todo.id} is done: {todo.text}", summary=f"Todo {todo.id} is done")

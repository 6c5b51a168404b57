"""An MCP server for tests whose tools hang, fail, end the process or change, and record each call in a journal.

Run as `python -m tests.support.mcp_server stdio JOURNAL`, `… http JOURNAL PORT` or `… modern JOURNAL PORT`. The last
speaks only the protocol version without a handshake. The journal has one JSON line for each thing that happens.
"""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.json_lines import objects

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
PYLON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 1, "maxLength": 20},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "warp": {"type": "boolean", "default": False},
        "side": {"type": "string", "enum": ["left", "right"]},
    },
    "required": ["name"],
}
BROKEN = {"type": "object", "properties": {"a": {"type": 42}}}
LONG = "a_tool_with_a_name_that_is_so_long_that_no_provider_of_models_would_ever_take_it"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PAGE = 5

Context = ServerRequestContext[Any, Any]


def _tool(name: str, schema: dict[str, Any] = NUMBER, **hints: Any) -> types.Tool:
    annotations = types.ToolAnnotations(**hints) if hints else None
    return types.Tool(name=name, description=f"Does {name}.", input_schema=schema, annotations=annotations)


class Peculiar:
    """The journal of the server."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.grown = 0
        self.bus = InMemorySubscriptionBus()

    def note(self, **entry: Any) -> None:
        with self._journal.open("a") as file:
            file.write(json.dumps(entry | {"pid": os.getpid()}) + "\n")

    def listed(self) -> list[types.Tool]:
        tools = [
            _tool("echo", TEXT, read_only_hint=True),
            _tool("fail"), _tool("hang"), _tool("count", idempotent_hint=True), _tool("once"), _tool("slow"),
            _tool("big"), _tool("huge"), _tool("image"), _tool("mixed"), _tool("json"), _tool("whoami"), _tool("spawn"),
            _tool("ask"), _tool("capabilities"), _tool("question", idempotent_hint=True),
            _tool("need", idempotent_hint=True), _tool("need_once"),
            _tool("deed", idempotent_hint=True), _tool("grow"),
            _tool("risk", title="Take a  risk\u202e", destructive_hint=True),
            _tool("a.b"), _tool("a_b"), _tool("a/b"), _tool(LONG), _tool("broken", BROKEN),
            types.Tool(name="talkative", description="Blah\u202e " * 10_000, input_schema=NUMBER),
        ]  # fmt: skip
        return tools + [_tool(f"grown_{number}") for number in range(self.grown)]

    async def list_tools(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        start = int(params.cursor) if params and params.cursor else 0
        tools = self.listed()
        following = str(start + PAGE) if start + PAGE < len(tools) else None
        return types.ListToolsResult(tools=tools[start : start + PAGE], next_cursor=following)

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        key = (ctx.meta or {}).get("khala/idempotencyKey")
        args = params.arguments or {}
        identity = {name: value for name, value in (ctx.meta or {}).items() if name in ("khala/user", "khala/thread")}
        self.note(event="began", tool=params.name, key=key, n=args.get("n"), identity=identity)
        try:
            method: Callable[[Context, dict[str, Any]], Awaitable[Any]] | None = getattr(self, f"_{params.name}", None)
            if params.name.startswith("need"):
                answer = await self._need(args, params)
            else:
                answer = await method(ctx, args) if method else f"{params.name} done"
        except anyio.get_cancelled_exc_class():
            self.note(event="cancelled", tool=params.name, key=key)
            raise
        self.note(event="done", tool=params.name, key=key)
        if isinstance(answer, types.CallToolResult | types.InputRequiredResult):
            return answer
        return _text_result(str(answer))

    async def _echo(self, _: Context, args: dict[str, Any]) -> str:
        return str(args["text"])

    async def _fail(self, *_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="it went wrong")], is_error=True)

    async def _hang(self, *_: Any) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    async def _count(self, _: Context, args: dict[str, Any]) -> str:
        """The first call waits long enough for the server to be killed; later calls return at once."""
        if len(calls(self._journal, "count")) <= (args.get("n") or 0):
            await anyio.sleep(60)
        return f"counted {len(calls(self._journal, 'count'))}"

    _once = _count

    async def _deed(self, ctx: Context, args: dict[str, Any]) -> str:
        """Counts once for each idempotency key, however often it is called."""
        key = (ctx.meta or {}).get("khala/idempotencyKey")
        if not any(one["key"] == key for one in calls(self._journal, "deed", "did")):
            self.note(event="did", tool="deed", key=key, n=args.get("n"))
        await anyio.sleep(0.3)
        return f"deed {args.get('n')} is done"

    async def _risk(self, ctx: Context, args: dict[str, Any]) -> str:
        self.note(event="did", tool="risk", key=(ctx.meta or {}).get("khala/idempotencyKey"), n=args.get("n"))
        await anyio.sleep(1)
        return "it went well"

    async def _ask(self, ctx: Context, args: dict[str, Any]) -> str:
        """Has the client call a model, as the arguments say."""
        meta = {"khala/idempotencyKey": (ctx.meta or {}).get("khala/idempotencyKey")} if args.get("named") else {}
        params = {
            "messages": [{"role": "user", "content": {"type": "text", "text": args.get("text", "Say pylon.")}}],
            "maxTokens": 100, **args.get("params", {}), "_meta": meta,
        }  # fmt: skip
        request = types.CreateMessageRequest(params=types.CreateMessageRequestParams.model_validate(params))
        answers = []
        for _ in range(args.get("times", 1)):
            try:
                answer = await ctx.session.send_request(request, types.CreateMessageResult)
            except MCPError as error:
                return f"refused: {error.message}"
            answers.append(answer.model_dump(by_alias=True, mode="json", exclude_none=True))
            self.note(event="sampled", tool="ask", key=(ctx.meta or {}).get("khala/idempotencyKey"))
        return json.dumps(answers[-1])

    async def _question(self, ctx: Context, args: dict[str, Any]) -> str:
        """Has the client ask the person, as the arguments say."""
        params = args.get("params", {})
        kind = types.ElicitRequestURLParams if params.get("mode") == "url" else types.ElicitRequestFormParams
        form = {"message": "Which pylon?", "requestedSchema": PYLON} if kind is types.ElicitRequestFormParams else {}
        meta = {"khala/idempotencyKey": (ctx.meta or {}).get("khala/idempotencyKey")}
        request = types.ElicitRequest(params=kind.model_validate({**form, **params, "_meta": meta}))
        answers = []
        for _ in range(args.get("times", 1)):
            try:
                answer = await ctx.session.send_request(request, types.ElicitResult)
            except MCPError as error:
                return f"refused: {error.message}"
            answers.append(answer.model_dump(by_alias=True, mode="json", exclude_none=True))
            self.note(event="answered", tool="question", **answers[-1])
        return json.dumps(answers)

    async def _need(self, args: dict[str, Any], params: types.CallToolRequestParams) -> str | types.InputRequiredResult:
        """Requires the inputs of `rounds`, one round after the other, and returns the responses of all rounds.

        The state has the responses so far. With `hang`, the first call after so many rounds hangs.
        """
        state = json.loads(params.request_state or "[]")
        given = params.input_responses
        if params.request_state is not None or given is not None:
            state.append({name: one.model_dump(mode="json", exclude_none=True) for name, one in (given or {}).items()})
        rounds = args.get("rounds", [])
        if len(state) == args.get("hang") and not calls(self._journal, params.name, "hangs"):
            self.note(event="hangs", tool=params.name)
            await anyio.sleep(60)
        if len(state) >= len(rounds) and not args.get("endless"):
            return json.dumps(state)
        requests = rounds[len(state) % len(rounds)] if rounds else {}
        return types.InputRequiredResult.model_validate(
            {"resultType": "input_required", "inputRequests": requests or None, "requestState": json.dumps(state)}
        )

    async def _capabilities(self, ctx: Context, _: dict[str, Any]) -> str:
        given = ctx.session.client_capabilities
        return "nothing" if given is None else given.model_dump_json(exclude_none=True)

    async def _slow(self, ctx: Context, args: dict[str, Any]) -> str:
        for step in range(3):
            await ctx.session.report_progress(step + 1, 3, f"step {step + 1}")
            await anyio.sleep(0.05)
        return "at last"

    async def _big(self, _: Context, args: dict[str, Any]) -> str:
        return "x" * (args.get("n") or 1_000_000)

    async def _huge(self, *_: Any) -> str:
        return "x" * (17 << 20)

    async def _image(self, *_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[_png()])

    async def _mixed(self, *_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="look:"), _png()])

    async def _json(self, *_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text='{"a": 1}')], structured_content={"a": 1})

    async def _whoami(self, *_: Any) -> str:
        return json.dumps({"pid": os.getpid(), "parent": os.getppid(), "env": dict(os.environ), "cwd": str(Path.cwd())})

    async def _spawn(self, *_: Any) -> str:
        """Start a grandchild that leaves the process group and outlives the server if it can."""
        return str(subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL).pid)

    async def _grow(self, ctx: Context, _: dict[str, Any]) -> str:
        self.grown += 1
        await self.bus.publish(ToolsListChanged())
        await ctx.session.send_tool_list_changed()
        return "grown"


def calls(journal: Path, tool: str, event: str = "began") -> list[dict[str, Any]]:
    """The journal's entries of this tool."""
    return [entry for entry in objects(journal) if entry["tool"] == tool and entry["event"] == event]


def _text_result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


def _png() -> types.ImageContent:
    return types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")


def made(journal: Path) -> Server[Any]:
    peculiar = Peculiar(journal)
    return Server(
        "peculiar",
        version="1",
        on_list_tools=peculiar.list_tools,
        on_call_tool=peculiar.call_tool,
        on_subscriptions_listen=ListenHandler(peculiar.bus),
    )


async def serve_stdio(server: Server[Any]) -> None:
    print("what is meant for people", flush=True)
    print("a complaint", file=sys.stderr, flush=True)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


class WithoutHandshake:
    """Refuses the handshake of older protocol versions, as a server does that has only the newer one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        message = json.loads(body)
        if message["method"] == "initialize":
            error = {"code": types.METHOD_NOT_FOUND, "message": "Method not found"}
            answer = JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, status_code=404)
            await answer(scope, receive, send)
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Any:
            return unread.pop() if unread else await receive()

        await self._app(scope, receive_again, send)


async def serve_http(server: Server[Any], port: int, *, handshake: bool) -> None:
    app: ASGIApp = server.streamable_http_app()
    if not handshake:
        app = WithoutHandshake(app)
    config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0)
    await uvicorn.Server(config).serve()


def main(transport: str, journal: str, port: str = "0") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = made(Path(journal))
    if transport == "stdio":
        asyncio.run(serve_stdio(server))
    else:
        asyncio.run(serve_http(server, int(port), handshake=transport == "http"))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`/api/chat`: the endpoint of the AI SDK's `DefaultChatTransport`, its replay, a stop, and the initial messages."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter
from litestar.response import Stream
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import BY_KEY, OPEN_TO_THREAD_TOKENS
from khala.api.ai_sdk.chunk_stream import HEADERS, ChunkStream
from khala.api.ai_sdk.submission import ChatRun, ChatSubmission, resumed
from khala.api.ai_sdk.types import MAX_CHAT_ID_CHARACTERS, ChatRequest, UiMessage
from khala.api.ai_sdk.ui_messages import ui_messages
from khala.api.chats.chat_ids import thread_id_of
from khala.api.chats.chat_runs import find_active_run
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.http.server_sent_events import stream_response
from khala.domain.access import Action, Caller
from khala.domain.errors import ThreadNotFound
from khala.store.runs import runs
from khala.store.sharing import access
from khala.store.threads import thread_feed

MAX_CHAT_BODY_BYTES = 8 << 20
"""Includes files, which the body contains as data URLs."""
DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
ChatIdParameter = Annotated[
    str,
    PathParameter(
        description="The chat's id: a thread's, or any other of the client.", max_length=MAX_CHAT_ID_CHARACTERS
    ),
]


class ChatController(Controller):
    """Chats of the AI SDK."""

    path = "/chat"
    tags = ("AI SDK",)
    security = BY_KEY

    @post(
        "/",
        status_code=200,
        include_in_schema=False,
        request_max_body_size=MAX_CHAT_BODY_BYTES,
        lenient=True,
        opt={OPEN_TO_THREAD_TOKENS: True},
    )
    async def chat(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[ChatRequest, BodyKwarg()],
    ) -> Stream:
        """Answer the last message with a run of the chat's thread. The run continues if the client disconnects."""
        submission = ChatSubmission(
            context=context, caller=caller, request=data, anon_key=request.headers.get("x-anon-key")
        )
        return _stream(context, caller, await submission.accept())

    @get("/{chat_id:str}/stream", include_in_schema=False)
    async def resume(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], chat_id: ChatIdParameter
    ) -> Response[Any] | Stream:
        """Send the newest answer from its beginning, as far as it is written, and then each change."""
        active = await find_active_run(context, caller, thread_id_of(chat_id, caller), Action.READ_THREAD)
        if active is None:
            return Response(None, status_code=204)
        return _stream(context, caller, await resumed(context, active))

    @post(
        "/{chat_id:str}/stop",
        operation_id="stopChat",
        summary="Cancel the answer that is being written",
        status_code=204,
        responses=documented_errors(*DENIED),
    )
    async def stop(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], chat_id: ChatIdParameter
    ) -> None:
        """Cancel the newest answer, if it is being written. Its text so far is kept."""
        active = await find_active_run(context, caller, thread_id_of(chat_id, caller), Action.CANCEL_RUN)
        if active is not None:
            await runs.cancel(context.db, active.id, caller)

    @get(
        "/{chat_id:str}",
        operation_id="readChat",
        summary="Read the messages of a chat",
        response_description="Messages, in order.",
        responses=documented_errors(*DENIED),
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        chat_id: ChatIdParameter,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of messages.")] = 100,
    ) -> list[UiMessage]:
        """Read the newest messages of the active branch, for `useChat`. A chat without a thread has none."""
        thread_id = thread_id_of(chat_id, caller)
        async with context.db.snapshot() as driver:
            try:
                await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            except ThreadNotFound:
                return []
            snapshot = await thread_feed.read_snapshot(driver, thread_id, limit=limit)
        return ui_messages(snapshot.messages, snapshot.thread.active_leaf)


def _stream(context: Context, caller: Caller, chat: ChatRun) -> Stream:
    run = chat.run
    bind_contextvars(thread_id=str(run.thread_id), run_id=str(run.run_id))
    headers = HEADERS | {"x-thread-id": str(run.thread_id), "x-run-id": str(run.run_id)}
    return stream_response(ChunkStream(context, caller, chat).events(), headers)

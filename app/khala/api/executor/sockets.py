"""The executor protocol over WebSocket: subprotocol `khala.executor.v1`, JSON text frames."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, TypeAlias, assert_never

import msgspec
import structlog
from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from khala.api.accounts.authentication import authenticate_socket
from khala.api.context import Context
from khala.api.http.problem_details import FieldError, Problem, create_problem
from khala.api.http.request_origin import may_open_socket
from khala.api.http.websocket_protocol import PROTOCOL_KEY, WebSocketProtocol
from khala.domain.access import require_scope
from khala.domain.errors import Forbidden, InvalidInput, KhalaError, Unauthorized, WrongSeq
from khala.domain.executor_protocol import (
    AppendAnswer,
    AppendFrame,
    ApprovalFrame,
    ClaimAnswer,
    ClaimFrame,
    ExecutorFrame,
    ExecutorHello,
    FinishFrame,
    HeartbeatAnswer,
    HeartbeatFrame,
    HeartbeatState,
    LeaseRef,
    ReleaseFrame,
    ResultFrame,
    RunChangedFrame,
    RunEnd,
    WorkerFrame,
)
from khala.domain.json_bodies import check_containers
from khala.live.encoded_frame import EncodedFrame
from khala.workers.attached_runs import Worker, worker_of

log = structlog.get_logger()

SUBPROTOCOL = "khala.executor.v1"
MAX_REQUESTS_IN_FLIGHT = 64
"""Requests of one socket that are being served. While there are so many, no frame is read."""
MAX_BAD_FRAMES = 10
"""After so many invalid frames, the connection is closed."""
POLICY_VIOLATION = 1008

Socket: TypeAlias = WebSocket[Any, Any, Any]
WorkerAnswer: TypeAlias = ClaimAnswer | AppendAnswer | HeartbeatAnswer | RunEnd

decoder: msgspec.json.Decoder[WorkerFrame] = msgspec.json.Decoder(WorkerFrame)


class ProblemFrame(ExecutorFrame, frozen=True, kw_only=True, tag="problem", omit_defaults=False):
    """The error of the request `id`; null for a frame that is no request."""

    id: int | None
    problem: Problem


class _FrameId(msgspec.Struct):
    id: int | None = None


@websocket("/executor/ws")
async def execute(socket: Socket, context: NamedDependency[Context]) -> None:
    """Serve the requests of a worker until either side closes the socket."""
    if not may_open_socket(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limits.requests.check(socket, context.origins)
    worker = await _authenticate(socket, context)
    offered = socket.headers.get("sec-websocket-protocol", "")
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in offered.replace(" ", "").split(",") else None)
    await _WorkerSocket(socket, context, worker).serve()


async def _authenticate(socket: Socket, context: Context) -> Worker:
    account = await authenticate_socket(socket, context)
    require_scope(account, "execute")
    return worker_of(account)


class _WorkerSocket:
    """One connection of a worker."""

    def __init__(self, socket: Socket, context: Context, worker: Worker) -> None:
        self._socket = socket
        self._context = context
        self._gateway = context.workers
        self._worker = worker
        self._protocol: WebSocketProtocol = socket.scope["state"][PROTOCOL_KEY]
        self._in_flight = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        self._bad_frames = 0
        self._is_revoked = False
        self._token_checked_at = time.monotonic()

    async def serve(self) -> None:
        """Serve until the worker disconnects, sends too many bad frames, or its token is revoked."""
        await self._send(ExecutorHello(lease_seconds=self._gateway.options.lease_seconds))
        async with asyncio.TaskGroup() as group:
            is_closed = await self._listen(group)
            for task in list(group._tasks):  # noqa: SLF001  # a TaskGroup has no other way to end its tasks
                task.cancel()
        if not is_closed:
            reason = "The token was revoked." if self._is_revoked else "Too many bad frames."
            await self._socket.close(code=POLICY_VIOLATION, reason=reason)

    async def _listen(self, group: asyncio.TaskGroup) -> bool:
        """Serve requests side by side. Those of one run are served in their order. Returns whether the worker left."""
        while self._bad_frames < MAX_BAD_FRAMES and not self._is_revoked:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return True
            try:
                frame = _decode(message)
            except KhalaError as error:
                self._bad_frames += 1
                await self._send(ProblemFrame(id=_frame_id(message), problem=_problem(error)))
                continue
            await self._in_flight.acquire()
            group.create_task(self._serve(frame))
        return False

    async def _serve(self, frame: WorkerFrame) -> None:
        try:
            answer = await self._answer(frame)
            await self._send(ResultFrame(id=frame.id, result=answer))
        except KhalaError as error:
            await self._send(ProblemFrame(id=frame.id, problem=_problem(error)))
        except Exception:
            # Caught, because it would end the requests of all other runs of this worker.
            log.exception("executor_frame_crashed")
            problem = create_problem("internal", "An unexpected error occurred. It was logged.")
            await self._send(ProblemFrame(id=frame.id, problem=problem))
        finally:
            self._in_flight.release()

    async def _answer(self, frame: WorkerFrame) -> WorkerAnswer:
        is_stale = time.monotonic() - self._token_checked_at > self._gateway.options.lease_seconds / 2
        if is_stale or isinstance(frame, ClaimFrame | HeartbeatFrame):
            await self._check_token()
        match frame:
            case ClaimFrame():
                claimed = await self._gateway.claim(self._worker, frame)
                self._subscribe([LeaseRef(run_id=run.run_id, epoch=run.epoch) for run in claimed.runs])
                return claimed
            case AppendFrame():
                appended = await self._gateway.append(self._worker, frame.run_id, frame)
                self._subscribe([LeaseRef(run_id=frame.run_id, epoch=frame.epoch)])
                return appended
            case HeartbeatFrame():
                self._subscribe(frame.runs)
                return await self._gateway.heartbeat(self._worker, frame)
            case ApprovalFrame():
                return await self._gateway.ask(self._worker, frame.run_id, frame)
            case FinishFrame():
                return await self._gateway.finish(self._worker, frame.run_id, frame)
            case ReleaseFrame():
                return await self._gateway.release(self._worker, frame.run_id, frame)
            case _:
                assert_never(frame)

    async def _check_token(self) -> None:
        """Authenticate again: before each claim and heartbeat, and else twice per lease."""
        self._token_checked_at = time.monotonic()
        try:
            self._worker = await _authenticate(self._socket, self._context)
        except (Unauthorized, Forbidden):
            self._is_revoked = True
            raise

    def _subscribe(self, runs: Iterable[LeaseRef]) -> None:
        for run in runs:
            self._gateway.subscribe(self._worker, run.run_id, run.epoch, self._publish)

    def _publish(self, state: HeartbeatState) -> None:
        """Tell the worker about a run. If the socket does not take it now, the next heartbeat tells it."""
        self._protocol.write(EncodedFrame.encode(RunChangedFrame(state=state)).websocket_message)

    async def _send(self, frame: ExecutorFrame) -> None:
        await self._protocol.deliver(EncodedFrame.encode(frame).websocket_message)


def _decode(message: Any) -> WorkerFrame:
    text = message.get("text")
    if text is None:
        raise InvalidInput("Frames are JSON text.")
    check_containers(text)
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not a frame of this protocol: {error}.") from error


def _frame_id(message: Any) -> int | None:
    """Return the id of an invalid frame, if it can be read."""
    try:
        return msgspec.json.decode(message.get("text") or "{}", type=_FrameId).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _problem(error: KhalaError) -> Problem:
    places = [(error.path, error.message), *error.more] if isinstance(error, InvalidInput) and error.path else []
    return create_problem(
        error.code,
        error.message,
        [FieldError(path, message) for path, message in places],
        expected_seq=error.expected_seq if isinstance(error, WrongSeq) else None,
    )

"""One answer over each protocol, from any of its cursors: a stream of frames, and the cursor that a client has."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import httpx
import msgspec
import websockets
from websockets.asyncio.client import connect

from tests.support.in_process import InProcessServer
from tests.support.known_answer import KnownAnswer

Frame = Any
"""A frame with its id, and its data."""


class FollowedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a thread, and the credentials of a client that follows it. `revision` is from before the run."""

    inside: InProcessServer
    headers: dict[str, str]
    thread_id: str
    run_id: str
    revision: int

    async def events(self, path: str, **params: Any) -> AsyncIterator[Frame]:
        """The server-sent events of a path, as their ids and data."""
        headers = self.headers | {"Accept": "text/event-stream"}
        async with self.inside.http.stream("GET", path, params=params, headers=headers, timeout=None) as response:
            assert response.status_code == httpx.codes.OK, await response.aread()
            fields: dict[str, str] = {}
            async for line in response.aiter_lines():
                name, _, value = line.partition(":")
                if name:
                    fields[name] = fields[name] + "\n" + value if name in fields else value
                elif not line:
                    if "data" in fields and fields["data"].strip() != "[DONE]":
                        yield fields.get("id", "").strip() or None, json.loads(fields["data"])
                    fields = {}

    async def cursor(self, **params: Any) -> dict[str, Any]:
        """The cursors of all protocols at the place of this one."""
        found = await self.inside.http.get(f"/api/runs/{self.run_id}/cursor", params=params, headers=self.headers)
        return dict(found.raise_for_status().json())


class FeedOverWebSocket:
    """The feed of the thread over a WebSocket."""

    def start(self, answer: FollowedAnswer) -> Any:
        return answer.revision

    def after(self, cursor: dict[str, Any]) -> Any:
        return cursor["revision"]

    async def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        subprotocols = [websockets.Subprotocol("khala.v1")]
        async with connect(
            answer.inside.socket_url, subprotocols=subprotocols, additional_headers=answer.headers
        ) as socket:
            await socket.send(json.dumps({"type": "subscribe", "threadId": answer.thread_id, "after": after}))
            async for message in socket:
                frame = json.loads(message)
                if frame["type"] not in ("hello", "presence"):
                    yield frame["revision"], frame

    def had(self, frames: Sequence[Frame]) -> dict[str, Any]:
        """The parameters of the conversion."""
        seqs = [part["seq"] for _, frame in frames for part in frame["parts"]]
        return {"position": seqs[-1] + 1 if seqs else 0}

    def apply(self, frames: Sequence[Frame], known: KnownAnswer, position: int = 0) -> None:
        for _, frame in frames:
            assert frame["type"] == "delta"
            known.apply_parts(part for part in frame["parts"] if part["seq"] >= position)

    def is_end(self, frame: Frame) -> bool:
        return any(part["kind"] == "finish" for part in frame[1]["parts"])


class FeedAsEvents(FeedOverWebSocket):
    """The feed of the thread as server-sent events."""

    def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        return answer.events(f"/api/threads/{answer.thread_id}/events", after=after)


class FeedAsStream(FeedOverWebSocket):
    """The thread as a stream of the Durable Streams protocol."""

    def start(self, answer: FollowedAnswer) -> Any:
        return f"{0:016d}_{answer.revision:016d}"

    def after(self, cursor: dict[str, Any]) -> Any:
        return cursor["offset"]

    async def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        async for _, data in answer.events(f"/v1/stream/threads/{answer.thread_id}", offset=after, live="sse"):
            if isinstance(data, list):
                for frame in data:
                    yield frame["revision"], frame


class AiSdkStream:
    """The UI message stream of the AI SDK, which begins from the start."""

    def start(self, answer: FollowedAnswer) -> Any:
        return None

    def after(self, cursor: dict[str, Any]) -> Any:
        return None

    def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        return answer.events(f"/api/chat/{answer.thread_id}/stream")

    def had(self, frames: Sequence[Frame]) -> dict[str, Any]:
        return {"position": next((int(event_id) for event_id, _ in reversed(frames) if event_id), 0)}

    def apply(self, frames: Sequence[Frame], known: KnownAnswer, position: int = 0) -> None:
        known.apply_chunks(chunk for _, chunk in frames)

    def is_end(self, frame: Frame) -> bool:
        return frame[1]["type"] == "finish" and "messageMetadata" in frame[1]


class AgUiStream:
    """The events of AG-UI, which TanStack AI's clients read, too."""

    def start(self, answer: FollowedAnswer) -> Any:
        return None

    def after(self, cursor: dict[str, Any]) -> Any:
        return cursor["eventId"]

    def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        more = {} if after is None else {"after": after}
        return answer.events("/api/ag-ui", runId=answer.run_id, **more)

    def had(self, frames: Sequence[Frame]) -> dict[str, Any]:
        ids = [event_id for event_id, _ in frames if event_id]
        return {"eventId": ids[-1]} if ids else {"position": 0}

    def apply(self, frames: Sequence[Frame], known: KnownAnswer, position: int = 0) -> None:
        known.apply_agent_events(event for _, event in frames)

    def is_end(self, frame: Frame) -> bool:
        return bool(frame[1]["type"] == "RUN_FINISHED" and frame[1]["outcome"]["type"] == "success")


class ResponseStream:
    """The events of OpenAI's Responses API."""

    def start(self, answer: FollowedAnswer) -> Any:
        return None

    def after(self, cursor: dict[str, Any]) -> Any:
        return cursor["sequenceNumber"]

    def frames(self, answer: FollowedAnswer, after: Any) -> AsyncIterator[Frame]:
        more = {} if after is None else {"starting_after": after}
        return answer.events(f"/v1/responses/resp_{UUID(answer.run_id).hex}", stream="true", **more)

    def had(self, frames: Sequence[Frame]) -> dict[str, Any]:
        return {"sequenceNumber": frames[-1][1]["sequence_number"]} if frames else {"position": 0}

    def apply(self, frames: Sequence[Frame], known: KnownAnswer, position: int = 0) -> None:
        known.apply_response_events(event for _, event in frames)

    def is_end(self, frame: Frame) -> bool:
        return bool(frame[1]["type"] == "response.completed")


PROTOCOLS: dict[str, Any] = {
    "WebSocket": FeedOverWebSocket(),
    "server-sent events": FeedAsEvents(),
    "Durable Streams": FeedAsStream(),
    "AI SDK": AiSdkStream(),
    "AG-UI": AgUiStream(),
    "Responses": ResponseStream(),
}

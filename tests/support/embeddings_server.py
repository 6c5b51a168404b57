"""A local server that speaks OpenAI's embeddings protocol, with scripted vectors and failures.

A text's vector says which concepts it has: `concepts` lists groups of words that mean the same, and each group is a
dimension. So a test knows which texts are near each other:

    async with serving_embeddings(concepts=[("dog", "puppy"), ("car", "automobile")]) as server:
        ...                                     # "my puppy" is near "a dog", and far from "an automobile"

The last dimension is for texts without any concept; they are near each other only.
"""

import asyncio
import base64
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class EmbeddingReply:
    """The reply to one call; by default a correct one."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Time before the reply."""
    pause: float = 0.0
    """Time after each byte of the reply."""
    body: Any = None
    """This JSON instead of the vectors."""
    raw: bytes | None = None
    """This body instead."""
    change: Callable[[list[list[float]]], Sequence[Any]] | None = None
    """Changes the vectors before they are sent."""
    plain: bool = False
    """Send lists of numbers even if base64 is requested, as some servers do."""
    reverse: bool = False
    """Send the vectors in the opposite order, with their indexes."""
    usage: bool = True


class EmbeddingServer:
    """Answers calls by a script, and records them. After the script, `default` is the reply."""

    def __init__(self, concepts: Sequence[Sequence[str]]) -> None:
        self.concepts = concepts
        self.script: deque[EmbeddingReply] = deque()
        self.default = EmbeddingReply()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.url = ""
        self.poison: str | None = None
        """A call with a text that has this word gets the reply `poisoned` as a whole."""
        self.poisoned = EmbeddingReply(status=400)

    @property
    def texts(self) -> list[str]:
        """All texts that were sent, in order."""
        return [text for request in self.requests for text in request["input"]]

    def vector(self, text: str) -> list[float]:
        """The scripted vector of a text."""
        words = text.lower()
        values = [float(any(word in words for word in group)) for group in self.concepts]
        return [*values, 0.0 if any(values) else 1.0]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Reply to one call."""
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        reply = self.script.popleft() if self.script else self.default
        if self.poison is not None and any(self.poison in text for text in body["input"]):
            reply = self.poisoned
        if reply.seconds:
            await asyncio.sleep(reply.seconds)
        if reply.raw is not None:
            return web.Response(body=reply.raw, status=reply.status, headers=reply.headers)
        if reply.body is not None or reply.status != 200:
            failure = {"error": {"message": "scripted failure", "type": "scripted"}}
            return web.json_response(reply.body or failure, status=reply.status, headers=reply.headers)
        if reply.pause:
            return await self._drip(request, self._result(body, reply), reply.pause)
        return web.json_response(self._result(body, reply))

    async def _drip(self, request: web.Request, result: dict[str, Any], pause: float) -> web.StreamResponse:
        """Send the reply byte by byte."""
        response = web.StreamResponse()
        await response.prepare(request)
        for byte in json.dumps(result).encode():
            await response.write(bytes([byte]))
            await asyncio.sleep(pause)
        return response

    def _result(self, body: Mapping[str, Any], reply: EmbeddingReply) -> dict[str, Any]:
        texts = body["input"]
        vectors: Sequence[Any] = [self.vector(text) for text in texts]
        if "dimensions" in body:
            vectors = [(list(vector) + [0.0] * body["dimensions"])[: body["dimensions"]] for vector in vectors]
        if reply.change is not None:
            vectors = reply.change([list(vector) for vector in vectors])
        encode = list if reply.plain or body.get("encoding_format") != "base64" else as_base64
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ]
        words = sum(len(text.split()) for text in texts)
        usage = {"usage": {"prompt_tokens": words, "total_tokens": words}} if reply.usage else {}
        return {"object": "list", "model": body["model"], "data": data[::-1] if reply.reverse else data} | usage


def as_base64(vector: Sequence[float]) -> str:
    """The values as little-endian 32-bit floats."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@asynccontextmanager
async def serving_embeddings(
    concepts: Sequence[Sequence[str]] = (), replies: Sequence[EmbeddingReply] = ()
) -> AsyncIterator[EmbeddingServer]:
    """A server that listens for as long as this is open; `url` ends with `/v1`."""
    server = EmbeddingServer(concepts)
    server.script.extend(replies)
    application = web.Application(client_max_size=16 << 20)
    application.router.add_post("/v1/embeddings", server.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}/v1"
        yield server
    finally:
        await runner.cleanup()

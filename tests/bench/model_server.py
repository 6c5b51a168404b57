"""Model server of the benchmark: the scripted provider, which timestamps its tokens and records what it sent."""

from collections import defaultdict
from dataclasses import replace
from typing import assert_never

import msgspec
import uvloop

from tests.bench.processes import Address, Listen, Request, serve_requests
from tests.support.providers import Call, Reply, Server, by_words, serving


class ReadTexts(Request, frozen=True, kw_only=True):
    """Return all text that was sent since the last such request; answered by `SentTexts`."""


class SentTexts(msgspec.Struct, frozen=True):
    """By prompt, the text that was sent."""

    by_prompt: dict[str, str]


class Recorder:
    """Chooses the answers, and records each token when it is sent. A prompt that came twice has both answers."""

    def __init__(self) -> None:
        self._sent: dict[str, list[str]] = defaultdict(list)
        self._script = by_words(tokens=100, pace=30.0, stamp=True)

    def __call__(self, call: Call) -> Reply:
        """The scripted answer, whose tokens will be recorded."""
        token, sent = call.wire.token, self._sent[call.wire.prompt(call.body)]

        def recorded(text: str) -> bytes:
            sent.append(text)
            return token(text)

        call.wire = replace(call.wire, token=recorded)
        return self._script(call)

    def take(self) -> SentTexts:
        """Return and forget the recorded text."""
        texts = SentTexts({prompt: "".join(tokens) for prompt, tokens in self._sent.items()})
        self._sent.clear()
        return texts


requests: msgspec.json.Decoder[Listen | ReadTexts] = msgspec.json.Decoder(Listen | ReadTexts)


async def answer(request: Listen | ReadTexts, server: Server, recorder: Recorder) -> Address | SentTexts:
    """Answer one request of the benchmark."""
    match request:
        case Listen():
            return Address(server.url)
        case ReadTexts():
            return recorder.take()
        case _:
            assert_never(request)


async def main() -> None:
    """Serve until the input ends."""
    recorder = Recorder()
    async with serving(default=recorder) as server:
        server.keep_calls = False
        await serve_requests(requests, lambda request: answer(request, server, recorder))


if __name__ == "__main__":
    uvloop.run(main())

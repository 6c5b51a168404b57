"""The model server of the bench: the tests' scripted one, with its tokens stamped and what it said remembered."""

from collections import defaultdict
from dataclasses import replace
from typing import assert_never

import msgspec
import uvloop

from tests.bench.processes import Address, Listen, Request, answering
from tests.support.providers import Call, Reply, Server, by_words, serving


class Said(Request, frozen=True, kw_only=True):
    """Asks for all that was said since this was last asked; answered by `Texts`."""


class Texts(msgspec.Struct, frozen=True):
    """By prompt, the text that was sent."""

    by_prompt: dict[str, str]


class Recorder:
    """Chooses the answers, and remembers each token as it goes out. A prompt that was asked twice has both answers."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = defaultdict(list)
        self._script = by_words(tokens=100, pace=30.0, stamp=True)

    def __call__(self, call: Call) -> Reply:
        """The scripted answer; from here on the call's tokens are written down."""
        token, said = call.wire.token, self._said[call.wire.prompt(call.body)]

        def recorded(text: str) -> bytes:
            said.append(text)
            return token(text)

        call.wire = replace(call.wire, token=recorded)
        return self._script(call)

    def take(self) -> Texts:
        """What was said since the last time."""
        texts = Texts({prompt: "".join(tokens) for prompt, tokens in self._said.items()})
        self._said.clear()
        return texts


requests: msgspec.json.Decoder[Listen | Said] = msgspec.json.Decoder(Listen | Said)


async def answer(request: Listen | Said, server: Server, recorder: Recorder) -> Address | Texts:
    """One request of the bench."""
    match request:
        case Listen():
            return Address(server.url)
        case Said():
            return recorder.take()
        case _:
            assert_never(request)


async def main() -> None:
    """Serve until the input ends."""
    recorder = Recorder()
    async with serving(default=recorder) as server:
        server.keep_calls = False
        await answering(requests, lambda request: answer(request, server, recorder))


if __name__ == "__main__":
    uvloop.run(main())

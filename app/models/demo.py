"""The demo model: answers without a key, a network or an intelligence, by a script that the message can direct.

Directives are words of the user's message:

    /words=300     that many numbered words (word1 word2 …), at most 20,000
    /pace=200      tokens a second, at most 10,000; 0 is as fast as possible
    /fail=20       lose the connection after 20 tokens; 0 is before the first
    /hang=20       say 20 tokens, then nothing until cancelled
    /empty         answer nothing
    /ratelimit=2   always fail with `rate_limited` and a wait of 2 seconds; `/ratelimit=2,3` so for the first 3 calls
                   (at most 9) of this model object with this very message, then answer once, and begin anew
    /echo TEXT     stream the rest of the message, exactly; directives before it still count
    /help          list these directives

A directive that can't be read is left alone, as any other word. An answer that was interrupted goes on where it ended;
tokens are counted from its first beginning.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from app.domain.parts import Usage
from app.models import tokens
from app.models.demo_script import Script, delays, write
from app.models.port import Completed, Event, ModelFailed, Prompt, Text

REMEMBERED = 1000
"""Rate-limited messages whose calls are counted at a time."""


class DemoModel:
    """A model that ships with the product; see the module for what it can be told."""

    name = "demo"
    provider = "demo"

    def __init__(self) -> None:
        self._limited: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Event]]:
        """Play the script for the prompt's last user turn. See `port.Model.stream`."""
        asked = next((turn.text for turn in reversed(prompt.turns) if turn.role == "user"), "")
        script = write(asked, said=prompt.said, limit=prompt.max_output_tokens)
        self._hold_back(asked, script)
        async with aclosing(_play(script, prompt)) as events:
            yield events

    def _hold_back(self, asked: str, script: Script) -> None:
        if script.retry_after is None:
            return
        if script.refusals is not None and self._limited[asked] >= script.refusals:
            del self._limited[asked]
            return
        if len(self._limited) >= REMEMBERED:
            self._limited.clear()
        self._limited[asked] += 1
        raise ModelFailed(
            "rate_limited",
            "The demo model was told to receive too many requests.",
            retryable=True,
            retry_after=script.retry_after,
        )


async def _play(script: Script, prompt: Prompt) -> AsyncGenerator[Event]:
    """The script's tokens when they are due: by an absolute schedule, so that slow readers don't slow the pace."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for index, (token, delay) in enumerate(zip(script.tokens, delays(script), strict=True)):
        await _misbehave(script, index)
        due += delay
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield Text(token)
    await _misbehave(script, len(script.tokens))
    used = Usage(input_tokens=_input_tokens(prompt), output_tokens=len(script.tokens))
    yield Completed(usage=used, finish_reason=script.finish)


async def _misbehave(script: Script, index: int) -> None:
    if script.fail_after == index:
        raise ModelFailed(
            "connection_lost", "The demo model was told to lose the connection.", retryable=True, midstream=index > 0
        )
    if script.hang_after == index:
        await asyncio.Event().wait()


def _input_tokens(prompt: Prompt) -> int:
    return tokens.estimate_usage(prompt, "").input_tokens

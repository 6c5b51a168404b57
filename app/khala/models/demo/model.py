"""The demo model: answers from a script, without a key or a network. Directives in the message control the script.

Directives are words in the user's message:

    /words=300     answer with that many numbered words (word1 word2 …), at most 20,000
    /pace=200      tokens a second, at most 10,000; 0 is as fast as possible
    /fail=20       lose the connection after 20 tokens; 0 is before the first
    /hang=20       send 20 tokens, then nothing until cancelled
    /empty         send an empty answer
    /ratelimit=2   always fail with `rate_limited` and a wait of 2 seconds; `/ratelimit=2,3` fails the first 3 calls (at
                   most 9) of this model object with exactly this message, then answers once, and starts again
    /echo TEXT     stream the rest of the message exactly; directives before it still apply
    /help          list these directives

These make the model call tools before it answers, in steps, which directives call rounds. The directives above apply
to the answer only, except `/pace`, which applies to the steps too:

    /call NAME {json}   one call; several in a row are one round and run in parallel. The arguments may span lines, or
                        be omitted. Calls with invalid JSON, and of tools that were not offered, are made too
    /then               begins the next round of calls, after the results of the tools
    /times=200          before `/call`: that many parallel calls (at most 256; a round has at most 1,000 calls), with
                        `{i}` in texts of the arguments replaced by 1, 2, …
    /loop               repeats the last round for ever, with `{round}` in texts replaced by the round's number
    /text TEXT          text before the calls of the round
    /say TEXT           the answer at the end; without it the answer lists the results of the last tools, one per line
    /ask TEXT           a reply without tools that only asks; the next reply continues. May be repeated
    /plan TEXT          the same, for a reply that only announces
    /wait=0.5           seconds of silence before each round's calls
    /failround=2        lose the connection in round 2, before its calls; `/failround=2,1` only once (at most 9 times)
    /hanground=2        send nothing in round 2 until cancelled

A TEXT ends with its line or at the next directive. The model derives its progress from the turns after the question, so
any process can continue a plan. If no tools are offered while rounds are due, the model sends "Stopped after N rounds."
and answers.

Without a directive, a goal that it is to plan becomes a plan of three steps, and a step of a plan is completed.

A summary of the conversation has the number of messages, the number of rounds since the last answer, and the last
words. If a summary comes before the question, the plan continues after those rounds. The answer lists the files of the
question.

If the answer has a format of JSON, the answer without a directive is an example of a value that fits it.
If a tool has to be called, a message without a directive calls the first one, with an example of its arguments.

An invalid directive is treated as text. An interrupted answer continues where it ended, and tokens are counted from
the start of the whole answer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from khala.domain.parts import TokenUsage
from khala.models import token_counter
from khala.models.demo import script as demo_script
from khala.models.demo.script import Script, delays
from khala.models.demo.tools import direct
from khala.models.port import Completed, HoldText, ModelEvent, ModelFailed, Prompt, TextChunk

MAX_COUNTED_MESSAGES = 1000
"""Messages whose failing calls are counted at the same time."""


class DemoModel:
    """A model that ships with Khala. The module's docstring lists its directives."""

    name = "demo"
    provider = "demo"

    reads_tools = False

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether an answer fits the schema: the demo model reads schemas, but directives come first."""
        return True

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, prompt: Prompt, hold: HoldText | None = None) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play the script for the prompt's last user turn, or for its last plan. See `port.LanguageModel.stream`."""
        message, script = direct(prompt)
        self._raise_rate_limited(message, script)
        if script.fail_after is not None and self._has_failed_enough(f"failround {message}", script.failures):
            script = msgspec.structs.replace(script, fail_after=None)
        script = demo_script.stopped(script, prompt.generation.stop)
        async with aclosing(_play(script, prompt)) as events:
            yield events

    def _raise_rate_limited(self, message: str, script: Script) -> None:
        if script.retry_after is None or self._has_failed_enough(message, script.refusals):
            return
        raise ModelFailed(
            "rate_limited",
            "The demo model was told to fail as rate limited.",
            retryable=True,
            retry_after=script.retry_after,
        )

    def _has_failed_enough(self, key: str, times: int | None) -> bool:
        """Whether the failure has occurred this many times; if so, the count is reset."""
        if times is None:
            return False
        if self._failures[key] >= times:
            del self._failures[key]
            return True
        if len(self._failures) >= MAX_COUNTED_MESSAGES:
            self._failures.clear()
        self._failures[key] += 1
        return False


async def _play(script: Script, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
    """Send the script's tokens by an absolute schedule, so that a slow reader does not change the pace."""
    loop = asyncio.get_running_loop()
    due = loop.time() + script.wait
    for index, (token, delay) in enumerate(zip(script.tokens, delays(script), strict=True)):
        await _fail_or_hang(script, index)
        due += delay
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield TextChunk(token)
    await asyncio.sleep(max(0.0, due - loop.time()))
    await _fail_or_hang(script, len(script.tokens))
    output_tokens = len(script.tokens) + token_counter.estimate_uses(script.uses)
    usage = TokenUsage(input_tokens=_input_tokens(prompt), output_tokens=output_tokens)
    yield Completed(usage=usage, finish_reason="tool_calls" if script.uses else script.finish, uses=script.uses)


async def _fail_or_hang(script: Script, index: int) -> None:
    if script.fail_after == index:
        raise ModelFailed(
            "connection_lost", "The demo model was told to lose the connection.", retryable=True, midstream=index > 0
        )
    if script.hang_after == index:
        await asyncio.Event().wait()


def _input_tokens(prompt: Prompt) -> int:
    return token_counter.estimate_usage(prompt, "", tools=DemoModel.reads_tools).input_tokens

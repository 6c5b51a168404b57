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

These make it call tools, in rounds, before it answers; the ones above are about the answer, but for `/pace`:

    /call NAME {json}   one call; several in a row are one round and are called at once. The arguments may span lines,
                        or be left out. Broken JSON, and tools that it was not offered, are called all the same
    /then               the next round of calls begins, once the tools have answered
    /times=200          before `/call`: so many of this call at once (at most 256; a round has at most 1,000 calls),
                        with `{i}` in texts of its arguments replaced by 1, 2, …
    /loop               the last round is repeated for ever, with `{round}` in texts replaced by the round's number
    /text TEXT          said before the calls of the round
    /say TEXT           the answer at the end; else it is what the last tools came to, a line for each
    /ask TEXT           a reply without tools that only asks; the next one goes on. As often as it is written
    /plan TEXT          the same, but it only announces
    /wait=0.5           seconds of silence before each round's calls
    /failround=2        lose the connection in round 2, before its calls; `/failround=2,1` only once (at most 9 times)
    /hanground=2        nothing comes in round 2 until cancelled

A TEXT ends with its line or at the next directive. Where the model is, it sees from the turns after the question, so
any process can go on. If it is offered no tools while rounds are due, it says "Stopped after N rounds." and answers.
Asked to
summarise the conversation, it says how long that was, how many rounds of tools it made since its last answer, and the
last words; where that summary stands before the question, the plan goes on after those rounds. The files that it is
given it names in its answer.

A directive that can't be read is left alone, as any other word. An answer that was interrupted goes on where it ended;
tokens are counted from its first beginning.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from khala.domain.parts import TokenUsage
from khala.models import token_counter
from khala.models.demo.script import Script, delays
from khala.models.demo.tools import direct
from khala.models.port import Completed, ModelEvent, ModelFailed, Prompt, TextChunk

REMEMBERED = 1000
"""Messages with passing trouble whose calls are counted at a time."""


class DemoModel:
    """A model that ships with the product; see the module for what it can be told."""

    name = "demo"
    provider = "demo"

    reads_tools = False

    def __init__(self) -> None:
        self._troubled: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play the script for the prompt's last user turn, or for its last plan. See `port.LanguageModel.stream`."""
        asked, script = direct(prompt)
        self._hold_back(asked, script)
        if script.fail_after is not None and self._over(f"failround {asked}", script.failures):
            script = msgspec.structs.replace(script, fail_after=None)
        async with aclosing(_play(script, prompt)) as events:
            yield events

    def _hold_back(self, asked: str, script: Script) -> None:
        if script.retry_after is None or self._over(asked, script.refusals):
            return
        raise ModelFailed(
            "rate_limited",
            "The demo model was told to receive too many requests.",
            retryable=True,
            retry_after=script.retry_after,
        )

    def _over(self, key: str, times: int | None) -> bool:
        """Whether trouble that comes so many times has come as often; then it is counted anew."""
        if times is None:
            return False
        if self._troubled[key] >= times:
            del self._troubled[key]
            return True
        if len(self._troubled) >= REMEMBERED:
            self._troubled.clear()
        self._troubled[key] += 1
        return False


async def _play(script: Script, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
    """The script's tokens when they are due: by an absolute schedule, so that slow readers don't slow the pace."""
    loop = asyncio.get_running_loop()
    due = loop.time() + script.wait
    for index, (token, delay) in enumerate(zip(script.tokens, delays(script), strict=True)):
        await _misbehave(script, index)
        due += delay
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield TextChunk(token)
    await asyncio.sleep(max(0.0, due - loop.time()))
    await _misbehave(script, len(script.tokens))
    spoken = len(script.tokens) + token_counter.estimate_uses(script.uses)
    used = TokenUsage(input_tokens=_input_tokens(prompt), output_tokens=spoken)
    yield Completed(usage=used, finish_reason="tool_calls" if script.uses else script.finish, uses=script.uses)


async def _misbehave(script: Script, index: int) -> None:
    if script.fail_after == index:
        raise ModelFailed(
            "connection_lost", "The demo model was told to lose the connection.", retryable=True, midstream=index > 0
        )
    if script.hang_after == index:
        await asyncio.Event().wait()


def _input_tokens(prompt: Prompt) -> int:
    return token_counter.estimate_usage(prompt, "", tools=DemoModel.reads_tools).input_tokens

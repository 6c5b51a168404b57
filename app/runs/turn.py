"""A turn: one model answers, or the next one does; text goes to the stream as it comes."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, assert_never

import msgspec
import structlog

from app.domain.errors import BudgetExhausted
from app.domain.parts import Failure, Notice, Usage
from app.models import retry
from app.models.catalog import BadModel, ModelRef
from app.models.port import Completed, Model, ModelFailed, Prompt, Reasoning, Text
from app.models.tokens import estimate_usage
from app.runs.meter import Meter
from app.runs.tally import TOKEN_SIZE, Call
from app.store.writer import Stream

log = structlog.get_logger()

NO_RESPONSE = "No response. Please try again."
BUDGET = BudgetExhausted.code


class Outcome(NamedTuple):
    """How a turn ended: the run's state, and the finish's reason."""

    status: Literal["final", "error"]
    reason: Literal["stop", "length", "tool_calls", "error", "budget"]
    failure: Failure | None = None


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn needs of the models: how to open one, and whether reasoning is stored."""

    open: Callable[[ModelRef], Model]
    store_reasoning: bool = False


class Turn:
    """One answer. `prompt_for` builds what a model is asked, since models differ in how much they read."""

    def __init__(self, stream: Stream, meter: Meter, models: Models, prompt_for: Callable[[Model], Prompt]) -> None:
        self._stream = stream
        self._meter = meter
        self._models = models
        self._prompt_for = prompt_for
        self._began = time.monotonic()
        self._attempt = 0

    async def answer(self, candidates: Sequence[ModelRef]) -> Outcome:
        """Let the first model answer that can; notices say which could not."""
        for place, ref in enumerate(candidates):
            more = place + 1 < len(candidates)
            try:
                completed, said = await self._ask(ref, more_models=more)
            except ModelFailed as failure:
                if not more or failure.midstream:
                    return failed(failure.code, failure.message)
                self._switch(candidates[place + 1], failure.message)
                continue
            except BudgetExhausted as reached:
                return stopped(reached)
            if said:
                return Outcome("final", completed.finish_reason)
            if not more:
                break
            self._switch(candidates[place + 1], f"{ref} said nothing.")
        return failed("no_response", NO_RESPONSE)

    async def _ask(self, ref: ModelRef, *, more_models: bool) -> tuple[Completed, bool]:
        """Call one model as often as the retry policy allows; returns its end, and whether it said anything."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(self._open(ref))
            except ModelFailed as failure:
                elapsed = time.monotonic() - self._began
                decision = retry.decide(
                    failure, tries=tries, elapsed=elapsed, jitter=random.random(), more_models=more_models
                )
                match decision:
                    case retry.Wait():
                        log.info("model_retry", model=str(ref), code=failure.code, wait=decision.seconds)
                        await asyncio.sleep(decision.seconds)
                    case retry.Switch() | retry.GiveUp():
                        raise
                    case _:
                        assert_never(decision)

    def _open(self, ref: ModelRef) -> Model:
        try:
            return self._models.open(ref)
        except BadModel as error:
            raise ModelFailed("refused", f"The model {ref} is not set up here.") from error

    async def _call(self, model: Model) -> tuple[Completed, bool]:
        call = Call(model)
        self._attempt += 1
        prompt = self._prompt_for(model)
        try:
            await self._meter.begin(call, prompt)
            completed = await self._listen(call, prompt)
        except ModelFailed as failure:
            self._settle(call, failure.code, _estimated(call, prompt))
            raise
        except (BudgetExhausted, asyncio.CancelledError):
            self._settle(call, BUDGET if self._meter.exhausted else "canceled", _estimated(call, prompt))
            raise
        self._settle(call, completed.finish_reason, completed)
        return completed, bool(call.chunks) or bool(prompt.said)

    async def _listen(self, call: Call, prompt: Prompt) -> Completed:
        call.asked = True
        async with call.model.stream(prompt) as events:
            async for event in events:
                if isinstance(event, Text):
                    if event.text:
                        call.text(event.text)
                        self._stream.text(event.text)
                elif isinstance(event, Completed):
                    return event
                elif isinstance(event, Reasoning):
                    call.thought(event.text)
                    self._reason(event)
                if call.size > call.enough:
                    await self._meter.more(call)
                if self._stream.full:
                    await self._stream.written()
        raise ModelFailed("invalid_response", "The model's answer ended without an end.", midstream=bool(call.chunks))

    def _reason(self, event: Reasoning) -> None:
        if self._models.store_reasoning and event.text:
            self._stream.reason(event.text)

    def _settle(self, call: Call, outcome: str, completed: Completed) -> None:
        price = self._meter.tally.add(call, completed.usage)
        self._stream.receipt("model", call.facts(outcome, self._attempt, completed), price)

    def _switch(self, ref: ModelRef, why: str) -> None:
        self._stream.add(Notice(code="model_switched", message=f"{why} Asking {ref} instead."))


def failed(code: str, message: str) -> Outcome:
    """The outcome of a turn that went wrong."""
    return Outcome("error", "error", Failure(code=code, message=message))


def stopped(reached: BudgetExhausted) -> Outcome:
    """The outcome of a turn that a limit stopped."""
    return Outcome("error", "budget", Failure(code=BUDGET, message=reached.message))


def tell(stream: Stream, failure: Failure) -> None:
    """Tell what went wrong, as text that every client shows, and as an error that a program can read."""
    stream.text(f"\n\n{failure.message}" if stream.said else failure.message)
    stream.add(failure)


def _estimated(call: Call, prompt: Prompt) -> Completed:
    """The end of a call that the provider did not account for; one that was never made used nothing."""
    said = "".join(call.chunks)
    usage = estimate_usage(prompt, said) if call.asked else Usage()
    thoughts = Usage(output_tokens=call.thoughts // TOKEN_SIZE)
    return Completed(usage=usage + thoughts, finish_reason="stop", estimated=True)

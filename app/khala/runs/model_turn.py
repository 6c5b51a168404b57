"""A turn: one model speaks, or the next one does; its text is told as it comes."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, assert_never

import msgspec
import structlog

from khala.domain.errors import BudgetExhausted
from khala.domain.parts import Notice, RunFailure, TokenUsage
from khala.models import retry_policy
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import Completed, Model, ModelFailed, Prompt, Reasoning, Text
from khala.models.token_counter import estimate_usage
from khala.runs.budget_meter import BudgetMeter
from khala.runs.call_telemetry import model_called
from khala.runs.usage_tally import TOKEN_SIZE, ModelCall
from khala.signals import metrics
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

NO_RESPONSE = "No response. Please try again."
BUDGET = BudgetExhausted.code


RunEndReason: TypeAlias = Literal[
    "stop", "length", "max_steps", "no_progress", "tool_calls", "budget", "error", "blocked"
]


class RunOutcome(NamedTuple):
    """How work on a run ended: the run's state, and the finish's reason; `awaits` are calls that wait for approval."""

    status: Literal["final", "error", "blocked"]
    reason: RunEndReason
    failure: RunFailure | None = None
    awaits: Sequence[str] = ()


class ModelReply(NamedTuple):
    """What a model said: all its text, with what it had said before it was interrupted, and how it ended."""

    text: str
    completed: Completed


PromptBuilder: TypeAlias = Callable[[Model], Awaitable[Prompt]]
"""Builds what a model is asked, since models differ in how much they read."""
TextListener: TypeAlias = Callable[[str], None]


class ModelDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn needs of the models: how to open one, and whether reasoning is stored."""

    open: Callable[[ModelRef], Model]
    store_reasoning: bool = False


class ModelTurn:
    """Asks models, first the first one. One that gave way to another is not asked again in this run."""

    def __init__(
        self, stream: RunBuffer, meter: BudgetMeter, models: ModelDependencies, candidates: Sequence[ModelRef]
    ) -> None:
        self._stream = stream
        self._meter = meter
        self._models = models
        self._candidates = list(candidates)
        self._attempt = 0

    async def ask(self, prompt_for: PromptBuilder, tell: TextListener | None = None) -> ModelReply | RunOutcome:
        """Let the first model speak that can; notices say which could not. Without `tell` nobody hears the text."""
        while True:
            ref, *others = self._candidates
            try:
                said = await self._ask(ref, prompt_for, tell or _nobody, more_models=bool(others))
            except ModelFailed as failure:
                if not others or failure.midstream:
                    return failed(failure.code, failure.message)
                self._switch(others, failure.message)
                continue
            except BudgetExhausted as reached:
                return stopped(reached)
            if said.text or said.completed.uses:
                return said
            if not others:
                return failed("no_response", NO_RESPONSE)
            self._switch(others, f"{ref} said nothing.")

    async def _ask(
        self, ref: ModelRef, prompt_for: PromptBuilder, tell: TextListener, *, more_models: bool
    ) -> ModelReply:
        """Call one model as often as the retry policy allows."""
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(self._open(ref), prompt_for, tell)
            except ModelFailed as failure:
                elapsed = time.monotonic() - began
                decision = retry_policy.decide(
                    failure, tries=tries, elapsed=elapsed, jitter=random.random(), more_models=more_models
                )
                match decision:
                    case retry_policy.Wait():
                        metrics.MODEL_RETRIES.labels(ref.provider, failure.code).inc()
                        log.info("model_retry", model=str(ref), code=failure.code, wait=decision.seconds)
                        await asyncio.sleep(decision.seconds)
                    case retry_policy.Switch() | retry_policy.GiveUp():
                        raise
                    case _:
                        assert_never(decision)

    def _open(self, ref: ModelRef) -> Model:
        try:
            return self._models.open(ref)
        except BadModelError as error:
            raise ModelFailed("refused", f"The model {ref} is not set up here.") from error

    async def _call(self, model: Model, prompt_for: PromptBuilder, tell: TextListener) -> ModelReply:
        prompt = await prompt_for(model)
        call = ModelCall(model)
        self._attempt += 1
        try:
            await self._meter.begin(call, prompt)
            completed = await self._listen(call, prompt, tell)
        except ModelFailed as failure:
            self._settle(call, failure.code, _estimated(call, prompt))
            raise
        except (BudgetExhausted, asyncio.CancelledError):
            self._settle(call, BUDGET if self._meter.exhausted else "canceled", _estimated(call, prompt))
            raise
        self._settle(call, completed.finish_reason, completed)
        return ModelReply(prompt.said + "".join(call.chunks), completed)

    async def _listen(self, call: ModelCall, prompt: Prompt, tell: TextListener) -> Completed:
        call.asked = True
        async with call.model.stream(prompt) as events:
            async for event in events:
                if isinstance(event, Completed):
                    return event
                await self._take(call, event, tell)
        raise ModelFailed("invalid_response", "The model's answer ended without an end.", midstream=bool(call.chunks))

    async def _take(self, call: ModelCall, event: Text | Reasoning, tell: TextListener) -> None:
        """Tell what came in one read, no more of it at a time than there is something reserved for."""
        rest = event.text
        while rest:
            fitting = call.fitting(rest)
            text, rest = rest[:fitting], rest[fitting:]
            if isinstance(event, Text):
                call.text(text)
                tell(text)
            else:
                call.thought(text)
                self._reason(text)
            if call.size > call.enough:
                await self._meter.more(call)
            if self._stream.full:
                await self._stream.wait_written()

    def _reason(self, text: str) -> None:
        if self._models.store_reasoning:
            self._stream.append_reasoning(text)

    def _settle(self, call: ModelCall, outcome: str, completed: Completed) -> None:
        price = self._meter.tally.add(call, completed.usage)
        model_called(call, outcome, time.monotonic() - call.began, completed.usage, price)
        self._stream.append_receipt("model", call.facts(outcome, self._attempt, completed), price)

    def _switch(self, others: Sequence[ModelRef], why: str) -> None:
        self._candidates = list(others)
        self._stream.append(Notice(code="model_switched", message=f"{why} Asking {others[0]} instead."))


def _nobody(text: str) -> None:
    """Hear nothing."""


def failed(code: str, message: str) -> RunOutcome:
    """The outcome of a turn that went wrong."""
    return RunOutcome("error", "error", RunFailure(code=code, message=message))


def stopped(reached: BudgetExhausted) -> RunOutcome:
    """The outcome of a turn that a limit stopped."""
    return RunOutcome("error", "budget", RunFailure(code=BUDGET, message=reached.message))


def tell(stream: RunBuffer, failure: RunFailure) -> None:
    """Tell what went wrong, as text that every client shows, and as an error that a program can read."""
    stream.append_text(f"\n\n{failure.message}" if stream.has_text else failure.message)
    stream.append(failure)


def _estimated(call: ModelCall, prompt: Prompt) -> Completed:
    """The end of a call that the provider did not account for; one that was never made used nothing."""
    said = "".join(call.chunks)
    usage = estimate_usage(prompt, said, tools=call.model.reads_tools) if call.asked else TokenUsage()
    thoughts = TokenUsage(output_tokens=call.thoughts // TOKEN_SIZE)
    return Completed(usage=usage + thoughts, finish_reason="stop", estimated=True)

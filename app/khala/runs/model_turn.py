"""Calls the models of one run: with retries, then the next model, and streams the reply into the run."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias, assert_never

import msgspec
import structlog

from khala.domain.context import ContextRecord
from khala.domain.errors import BudgetExhausted
from khala.domain.parts import Notice, RunFailure, TokenUsage
from khala.domain.plans.results import LIMITS
from khala.models import retry_policy
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import Completed, LanguageModel, ModelFailed, Prompt, ReasoningChunk, TextChunk
from khala.models.token_counter import estimate_usage
from khala.runs import logprob_parts
from khala.runs.budget_meter import BudgetMeter
from khala.runs.call_telemetry import record_model_call
from khala.runs.prompt_limits import PromptTooLongError
from khala.runs.usage_tally import BYTES_PER_TOKEN, ModelCall
from khala.signals import metrics
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

NO_RESPONSE = "No response. Please try again."
MIN_NOTICED_WAIT_SECONDS = 3.0
"""Shorter waits for a rate limit get no notice."""
SHRUNK_SHARE = 0.5
"""Share of a prompt that the provider found too long, in which it is built again."""

RunEndReason: TypeAlias = Literal[
    "stop", "length", "max_steps", "no_progress", "tool_calls", "budget", "error", "blocked"
]


class RunOutcome(NamedTuple):
    """The outcome of a run's execution: its status, the reason of its finish, and the calls that await approval."""

    status: Literal["final", "error", "blocked"]
    reason: RunEndReason
    failure: RunFailure | None = None
    awaits: Sequence[str] = ()


class ModelReply(NamedTuple):
    """A model's reply: its whole text, including the text from before an interruption, and its completion.

    `may_be_empty`: a stop text may have been the first that the model wrote, so an empty text is an answer, too.
    """

    text: str
    completed: Completed
    may_be_empty: bool = False


class BuiltPrompt(NamedTuple):
    """A prompt, and the record of what it consists of; None if it has nothing of the conversation."""

    prompt: Prompt
    record: ContextRecord | None


PromptBuilder: TypeAlias = Callable[[LanguageModel, int | None], Awaitable[BuiltPrompt]]
"""Builds the prompt for a model, according to its window, and in at most so many tokens if a number is given."""
TextListener: TypeAlias = Callable[[str], None]


class ModelDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The dependencies of model calls: a function that opens a model, and whether to store the model's reasoning."""

    open: Callable[[ModelRef], LanguageModel]
    store_reasoning: bool = False


class ModelTurn:
    """Calls the candidates in order. A model that was replaced by the next one is not called again in this run.

    Without `waits_for_limits`, a rate limit is not waited out: a plan decides for its steps what follows. With
    `shortens`, a prompt that the provider finds too long is built again with less of it. `tool_call_id` is the tool
    call for which the models are called, if it is one.
    """

    def __init__(
        self,
        buffer: RunBuffer,
        meter: BudgetMeter,
        models: ModelDependencies,
        candidates: Sequence[ModelRef],
        *,
        waits_for_limits: bool = True,
        shortens: bool = True,
        tool_call_id: str | None = None,
    ) -> None:
        self._buffer = buffer
        self._meter = meter
        self._models = models
        self._candidates = list(candidates)
        self._waits_for_limits = waits_for_limits
        self._shortens = shortens
        self._tool_call_id = tool_call_id
        self._attempt = 0
        self._sent_tokens: dict[ModelRef, int] = {}
        """Tokens of the newest prompt for each model."""
        self._max_tokens: dict[ModelRef, int] = {}
        """Tokens of a prompt for each model whose provider found a longer one too long."""

    async def request(
        self, build_prompt: PromptBuilder, on_text: TextListener | None = None
    ) -> ModelReply | RunOutcome:
        """The reply of the first model that gives one. Notices in the run name the models that did not.

        `on_text` receives the text as it arrives.
        """
        while True:
            ref, *remaining_models = self._candidates
            try:
                reply = await self._request(ref, build_prompt, on_text or _ignore, more_models=bool(remaining_models))
            except ModelFailed as failure:
                if not remaining_models or failure.midstream:
                    return failed_outcome(
                        failure.code, failure.message, cause=failure.cause, retry_after=failure.retry_after
                    )
                self._switch(remaining_models, failure.message)
                continue
            except BudgetExhausted as error:
                return budget_outcome(error)
            if reply.text or reply.completed.uses or reply.may_be_empty:
                return reply
            if not remaining_models:
                return failed_outcome("no_response", NO_RESPONSE)
            self._switch(remaining_models, f"{ref} gave an empty answer.")

    async def _request(
        self, ref: ModelRef, build_prompt: PromptBuilder, on_text: TextListener, *, more_models: bool
    ) -> ModelReply:
        """Call one model, with as many retries as the retry policy allows."""
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(ref, build_prompt, on_text)
            except ModelFailed as failure:
                if self._shrink(ref, failure):
                    continue
                if failure.code in LIMITS and not self._waits_for_limits:
                    raise
                elapsed = time.monotonic() - began
                decision = retry_policy.decide(
                    failure, tries=tries, elapsed=elapsed, jitter=random.random(), more_models=more_models
                )
                match decision:
                    case retry_policy.Wait():
                        metrics.MODEL_RETRIES.labels(ref.provider, failure.code).inc()
                        log.info("model_retry", model=str(ref), code=failure.code, wait=decision.seconds)
                        self._add_wait_notice(ref, failure, decision.seconds)
                        await asyncio.sleep(decision.seconds)
                    case retry_policy.SwitchModel() | retry_policy.GiveUp():
                        raise
                    case _:
                        assert_never(decision)

    def _add_wait_notice(self, ref: ModelRef, failure: ModelFailed, seconds: float) -> None:
        """Add a notice that the run waits for a rate limit, unless that is soon over."""
        if failure.code in LIMITS and seconds >= MIN_NOTICED_WAIT_SECONDS:
            until = datetime.now(UTC) + timedelta(seconds=seconds)
            message = f"{ref} limits its requests. Trying again in {math.ceil(seconds)} s."
            self._buffer.append(Notice(code="rate_limited", message=message, until=until))

    def _open(self, ref: ModelRef) -> LanguageModel:
        try:
            return self._models.open(ref)
        except BadModelError as error:
            raise ModelFailed(
                "refused", f"The model {ref} is not set up on this server.", cause="unknown_model"
            ) from error

    def _shrink(self, ref: ModelRef, failure: ModelFailed) -> bool:
        """Whether to call the model once more, with a shorter prompt. Its later prompts in this run stay as short."""
        is_refused = failure.code == "context_exceeded" and not isinstance(failure, PromptTooLongError)
        if not self._shortens or not is_refused or failure.midstream or ref in self._max_tokens:
            return False
        self._max_tokens[ref] = int(self._sent_tokens[ref] * SHRUNK_SHARE)
        log.info("context_shrunk", model=str(ref), tokens=self._max_tokens[ref])
        message = f"The conversation is too long for {ref}. Asking again with less of it."
        self._buffer.append(Notice(code="context_shrunk", message=message))
        return True

    async def _call(self, ref: ModelRef, build_prompt: PromptBuilder, on_text: TextListener) -> ModelReply:
        model = self._open(ref)
        prompt, record = await build_prompt(model, self._max_tokens.get(ref))
        self._sent_tokens[ref] = 0 if record is None else record.tokens
        call = ModelCall(model, record)
        self._attempt += 1
        try:
            await self._meter.begin(call, prompt)
            completed = await self._stream_reply(call, prompt, on_text)
        except ModelFailed as failure:
            self._settle(call, failure.code, _estimated(call, prompt))
            raise
        except (BudgetExhausted, asyncio.CancelledError):
            outcome = BudgetExhausted.code if self._meter.exhausted else "canceled"
            self._settle(call, outcome, _estimated(call, prompt))
            raise
        self._settle(call, completed.finish_reason, completed)
        for part in logprob_parts.split(completed.logprobs):
            self._buffer.append(part)
        text = prompt.partial_answer + "".join(call.chunks)
        return ModelReply(text, completed, _may_be_empty(prompt, completed))

    async def _stream_reply(self, call: ModelCall, prompt: Prompt, on_text: TextListener) -> Completed:
        call.started = True
        async with call.model.stream(prompt, self._buffer.hold_text) as events:
            async for event in events:
                if isinstance(event, Completed):
                    return event
                await self._receive(call, event, on_text)
        raise ModelFailed("invalid_response", "The model's answer broke off.", midstream=bool(call.chunks))

    async def _receive(self, call: ModelCall, event: TextChunk | ReasoningChunk, on_text: TextListener) -> None:
        """Pass the text on, in pieces that the reserved budget covers."""
        rest = event.text
        while rest:
            covered = call.covered_length(rest)
            text, rest = rest[:covered], rest[covered:]
            if isinstance(event, TextChunk):
                call.add_text(text)
                on_text(text)
            else:
                call.add_reasoning(text)
                if self._models.store_reasoning:
                    self._buffer.append_reasoning(text)
                    call.reasoned = time.monotonic()
            if call.size > call.covered_size:
                await self._meter.extend(call)
            if self._buffer.full:
                await self._buffer.wait_written()

    def _settle(self, call: ModelCall, outcome: str, completed: Completed) -> None:
        """Count the call's cost, and add its receipt."""
        price = self._meter.tally.add(call, completed)
        record_model_call(call, outcome, time.monotonic() - call.began, completed.usage, price)
        receipt = call.receipt(outcome, self._attempt, completed)
        self._buffer.append_receipt("model", receipt, price, self._tool_call_id)

    def _switch(self, remaining_models: Sequence[ModelRef], reason: str) -> None:
        self._candidates = list(remaining_models)
        self._buffer.append(Notice(code="model_switched", message=f"{reason} Asking {remaining_models[0]} instead."))


def _ignore(text: str) -> None:
    """Drop the text."""


def failed_outcome(
    code: str, message: str, *, cause: str | None = None, retry_after: float | None = None
) -> RunOutcome:
    """The outcome of a run that failed. `retry_after` is in seconds."""
    failure = RunFailure(code=code, message=message, cause=cause, retry_after=retry_after)
    return RunOutcome("error", "error", failure)


def budget_outcome(error: BudgetExhausted) -> RunOutcome:
    """The outcome of a run that reached a budget."""
    return RunOutcome("error", "budget", RunFailure(code=BudgetExhausted.code, message=error.message))


def write_failure(buffer: RunBuffer, failure: RunFailure) -> None:
    """Add the failure to the run: as text, which every client shows, and as an error for programs."""
    buffer.append_text(f"\n\n{failure.message}" if buffer.has_text else failure.message)
    buffer.append(failure)


def _may_be_empty(prompt: Prompt, completed: Completed) -> bool:
    """Whether an empty reply is an answer. Providers do not say which of the stop texts ended it, if any."""
    generation = prompt.generation
    return bool(generation.stop) and generation.json_format is None and completed.finish_reason == "stop"


def _estimated(call: ModelCall, prompt: Prompt) -> Completed:
    """The completion, with estimated usage, of a call that the provider did not complete.

    A call that was not started used nothing.
    """
    text = "".join(call.chunks)
    usage = estimate_usage(prompt, text, tools=call.model.reads_tools) if call.started else TokenUsage()
    reasoning = TokenUsage(output_tokens=call.reasoning_size // BYTES_PER_TOKEN)
    return Completed(usage=usage + reasoning, finish_reason="stop", estimated=True)

"""The real providers' clients against a local server that refuses, breaks off, stalls or sends garbage."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from khala.models.providers import Providers
from tests.support.provider_calls import ask, call_failure, calling, config, each_protocol, event_text
from tests.support.providers import Reply, serving


@each_protocol
@pytest.mark.parametrize(
    ("status", "message", "code", "retryable"),
    [
        (500, "oops", "unavailable", True),
        (503, "gone for a moment", "unavailable", True),
        (529, "Overloaded", "overloaded", True),
        (429, "slow down", "rate_limited", True),
        (408, "too slow", "timeout", True),
        (400, "bad parameter", "refused", False),
        (401, "bad key", "refused", False),
        (404, "no such model", "refused", False),
        (413, "too large", "context_exceeded", False),
        (418, "teapot", "refused", False),
    ],
)
async def test_an_error_status_becomes_its_code(
    protocol: str, status: int, message: str, code: str, retryable: bool
) -> None:
    async with calling(protocol, Reply(status=status, message=message)) as (model, server):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream) == (code, retryable, False)
    assert failure.cause == {401: "invalid_key", 404: "unknown_model"}.get(status)
    assert failure.__cause__ is not None
    assert len(server.calls) == 1, "the SDK must not retry by itself"


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("openai", "This model's maximum context length is 8192 tokens."),
        ("anthropic", "prompt is too long: 210000 tokens > 200000 maximum"),
        ("google", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    ],
)
async def test_a_prompt_that_is_too_long_is_reported_as_such(protocol: str, message: str) -> None:
    async with calling(protocol, Reply(status=400, message=message)) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable) == ("context_exceeded", False)


async def test_a_used_up_quota_is_not_a_rate_limit() -> None:
    async with calling("openai", Reply(status=429, message="You exceeded your current quota.")) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.cause, failure.retryable) == ("refused", "quota_exhausted", False)


def date_in(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@each_protocol
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [(lambda: "7", 7, 7), (lambda: date_in(30), 25, 31), (lambda: date_in(-30), 0, 0)],
    ids=["seconds", "date", "past date"],
)
async def test_the_retry_after_of_a_provider_is_passed_on(
    protocol: str, header: Callable[[], str], least: float, most: float
) -> None:
    async with calling(protocol, Reply(status=429, headers={"retry-after": header()})) as (model, _):
        failure, _ = await call_failure(model)
    assert failure.code == "rate_limited"
    assert failure.retry_after is not None
    assert least <= failure.retry_after <= most


@each_protocol
@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_dropped_before_the_first_token_is_retryable(protocol: str, reset: bool) -> None:
    async with calling(protocol, Reply(drop_after=0, reset=reset)) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream, text) == ("connection_lost", True, False, "")


@each_protocol
async def test_a_connection_dropped_during_an_answer_is_a_failure(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), drop_after=2)) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "ab")
    assert failure.__cause__ is not None


@each_protocol
async def test_a_stream_closed_cleanly_but_too_early_is_a_failure(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), end_after=2)) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "ab")


async def test_an_openai_stream_without_a_finish_reason_is_complete_after_done() -> None:
    chunk = b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"all"}}]}\n\n'
    async with calling("openai", Reply(raw=chunk + b"data: [DONE]\n\n"), Reply(raw=chunk)) as (model, _):
        assert event_text(await ask(model)) == "all"
        failure, text = await call_failure(model)
    assert (failure.code, text) == ("connection_lost", "all")


@each_protocol
async def test_an_unreachable_server_is_a_lost_connection(protocol: str) -> None:
    async with serving() as server:
        url = server.url
    providers = Providers(config(url))
    failure, _ = await call_failure(providers.open(f"{protocol}:local-model"))
    await providers.aclose()
    assert (failure.code, failure.retryable, failure.midstream) == ("connection_lost", True, False)


@each_protocol
@pytest.mark.parametrize(("spoken", "text"), [(0, ""), (2, "ab")])
async def test_silence_ends_in_a_timeout(protocol: str, spoken: int, text: str) -> None:
    reply = Reply(tokens=("a", "b", "c"), hang_after=spoken)
    async with calling(protocol, reply, read_timeout=0.3) as (model, server):
        failure, received = await call_failure(model)
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
    assert (failure.code, failure.retryable, failure.midstream, received) == ("timeout", True, spoken > 0, text)


@each_protocol
async def test_a_long_answer_does_not_time_out(protocol: str) -> None:
    reply = Reply(tokens=("a",) * 12, pace=10)
    async with calling(protocol, reply, read_timeout=0.6) as (model, _):
        assert event_text(await ask(model)) == "a" * 12


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_garbage_is_an_invalid_response(protocol: str, spoken: int) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), garbage_after=spoken)) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("invalid_response", spoken > 0, "ab"[:spoken])
    assert failure.__cause__ is not None


@each_protocol
async def test_a_web_page_in_place_of_an_answer_is_an_invalid_response(protocol: str) -> None:
    async with calling(protocol, Reply(raw=b"<!doctype html>\n<p>Sign in to the guest network.</p>\n")) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("invalid_response", True, False)


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_an_error_inside_the_stream_keeps_its_code(protocol: str, spoken: int) -> None:
    reply = Reply(tokens=("a", "b", "c"), fail_after=spoken, fail_status=429)
    async with calling(protocol, reply) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("rate_limited", spoken > 0, "ab"[:spoken])


@pytest.mark.parametrize(
    ("protocol", "finish"), [("openai", "content_filter"), ("anthropic", "refusal"), ("google", "SAFETY")]
)
async def test_an_answer_that_the_provider_filtered_is_refused(protocol: str, finish: str) -> None:
    async with calling(protocol, Reply(finish=finish)) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("refused", False, True)

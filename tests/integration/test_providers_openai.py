"""The reader of OpenAI's protocol against servers that violate it, over real sockets."""

import asyncio
import gzip

import pytest

from khala.domain.parts import TokenUsage
from khala.models.port import Completed, TextChunk
from khala.models.provider_registry import ProviderAccess
from khala.models.providers import ProviderConfig, Providers
from khala.models.streaming import error_responses
from tests.support.provider_calls import ask, call_failure, calling, completed, event_text
from tests.support.providers import Reply
from tests.support.scripted_stream import DONE, HEAD, USAGE, scripted, token


async def test_comments_line_ends_and_data_in_several_lines_are_read() -> None:
    raw = b'\xef\xbb\xbf: hello\r\n\r\nevent: x\r\ndata: {"choices":[{"delta":\r\ndata: {"content":"a"}}]}\r\n\r\n'
    async with calling("openai", Reply(raw=raw + token("b", '"stop"') + USAGE + DONE)) as (model, _):
        events = await ask(model)
    usage = TokenUsage(input_tokens=3, output_tokens=4)
    assert events == [TextChunk("ab"), Completed(usage=usage, finish_reason="stop")]


@pytest.mark.parametrize(("finish", "reason"), [('"length"', "length"), ('"stop"', "stop"), ('"eos"', "stop")])
async def test_a_finish_reason_ends_the_answer_also_without_done(finish: str, reason: str) -> None:
    async with calling("openai", Reply(raw=token("a", finish))) as (model, _):
        assert completed(await ask(model)).finish_reason == reason


async def test_done_without_its_last_line_feeds_ends_the_answer() -> None:
    async with calling("openai", Reply(raw=token("a") + b"data: [DONE]")) as (model, _):
        assert event_text(await ask(model)) == "a"


async def test_an_answer_is_complete_although_its_server_keeps_the_connection_open() -> None:
    async with scripted(HEAD + token("a", '"stop"'), DONE) as (model, script):
        assert event_text(await ask(model)) == "a"
        await asyncio.wait_for(script.left.wait(), 5)


@pytest.mark.parametrize("end", [b"", b"data: {", token("b")[:-1], token("b")[:-2], b"\n"])
async def test_a_connection_that_breaks_amid_an_event_is_lost(end: bytes) -> None:
    async with scripted(HEAD + token("a"), end, close=True) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "a")


@pytest.mark.parametrize("end", [b"data: {", token("b")[:-2]])
async def test_a_body_that_ends_amid_an_event_is_not_a_complete_answer(end: bytes) -> None:
    async with calling("openai", Reply(raw=token("a") + end)) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "a")


@pytest.mark.parametrize(
    "raw",
    [b"data: \xff\xfe\n\n", b"data: [1]\n\n", b"data: 7\n\n", b'data: {"choices":7}\n\n', b"data: <p>\n\n"],
)
async def test_an_invalid_chunk_is_an_invalid_response_after_the_text_before_it(raw: bytes) -> None:
    async with calling("openai", Reply(raw=token("a") + raw + token("b"))) as (model, _):
        failure, text = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream, text) == ("invalid_response", True, True, "a")


ZIPPED = gzip.compress(token("a", '"stop"') + DONE, mtime=0)


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 100, b'{"choices": []}', ZIPPED], ids=["nothing", "zeros", "no stream", "compressed"]
)
async def test_a_response_that_is_no_event_stream_is_invalid(raw: bytes) -> None:
    length = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(raw)
    async with scripted(length + raw) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.midstream) == ("invalid_response", False)


async def test_an_endless_line_is_rejected_and_the_connection_closed() -> None:
    endless = (b"HTTP/1.1 200 OK\r\n\r\n" + token("a") + b"data: ", *[b"x" * (1 << 20)] * 9)
    async with scripted(*endless) as (model, script):
        failure, text = await call_failure(model)
        await asyncio.wait_for(script.left.wait(), 5)
    assert (failure.code, failure.midstream, text) == ("invalid_response", True, "a")


async def test_a_refusal_is_reported_although_its_body_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_responses, "READ_TIMEOUT_SECONDS", 0.05)
    head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after-ms: 1500\r\ncontent-length: 5000\r\n\r\n"
    async with scripted(head + b'{"error": {"mess') as (model, script):
        failure, _ = await call_failure(model)
        await asyncio.wait_for(script.left.wait(), 5)
    assert (failure.code, failure.retry_after) == ("rate_limited", 1.5)


async def test_the_body_of_a_refusal_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_responses, "MAX_ERROR_BYTES", 1000)
    async with calling("openai", Reply(status=502, raw=b"<p>" * 100_000)) as (model, _):
        failure, _ = await call_failure(model)
    assert failure.code == "unavailable"
    assert len(str(failure.__cause__)) < 1100


async def test_a_redirect_is_not_followed() -> None:
    async with calling("openai", Reply(status=302, headers={"location": "/elsewhere"})) as (model, server):
        failure, _ = await call_failure(model)
    assert (failure.code, len(server.calls)) == ("invalid_response", 1)


async def test_the_request_has_the_key_the_organization_and_the_project() -> None:
    async with calling("openai") as (_, server):
        access = ProviderAccess(key="sk-1", url=f"{server.url}/v1/", organization="org-1", project="proj-1")
        providers = Providers(ProviderConfig(access={"openai": access}))
        await ask(providers.open("openai:local-model"))
        await providers.aclose()
    (call,) = server.calls
    expected = {
        "authorization": "Bearer sk-1",
        "openai-organization": "org-1",
        "openai-project": "proj-1",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "khala",
    }
    assert {name: call.headers.get(name) for name in expected} == expected
    assert call.path == "/v1/chat/completions"


@pytest.mark.parametrize("url", ["nowhere", "ftp://127.0.0.1/v1", "http://127.0.0.1:1/v1"])
async def test_an_unusable_base_url_fails_like_a_call(url: str) -> None:
    providers = Providers(ProviderConfig(access={"openai": ProviderAccess(key="k", url=url)}))
    failure, _ = await call_failure(providers.open("openai:local-model"))
    await providers.aclose()
    assert (failure.code, failure.midstream) == ("connection_lost", False)

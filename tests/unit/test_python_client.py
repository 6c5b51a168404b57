"""The parts of the Python client that need no socket."""

import base64
import time
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala_client.content import Content, TextBlock, UnknownBlock, UnknownPart, read_part, text_of
from khala_client.credentials import BearerToken, Keys
from khala_client.errors import (
    Conflict,
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    InvalidSetting,
    KhalaError,
    NotFound,
    RateLimited,
    ServerError,
    Unauthenticated,
    error_of,
)
from khala_client.event_stream import EventStreamParser
from khala_client.feed import FeedCursor
from khala_client.http_core import ClientConfig, HttpCore
from khala_client.models import Delta, Snapshot
from khala_client.options import ResponseFormat, RunBudget, RunOptions
from khala_client.retries import RetryPolicy
from khala_client.state import apply_delta, from_snapshot
from khala_client.wire import decode, encode
from khala_client.worker import Worker
from tests.support.server import ROOT

TIME = "2026-01-01T00:00:00Z"
THREAD, RUN, ANSWER = (str(UUID(int=number)) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (408, ConnectionFailed),
        (409, Conflict),
        (413, InvalidRequest),
        (421, InvalidRequest),
        (429, RateLimited),
        (500, ServerError),
        (503, ServerError),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[KhalaError]) -> None:
    problem = b'{"title":"T","detail":"D","code":"c","errors":[{"path":"a.b","message":"m"}],"more":1}'
    error = error_of(status, problem, None)
    assert type(error) is kind
    assert (error.message, error.code, error.errors[0].path) == ("D", "c", "a.b")
    assert error.status == status
    assert error.is_transient == (status >= 500 or status == 408)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[]", b'{"detail":1}'])
def test_an_answer_that_is_no_problem_document_has_an_error_too(body: bytes) -> None:
    assert str(error_of(502, body, "soon")) == "The server answered 502."


def test_a_limit_is_named() -> None:
    body = b'{"code":"budget_exhausted","limit":"usd_per_day","scope":"account","most":"2.5","retryAfter":9}'
    error = error_of(429, body, "9")
    assert isinstance(error, RateLimited)
    assert (error.limit, error.scope, error.most, error.retry_after) == ("usd_per_day", "account", Decimal("2.5"), 9.0)
    assert not error.is_transient


@given(st.integers(0, 200), st.floats(0, 10))
def test_a_wait_is_between_nothing_and_its_ceiling_or_as_long_as_the_server_says(attempt: int, asked: float) -> None:
    policy = RetryPolicy(base_delay=0.5, max_delay=8)
    ceiling = min(8, 0.5 * 2 ** min(attempt, 10))
    assert 0 <= policy.delay(attempt) <= ceiling
    assert asked <= policy.delay(attempt, ServerError("", retry_after=asked)) <= max(asked, ceiling)


@given(st.lists(st.binary(min_size=1).filter(lambda one: not {10, 13} & set(one)), max_size=5), st.data())
def test_events_are_the_same_however_their_bytes_are_cut(events: list[bytes], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = b"".join(b"id: 7%b: a comment%bdata: %b%b%b" % (end, end, one, end, end) for one in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = EventStreamParser(1 << 20)
    pieces = [stream[begin:stop] for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [event for piece in pieces for event in parser.feed(piece)] == events


def test_an_event_of_any_size_is_not_kept() -> None:
    parser = EventStreamParser(100)
    with pytest.raises(ServerError):
        _ = [list(parser.feed(b"data: " + b"x" * 60 + b"\n")) for _ in range(3)]
    with pytest.raises(ServerError):
        list(EventStreamParser(100).feed(b"x" * 101))


def test_blocks_parts_and_fields_of_later_servers_are_ignored() -> None:
    content = decode(b'[{"type":"text","text":"a","new":1},{"type":"hologram","x":{"y":1}}]', Content)
    assert content == (TextBlock(text="a"), UnknownBlock({"type": "hologram", "x": {"y": 1}}))
    assert msgspec.json.decode(encode(content))[1] == {"type": "hologram", "x": {"y": 1}}
    assert text_of(content) == "a"
    assert read_part("smell", b'{"a":1}') == UnknownPart(kind="smell", data={"a": 1})
    with pytest.raises(ServerError):
        decode(b'[{"text":"a"}]', Content)


def _snapshot(revision: int, text: str, seq: int) -> Snapshot:
    thread = {"id": THREAD, "visibility": "holographic", "revision": revision, "createdAt": TIME, "updatedAt": TIME}
    content = [{"type": "text", "text": text}] if text else []
    message = {"id": ANSWER, "threadId": THREAD, "role": "assistant", "status": "streaming", "runId": RUN, "seq": seq}
    message |= {"content": content, "createdAt": TIME, "updatedAt": TIME}
    frame = {"type": "snapshot", "revision": revision, "thread": thread, "messages": [message], "hasMore": False}
    return decode(msgspec.json.encode(frame), Snapshot)


def _delta(since: int, revision: int, *texts: tuple[int, str]) -> Delta:
    common = {"runId": RUN, "messageId": ANSWER, "kind": "text-delta", "createdAt": TIME}
    parts = [{**common, "seq": seq, "data": {"text": text}} for seq, text in texts]
    return decode(msgspec.json.encode({"from": since, "revision": revision, "messages": [], "parts": parts}), Delta)


def test_a_delta_applies_only_to_the_revision_that_it_follows() -> None:
    state = from_snapshot(_snapshot(5, "ab", 2))
    assert apply_delta(state, _delta(6, 7, (2, "c"))).outcome == "gap"
    assert apply_delta(state, _delta(4, 5, (1, "b"))).outcome == "stale"
    assert apply_delta(state, _delta(5, 6, (3, "d"))).outcome == "broken"
    applied = apply_delta(state, _delta(5, 7, (1, "b"), (2, "c")))
    assert (applied.outcome, applied.state.messages[0].text, applied.state.revision) == ("applied", "abc", 7)
    assert applied.changed == applied.state.messages


def test_a_cursor_takes_frames_in_order_only() -> None:
    cursor = FeedCursor(None)
    assert (cursor.after, cursor.accept(_delta(0, 1))) == (None, "stale")
    assert cursor.accept(_snapshot(5, "", 0)) == "apply"
    assert [cursor.accept(_delta(*one)) for one in ((5, 6), (4, 6), (7, 8), (6, 8))] == [
        "apply",
        "stale",
        "gap",
        "apply",
    ]
    assert cursor.after == 8
    assert cursor.accept(_snapshot(2, "", 0)) == "apply", "a snapshot replaces everything, also after a reset"
    assert cursor.after == 2


def test_options_that_are_not_given_are_not_sent() -> None:
    options = RunOptions(budget=RunBudget(usd=Decimal("0.05")), response_format=ResponseFormat(type="json_object"))
    assert encode(options) == b'{"budget":{"usd":"0.05"},"responseFormat":{"type":"json_object"}}'
    assert options.checks_format


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://a", "http://", "http://a?b=1", ""])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidSetting, match="address"):
        ClientConfig(server=address)


@pytest.mark.parametrize(
    ("secret", "reason"),
    [("", "is empty"), ("a b", "contains ' '"), ("token\n", r"contains '\\n'"), ("…", "contains '…'")],
)
def test_a_secret_that_fits_into_no_header_is_refused_at_once(secret: str, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        BearerToken(secret)
    with pytest.raises(InvalidSetting, match=reason):
        Keys(anon_key=secret)


def test_a_worker_whose_token_is_a_placeholder_ends_with_one_line() -> None:
    worker = Worker("http://127.0.0.1:9", "khala_…")
    worker.agent("poet")(lambda context: context.text("Aiur"))
    with pytest.raises(SystemExit, match=r"^The worker cannot start\. A token .* contains '…'\. Replace the"):
        worker.serve()


async def test_a_client_says_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    retry = RetryPolicy(max_attempts=3, base_delay=0)
    core = HttpCore(ClientConfig(server="http://127.0.0.1:9", retry=retry))
    with pytest.raises(ConnectionFailed):
        await core.request("GET", "/api/me", object)
    await core.aclose()
    [line] = caplog.messages
    assert line.startswith("waiting for http://127.0.0.1:9: 127.0.0.1 does not answer: ")
    assert line.endswith(". Trying again.")


def test_keys_of_a_thread_replace_those_of_the_client() -> None:
    keys = Keys(anon_key="thread").over(Keys(anon_key="client", share_key="link"))
    assert keys.headers() == {"X-Anon-Key": "thread", "X-Share-Key": "link"}


async def test_a_token_is_renewed_before_it_expires_and_when_it_is_refused() -> None:
    given = 0

    def provider() -> str:
        nonlocal given
        given += 1
        claims = msgspec.json.encode({"exp": time.time() + (5 if given == 1 else 3600), "n": given})
        return "e30." + base64.urlsafe_b64encode(claims).decode().rstrip("=") + ".x"

    token = BearerToken(provider)
    first = await token.get()
    second = await token.get()
    assert (given, first != second) == (2, True), "the first expires within 30 s"
    assert (await token.get(), given) == (second, 2)
    await token.get(refused=first)
    assert given == 2, "another task has renewed it already"
    await token.get(refused=second)
    assert given == 3


def test_both_clients_have_the_same_version_and_license_as_the_server() -> None:
    package = ROOT / "app" / "clients" / "python"
    versions = [
        next(line for line in (folder / "pyproject.toml").read_text().splitlines() if line.startswith("version"))
        for folder in (ROOT, package)
    ]
    assert versions[0] == versions[1]
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from litestar.types import Receive, Scope, Send
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

from khala.api.http.request_telemetry import RequestTelemetry
from khala.telemetry.logs import HIDDEN, RedactingFilter, configure, redact
from tests.support import plain_logs

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ0YXNzYWRhciJ9.c2lnbmF0dXJl"


NAMES = ("password", "new_password", "anon_key", "anonKey", "shareKey", "token", "id_token", "Authorization", "cookie")
TEXTS = ("khala_" + "a" * 43, "Bearer abcdefgh1234", JWT, "postgresql://khala:en-taro@db/khala", "key: " + "k" * 43,
         "GET /autopilot/detail/" + "d" * 43)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_of_secret_names_are_not_logged(name: str) -> None:
    assert redact(None, "info", {"event": "x", name: "whatever"}) == {"event": "x", name: HIDDEN}


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_that_looks_like_a_secret_is_redacted_at_any_place(text: str) -> None:
    secret = text.split()[-1] if "://" not in text else "khala:en-taro"
    shown: dict[str, Any] = dict(redact(None, "info", {"event": f"failed: {text}", "detail": {"more": [text]}}))
    assert secret not in str(shown)
    assert HIDDEN in shown["event"]


def test_ordinary_values_are_logged_unchanged() -> None:
    facts = {"event": "request", "path": "/api/threads/0190a3c4-7b2e-7c1a-9f00-000000000001", "status": 200, "ms": 1.5,
             "input_tokens": 12, "model": "demo"}  # fmt: skip
    assert redact(None, "info", facts) == facts


def test_logs_of_libraries_are_redacted_too() -> None:
    record = logging.LogRecord("any", logging.WARNING, "", 0, "sent %s", ("Bearer " + JWT,), None)
    assert RedactingFilter().filter(record)
    assert JWT not in record.getMessage()


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Logging that the test itself configures."""
    yield
    structlog.reset_defaults()
    plain_logs.install()
    for handler in logging.getLogger().handlers:
        filters = [log_filter for log_filter in handler.filters if not isinstance(log_filter, RedactingFilter)]
        handler.filters[:] = filters


ROW = "Key (email)=(adun\n@example.com) is there."


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_contains_no_secret_and_no_row(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(form)
    try:
        try:
            raise ValueError(f"duplicate key\nDETAIL:  {ROW}\nHINT:  Look. {JWT}")
        except ValueError as error:
            raise RuntimeError(f"refused\nDETAIL:  {ROW}") from error
    except RuntimeError:
        structlog.get_logger().exception("crashed")
    logged = capsys.readouterr().err
    for word in ("adun", "example.com", JWT):
        assert word not in logged
    for word in ("crashed", "duplicate key", "refused", "Look.", "RuntimeError", HIDDEN):
        assert word in logged


async def test_requests_and_sockets_have_ids_of_their_own_in_the_log_and_probes_have_none() -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(get_contextvars())
        if not scope["path"].startswith("/api/health"):
            bind_contextvars(thread_id="that of one request")

    async def say(*_: Any) -> Any:
        pytest.fail("nothing is said here")

    observed = RequestTelemetry(app)
    for kind, path in (("http", "/api/health/live"), ("http", "/"), ("http", "/api/me"), ("websocket", "/api/ws")):
        scope: Any = {"type": kind, "path": path, "method": "GET", "headers": []}
        await observed(scope, say, say)
    assert get_contextvars() == {}
    with bound_contextvars(request_id="that of the request before", thread_id="and its thread"):
        pipelined: Any = {"type": "http", "path": "/", "method": "GET", "headers": []}
        await observed(pipelined, say, say)
    assert [list(fields) for fields in seen] == [[], ["request_id"], ["request_id"], ["socket_id"], ["request_id"]]
    assert len({name for fields in seen for name in fields.values()}) == 4


def test_logs_of_libraries_are_json_lines_too() -> None:
    program = (
        "import logging, structlog\n"
        "from khala.telemetry import configure\n"
        "configure('json')\n"
        "structlog.contextvars.bind_contextvars(run_id='r1')\n"
        "structlog.get_logger().info('ours')\n"
        "try:\n"
        f"    raise ValueError('{TEXTS[0]}')\n"
        "except ValueError:\n"
        f"    logging.getLogger('asyncio').exception('Task said %s', '{TEXTS[1]}')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stderr
    ours, theirs = (json.loads(line) for line in completed.splitlines())
    assert (ours["event"], ours["run_id"], ours["level"]) == ("ours", "r1", "info")
    assert (theirs["event"], theirs["run_id"], theirs["level"]) == (f"Task said {HIDDEN}", "r1", "error")
    assert theirs["logger"] == "asyncio"
    assert theirs["exception"][0]["exc_type"] == "ValueError"
    assert TEXTS[0] not in completed

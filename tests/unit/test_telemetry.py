import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from app.telemetry import HIDDEN, Redacting, configure, redacted

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ0YXNzYWRhciJ9.c2lnbmF0dXJl"


NAMES = ("password", "new_password", "anon_key", "anonKey", "shareKey", "token", "id_token", "Authorization", "cookie")
TEXTS = ("khala_" + "a" * 43, "Bearer abcdefgh1234", JWT, "postgresql://khala:en-taro@db/khala", "key: " + "k" * 43)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_called_a_secret_is_not_logged(name: str) -> None:
    assert redacted(None, "info", {"event": "x", name: "whatever"}) == {"event": "x", name: HIDDEN}


@pytest.mark.parametrize("text", TEXTS)
def test_what_looks_like_a_secret_is_hidden_wherever_it_stands(text: str) -> None:
    secret = text.split()[-1] if "://" not in text else "khala:en-taro"
    shown: dict[str, Any] = dict(redacted(None, "info", {"event": f"failed: {text}", "detail": {"more": [text]}}))
    assert secret not in str(shown)
    assert HIDDEN in shown["event"]


def test_ordinary_facts_stay_as_they_are() -> None:
    facts = {"event": "request", "path": "/api/threads/0190a3c4-7b2e-7c1a-9f00-000000000001", "status": 200, "ms": 1.5,
             "input_tokens": 12, "model": "demo"}  # fmt: skip
    assert redacted(None, "info", facts) == facts


def test_what_libraries_log_is_redacted_too() -> None:
    record = logging.LogRecord("any", logging.WARNING, "", 0, "sent %s", ("Bearer " + JWT,), None)
    assert Redacting().filter(record)
    assert JWT not in record.getMessage()


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Logging, for the test to configure."""
    yield
    structlog.reset_defaults()
    for handler in logging.getLogger().handlers:
        handler.filters[:] = [one for one in handler.filters if not isinstance(one, Redacting)]


ROW = "Key (email)=(adun\n@example.com) is there."


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_tells_no_secret_and_no_row(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(form)
    try:
        try:
            raise ValueError(f"duplicate key\nDETAIL:  {ROW}\nHINT:  Look. {JWT}")
        except ValueError as error:
            raise RuntimeError(f"refused\nDETAIL:  {ROW}") from error
    except RuntimeError:
        structlog.get_logger().exception("crashed")
    said = capsys.readouterr().err
    for word in ("adun", "example.com", JWT):
        assert word not in said
    for word in ("crashed", "duplicate key", "refused", "Look.", "RuntimeError", HIDDEN):
        assert word in said

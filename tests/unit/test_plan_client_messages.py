"""The messages of `khala plan` name the cause, in words, once."""

import errno
import os
from datetime import UTC, datetime
from uuid import UUID

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner

from khala.domain.plans.views import PlanEventEntry
from khala.operations.plan_client.api import refusal, unreachable_message
from khala.operations.plan_client.commands import plan
from khala.operations.plan_client.event_lines import event_line

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
REFUSED = aiohttp.ClientConnectorError(None, OSError(errno.ECONNREFUSED, "Connect call failed"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ([{"path": "document.line 3", "message": "No step."}], "line 3: No step."),
        ([{"path": "document", "message": "No step."}], "No step."),
        ([{"path": "mode", "message": "This is missing."}], "No step.\n  mode: This is missing."),
        ([{"path": "a", "message": "No step."}, {"path": "b", "message": "No."}], "No step.\n  a: No step.\n  b: No."),
    ],
)
def test_a_refusal_names_the_place_and_repeats_nothing(errors: list[dict[str, str]], message: str) -> None:
    body = {"code": "invalid_input", "detail": "No step.", "errors": errors}
    assert refusal(400, msgspec.json.encode(body)).message == message


def test_a_server_that_refuses_connections_is_named_with_the_reason_in_words() -> None:
    reason = os.strerror(errno.ECONNREFUSED).lower()
    assert unreachable_message("http://x", REFUSED).startswith(f"http://x does not answer: {reason}. Start")


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "localhost:8000", "http://", "ws://127.0.0.1:8000"])
def test_an_address_without_scheme_or_host_is_wrong_usage(server: str) -> None:
    result = CliRunner().invoke(plan, ["list"], env={"KHALA_URL": server})
    assert (result.exit_code, "such as http://127.0.0.1:8000" in " ".join(result.output.split())) == (2, True)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("step_unfinished", {"attempt": 2}, "try 2: the agent did not report that the step is complete"),
        ("no_progress", {"attempts": 3}, "3 tries completed no step"),
        ("iterations_added", {"count": 20}, "20"),
    ],
)
def test_the_line_of_an_event_says_what_happened(kind: str, data: dict[str, int], words: str) -> None:
    event = PlanEventEntry(plan_id=UUID(int=1), seq=1, type=kind, step_id="S1", at=AT, data=data)
    assert event_line(event).endswith(f"S1       {words}")

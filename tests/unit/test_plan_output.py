"""The output of agents by example: what completes a step, and what is a rate limit."""

from datetime import UTC, datetime
from time import process_time

import pytest

from khala.domain.plans.completion import COMPLETION_MARKER as MARKER
from khala.domain.plans.completion import is_marked_complete
from khala.domain.plans.rate_limits import find_rate_limit

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FENCE = "`" * 3


@pytest.mark.parametrize(
    "text",
    [
        MARKER,
        f"All done.\n{MARKER}\n",
        f"All done.\r\n\r\n{MARKER.lower()}  \r\n",
        f"   {MARKER.upper()}",
        f"{MARKER}\nThat was the last step.",
        f"{FENCE}\ncode\n{FENCE}\n{MARKER}",
        f"{FENCE}python\n{FENCE} not the end\n{FENCE}\n{MARKER}",
        f"~~~\n{FENCE}\n~~~\n{MARKER}",
        f"> a quote\n\n{MARKER}",
        f"- item\n  {FENCE}\n  code\n{MARKER}",
        f'A 5" disk, and `code`.\n{MARKER}',
    ],
)
def test_a_marker_alone_on_its_line_completes_a_step(text: str) -> None:
    assert is_marked_complete(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<promise>INCOMPLETE</promise>",
        "COMPLETE",
        f"I will say {MARKER} when it is done.",
        f"`{MARKER}`",
        f'"{MARKER}"',
        f"**{MARKER}**",
        f"    {MARKER}",
        f"\t{MARKER}",
        f"> {MARKER}",
        f"> They said:\n{MARKER}",
        f"> {FENCE}\n> {MARKER}\n> {FENCE}",
        f"{FENCE}\n{MARKER}\n{FENCE}",
        f"{FENCE}text\n{MARKER}",
        f"{FENCE}`\n{FENCE}\n{MARKER}\n{FENCE}`",
        f"~~~\n{FENCE}\n{MARKER}",
        f"- item:\n\n  {FENCE}\n  {MARKER}\n  {FENCE}",
        f"1. {FENCE}\n   {MARKER}\n   {FENCE}",
        f"- a\n\n      {MARKER}",
        f"The instructions end with “\n{MARKER}\n”.",
        f"The instructions end with `\n{MARKER}\n`.",
        f'The instructions end with "\n{MARKER}\n".',
        "<promise>COMP\nLETE</promise>",
    ],
)
def test_a_marker_that_is_missing_or_quoted_completes_nothing(text: str) -> None:
    assert not is_marked_complete(text)


@pytest.mark.parametrize(
    ("text", "retry_after"),
    [
        ('API Error: 429 {"type":"error","error":{"type":"rate_limit_error"}}', None),
        ("HTTP/1.1 429 Too Many Requests\nretry-after: 30", 30),
        ("Error: 429 Too Many Requests", None),
        ("stream error: exceeded retry limit, last status: 429 Too Many Requests", None),
        ("request failed with status code 429, retry after 12s", 12),
        ("Rate limit reached for gpt-5 in organization org on tokens per min. Please try again in 1m30.5s.", 90.5),
        ("Claude AI usage limit reached|1767272400", 3_600),
        ("You've hit your usage limit. Try again in 2 hours and 5 minutes.", 7_500),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", 7_200),
        ("5-hour limit reached ∙ resets 3pm", 10_800),
        ("5-hour limit reached ∙ resets 12:30 a.m.", 45_000),
        ("You've hit your usage limit. Try again at 12:05 PM.", 300),
        ("You've hit your usage limit. Try again at 11:55.", None),
        ("You've hit your usage limit. Try again at 11:45 (UTC)", 85_500),
        ("Rate limit reached, retry at 14:30 UTC", 9_000),
        ("Rate limit reached, resets at 2026-01-01T13:00:00Z", 3_600),
        ("Rate limit reached, resets at 2026-01-01 12:30", 1_800),
        ("Rate limit reached, resets at 2025-01-01 12:30", None),
        ("Weekly limit reached ∙ resets 13pm", None),
        ("Weekly limit reached ∙ resets 3pm (Mars/Olympus)", None),
        ("Weekly limit reached ∙ resets 3", None),
        ('{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', None),
        ("Error: 529 Overloaded", None),
        ("The model is currently overloaded.", None),
        ('{\n  "error": {\n    "code": 429,\n    "status": "RESOURCE_EXHAUSTED",\n    "retryDelay": "34.5s"\n', 34.5),
        ("Quota exceeded for quota metric 'Requests' of service", None),
        ("openai.RateLimitError: Error code: 429", None),
        ("You are being rate limited.\nretry_after_ms=250", 0.25),
        ("Error: rate limited, retry after 99999999 s", None),
    ],
)
def test_a_rate_limit_is_recognised_with_its_time(text: str, retry_after: float | None) -> None:
    found = find_rate_limit(f"reading files\n{text}\n", NOON)
    assert found is not None
    assert found.retry_after == retry_after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "npm error 404 '@upstash/ratelimit@9' is not in this registry",
        "Cannot find module '@upstash/ratelimit'",
        "    at Limiter.wait (/app/src/rate-limit.ts:429:13)",
        "src/status/429.ts: error TS2345",
        "src/api.py:429: error: Incompatible return value",
        "error: 429.html is missing",
        "error: 429/index.html is missing",
        "Error: a cycle over @acme/rate-limit and @acme/core",
        "error in line 429 of main.c",
        "429 tests failed",
        "+    status: 429,",
        "if (response.status === 429) retry()",
        "expect(response).toHaveStatus(429)",
        "AssertionError: status 429 == 200",
        "I added a test of the rate limit: too many requests are refused.",
        "The middleware returns HTTP 429 if the usage limit is exceeded.",
        f"{FENCE}\nHTTP 429\n{FENCE}",
        "error: call of overloaded 'f(int)' is ambiguous",
        "the file size limit is 429 bytes",
        "see `HTTP 429` in the manual",
        "Exceeded the time limit of 429 s",
    ],
)
def test_text_that_only_mentions_limits_and_numbers_is_no_rate_limit(text: str) -> None:
    assert find_rate_limit(text, NOON) is None


@pytest.mark.parametrize(
    "text",
    [
        "exceeded " * 30_000,
        "`" * 250_000,
        "- " * 125_000,
        "over a b c d\n" * 30_000,
        f"`\n{MARKER}\n`\n" * 10_000,
        f"{FENCE}\n" * 60_000,
    ],
)
def test_long_output_is_read_in_linear_time(text: str) -> None:
    began = process_time()
    find_rate_limit(text, NOON)
    is_marked_complete(text)
    assert process_time() - began < 5  # Measured: below 0.3 s; with one quadratic step more than 10 s.

"""Push notifications: what they say, which push services get them, and what follows from a response. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from khala.domain.allowed_hosts import host_name, is_loopback
from khala.domain.backoff import Backoff
from khala.domain.errors import InvalidInput
from khala.domain.plans.events import Paused, PlanEvent, Stopped

PushKind: TypeAlias = Literal["waiting", "answer"]
"""`waiting`: a run waits for a decision or an answer of a person, or a plan has paused by itself. `answer`: a long
answer is complete, or a long plan has ended.
"""

PUBLIC_KEY_BYTES = 65
"""Bytes of an uncompressed point of the curve P-256."""
AUTH_BYTES = 16
MAX_ENDPOINT_CHARACTERS = 2000
MAX_TITLE_CHARACTERS = 120
MAX_SUBSCRIPTIONS = 20
"""Browsers of one account, or of one anonymous key. A further one replaces the one that was confirmed first."""
LONG_ANSWER = timedelta(seconds=30)
"""The time after which people are told that an answer is complete, or that a plan has ended."""
GRACE = timedelta(seconds=2)
"""The delay of a notification, so that the calls of one step make one, and none that are decided at once."""
TIME_TO_LIVE = timedelta(hours=24)
"""The time for which a notification is of use: for retries, and for the push service while a browser is offline."""
MAX_ATTEMPTS = 8
MAX_FAILURES = 20
"""Notifications in a row that a push service refuses before the subscription is deleted."""
BACKOFF = Backoff(first_seconds=10, max_seconds=3600, min_factor=0.8, max_factor=1.2)
MAX_RETRY_AFTER_SECONDS = 3600.0
UNBOUND_LIFETIME = timedelta(days=2)
"""The time after which an account that subscribed without a session, by the JWT of an issuer, has to confirm it."""
GONE = frozenset({404, 410})
"""The browser has ended the subscription (RFC 8030, section 7.3)."""

URGENCY: dict[PushKind, str] = {"waiting": "high", "answer": "normal"}


class PushMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a notification, which only the browser can decrypt. It has no text of the conversation."""

    kind: PushKind
    thread_id: str
    title: str | None = None
    """The thread's title, if it has one."""
    tool: str | None = None
    """The tool whose call waits for approval; none for a question, and where several wait."""
    plan_id: str | None = None
    """The plan that the notification is about; none if it is about a run."""
    reason: str | None = None
    """Why the plan has paused (`PauseReason`) or ended (`PlanEnd`)."""


class PushOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt. `retry_seconds` is None if the message needs no further attempt.

    `refused`: for good. `failed`: the last attempt failed as the others did, and may say nothing about the browser.
    """

    state: Literal["delivered", "retried", "failed", "refused", "gone"]
    retry_seconds: float | None = None


def notification_kind(event: PlanEvent, *, is_edited: bool = False) -> PushKind | None:
    """The notification that follows from an event of a plan. None for what a person did, as a pause or a stop.

    `is_edited`: it pauses because another person than the one for whom it acts has edited it.
    """
    if isinstance(event, Paused):
        return "waiting" if event.reason != "requested" or is_edited else None
    if isinstance(event, Stopped):
        return "answer" if event.reason != "interrupted" else None
    return None


def judge(status: int | None, *, attempts: int, retry_after: float | None, jitter: float) -> PushOutcome:
    """Judge a response after so many attempts to deliver the message. `status` is None if there was none."""
    if status is not None and 200 <= status < 300:
        return PushOutcome(state="delivered")
    if status in GONE:
        return PushOutcome(state="gone")
    is_temporary = status is None or status == 429 or status >= 500
    if not is_temporary:
        return PushOutcome(state="refused")
    if attempts >= MAX_ATTEMPTS:
        return PushOutcome(state="failed")
    asked = 0.0 if retry_after is None else min(retry_after, MAX_RETRY_AFTER_SECONDS)
    return PushOutcome(state="retried", retry_seconds=max(asked, BACKOFF.delay(attempts, jitter)))


def check_endpoint(url: str, hosts: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the address is one of these push services, by HTTPS or on this machine.

    `*.example.com` allows every name below `example.com`, and `*` every host.
    """
    try:
        parts = urlsplit(url)
        name = host_name(parts.netloc)
    except ValueError as error:
        raise InvalidInput("This is not an address.", path="endpoint") from error
    is_own = name is not None and is_loopback(name)
    if name is None or "@" in parts.netloc or parts.fragment or not (parts.scheme == "https" or is_own):
        raise InvalidInput("The endpoint must be an https address of a push service.", path="endpoint")
    if not any(_matches(name, host) for host in hosts):
        raise InvalidInput(
            f"{name} is not among this server's push services. The operator can add it to KHALA_PUSH_HOSTS.",
            path="endpoint",
        )


def _matches(name: str, host: str) -> bool:
    return host == "*" or (name.endswith(host[1:]) if host.startswith("*.") else name == host)

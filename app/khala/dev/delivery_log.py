"""The deliveries of webhooks that this development server has received, the newest last."""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from khala.domain.webhooks import signed_headers

MAX_DELIVERIES = 200
"""Deliveries that are kept."""
MAX_SHOWN_CHARACTERS = 100
"""Of a type and an id in the terminal."""
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


class ReceivedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the type and data of its event, and whether its signature is right."""

    number: int
    received_at: datetime
    message_id: str
    type: str
    body: str
    is_valid: bool

    @property
    def line(self) -> str:
        """The delivery in one line."""
        mark = "" if self.is_valid else "  (the signature is wrong)"
        return f"webhook  {_printable(self.type)}  {_printable(self.message_id)}{mark}"


class _Event(msgspec.Struct):
    type: str


class DeliveryLog:
    """Keeps the newest deliveries. `report` gets a line about each."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.secrets: tuple[bytes, ...] = ()
        """The secrets of the webhook that sends to this log."""
        self._report = report
        self._deliveries: deque[ReceivedDelivery] = deque(maxlen=MAX_DELIVERIES)
        self._count = 0

    def receive(self, headers: dict[str, str], body: bytes) -> bool:
        """Keep a request. Returns whether its signature is right."""
        self._count += 1
        received = ReceivedDelivery(
            number=self._count,
            received_at=datetime.now(UTC),
            message_id=headers.get(ID, ""),
            type=_type_of(body),
            body=body.decode(errors="replace"),
            is_valid=self._is_signed(headers, body),
        )
        self._deliveries.append(received)
        self._report(received.line)
        return received.is_valid

    def after(self, number: int) -> list[ReceivedDelivery]:
        """The deliveries after this one, the newest first."""
        return [one for one in reversed(self._deliveries) if one.number > number]

    def _is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        timestamp = headers.get(TIMESTAMP, "")
        if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
            return False
        signed = dict(signed_headers(headers.get(ID, ""), int(timestamp), body, self.secrets))
        expected = signed[SIGNATURE.encode()].decode().split()
        return not set(expected).isdisjoint(headers.get(SIGNATURE, "").split())


def _printable(text: str) -> str:
    """The text for a terminal, which would obey control characters. Any page in the browser can send a request here."""
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_SHOWN_CHARACTERS])


def _type_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Event).type
    except msgspec.MsgspecError:
        return "(no event)"

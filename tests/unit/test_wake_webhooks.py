"""What a webhook of a subscription has answered, without I/O."""

import pytest

from khala.stream_wakes.webhook_sender import read_outcome
from khala.tools.webhook_client import WebhookResponse


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"done": true}', "done"),
        (b'{"done": false}', "taken"),
        (b'{"done": "yes"}', "taken"),
        (b"", "taken"),
        (b"[" * 60_000, "taken"),
        (b'{"a":' * 10_000, "taken"),
        (b'{"done": true, "\xff": "\xff"}', "done"),
    ],
)
def test_every_body_of_a_response_has_a_meaning(body: bytes, outcome: str) -> None:
    assert read_outcome(WebhookResponse(status=200, headers={}, body=body, is_complete=True)) == outcome

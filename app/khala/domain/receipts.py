"""The witness: each receipt of a run is hashed together with the hash of the one before it.

Whoever changes, adds or removes a receipt later changes every hash after it, and the last one stands in the run's
finish, in three places. It shows tampering with receipts, not who did it, and not whether a receipt was true.
"""

import hashlib
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.decimals import format_optional

FIRST_HASH = b""
"""What comes before a run's first receipt."""


def chained_hash(
    before: bytes,
    *,
    run_id: UUID,
    seq: int,
    kind: str,
    tool_call_id: str | None,
    data: Any,
    cost_usd: Decimal | None,
) -> bytes:
    """The hash (SHA-256) of a receipt that follows the one with the hash `before`."""
    told = [run_id, seq, kind, tool_call_id, _stored(data), format_optional(cost_usd)]
    return hashlib.sha256(before + msgspec.json.encode(told, order="deterministic")).digest()


def _stored(value: Any) -> Any:
    """The value with its numbers as they come back from Postgres, which writes 1e16 as the whole number that it is."""
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _stored(one) for key, one in value.items()}
        case list():
            return [_stored(one) for one in value]
        case _:
            return value

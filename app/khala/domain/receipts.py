"""The receipt chain: the hash of each receipt of a run also covers the hash of the previous one.

Changing, adding or removing a receipt later changes every hash after it. The last hash is in the run's finish, which
is stored in the run, its message and its last part; in the message alone once the parts are packed. The chain reveals
tampering with receipts, but not the author of it, nor whether a receipt was true.
"""

import hashlib
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.decimals import format_optional

FIRST_HASH = b""
"""The previous hash of a run's first receipt."""


def chained_hash(
    previous: bytes,
    *,
    run_id: UUID,
    seq: int,
    kind: str,
    tool_call_id: str | None,
    data: Any,
    cost_usd: Decimal | None,
) -> bytes:
    """The hash (SHA-256) of a receipt. `previous` is the hash of the run's previous receipt."""
    fields = [run_id, seq, kind, tool_call_id, _stored(data), format_optional(cost_usd)]
    return hashlib.sha256(previous + msgspec.json.encode(fields, order="deterministic")).digest()


def _stored(value: Any) -> Any:
    """The value with its numbers as Postgres returns them: 1e16 is stored as an integer."""
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _stored(item) for key, item in value.items()}
        case list():
            return [_stored(item) for item in value]
        case _:
            return value

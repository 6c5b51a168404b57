"""The receipt chain: the hash of each receipt of a run also covers the hash of the previous one.

A receipt that is changed, added or removed later changes every hash after it, and the run's finish has the last hash in
three places. The chain reveals tampering with receipts, but neither its author nor whether a receipt was true.
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
    before: bytes,
    *,
    run_id: UUID,
    seq: int,
    kind: str,
    tool_call_id: str | None,
    data: Any,
    cost_usd: Decimal | None,
) -> bytes:
    """The hash (SHA-256) of a receipt, given the hash `before` of the previous one."""
    fields = [run_id, seq, kind, tool_call_id, _stored(data), format_optional(cost_usd)]
    return hashlib.sha256(before + msgspec.json.encode(fields, order="deterministic")).digest()


def _stored(value: Any) -> Any:
    """The value with its numbers as Postgres returns them: 1e16 is stored as an integer."""
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _stored(one) for key, one in value.items()}
        case list():
            return [_stored(one) for one in value]
        case _:
            return value

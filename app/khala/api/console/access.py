"""Access to the console: only administrators, and only people."""

from typing import Annotated
from uuid import UUID

import msgspec
from litestar.di import NamedDependency
from msgspec import Meta

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller, is_admin
from khala.domain.errors import Forbidden
from khala.store.accounts import external_users

MAX_REASON_CHARACTERS = 500

Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)]


class ConsoleReason(ApiStruct, frozen=True, kw_only=True):
    """Why an administrator does something. The audit trail stores it."""

    reason: Reason | None = None


async def admin(context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Caller:
    """Return the administrator who makes the request. Raises `Unauthorized` or `Forbidden` for anybody else.

    A service is no administrator here, whatever its scopes: the audit trail names a person.
    """
    user_id = require_user(caller)
    if caller.service is None:
        async with context.db.driver() as driver:
            facts = await external_users.admin_facts(driver, user_id)
        if is_admin(caller, facts, context.sign_in.admins):
            # The keys of threads give an administrator no more.
            return msgspec.structs.replace(caller, anon_key_hash=None, share_key_hash=None)
    raise Forbidden("The console is for administrators of this server.")


def given_reason(data: ConsoleReason | None) -> str | None:
    """Return the reason, if there is one. Raises `InvalidInput` for text that cannot be stored."""
    return None if data is None or data.reason is None else check_text(data.reason, "reason")


def is_self(caller: Caller, account: UUID) -> bool:
    """Whether the account is the administrator's own."""
    return caller.user_id == account

"""Access to the console: administrators, and services that only read."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from msgspec import Meta

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.http.request_origin import SAFE_METHODS
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller, is_admin
from khala.domain.errors import Forbidden
from khala.store.accounts import external_users

MAX_REASON_CHARACTERS = 500
FOR_PEOPLE = "for_people"
"""Route option: the route shows text, so that no service may call it, although it only reads."""

Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)]


class ConsoleReason(ApiStruct, frozen=True, kw_only=True):
    """Why an administrator does something. The audit trail stores it."""

    reason: Reason | None = None


async def admin(
    request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
) -> Caller:
    """Return the administrator who makes the request. Raises `Unauthorized` or `Forbidden` for anybody else.

    A service with the scope `admin` may read lists, which have no text. The audit trail names a person for each action
    and each thread that is opened, so a service may do neither.
    """
    user_id = require_user(caller)
    async with context.db.driver() as driver:
        facts = await external_users.admin_facts(driver, user_id)
    if not is_admin(caller, facts, context.sign_in.admins):
        raise Forbidden("The console is for administrators of this server.")
    for_people = request.method not in SAFE_METHODS or request.route_handler.opt.get(FOR_PEOPLE)
    if caller.service is not None and for_people:
        raise Forbidden("A service may only read lists of the console. Use the credential of an administrator.")
    # The keys of threads give an administrator no more.
    return msgspec.structs.replace(caller, anon_key_hash=None, share_key_hash=None)


def given_reason(data: ConsoleReason | None) -> str | None:
    """Return the reason, if there is one. Raises `InvalidInput` for text that cannot be stored."""
    return None if data is None or data.reason is None else check_text(data.reason, "reason")


def is_self(caller: Caller, account: UUID) -> bool:
    """Whether the account is the administrator's own."""
    return caller.user_id == account

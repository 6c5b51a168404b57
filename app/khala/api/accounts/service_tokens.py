"""Requests of services: for the service's own account, or for the user whom `Khala-User` names."""

import time
from collections import OrderedDict
from uuid import UUID

import msgspec

from khala.api.http.request_origin import Connection
from khala.domain.access import Caller, external_user_id, require_service_scope
from khala.domain.accounts import Identity
from khala.domain.budgets import DAY_SECONDS
from khala.domain.errors import Forbidden, InvalidInput
from khala.store.accounts import audit, external_users
from khala.store.postgres.database import Database

USER_HEADER = "Khala-User"
"""The header with the external id of the user for whom a service acts."""
BROWSER_HEADERS = ("origin", "cookie")
"""Headers by which a request comes from a browser, beside all that begin with `Sec-Fetch-`."""
MAX_REMEMBERED = 50_000
"""Pairs of tokens and users whose entry in the audit trail this process remembers to have written."""


class ImpersonationAudit:
    """Writes one entry a day to the audit trail for each token and user for whom it acts."""

    def __init__(self) -> None:
        self._days: OrderedDict[tuple[UUID, UUID], int] = OrderedDict()

    async def record(self, db: Database, caller: Caller) -> None:
        """Record that the caller's service acts for the caller's user."""
        assert caller.service is not None
        assert caller.user_id is not None
        key, today = (caller.service.token_id, caller.user_id), int(time.time() // DAY_SECONDS)
        if self._days.get(key) == today:
            return
        await audit.record_impersonation(db, caller)
        self._days[key] = today
        if len(self._days) > MAX_REMEMBERED:
            self._days.popitem(last=False)


def refuse_user_header(connection: Connection) -> None:
    """Raise `Forbidden` if a caller that is no service names a user to act for."""
    if USER_HEADER in connection.headers:
        raise Forbidden(f"Only a service token with the scope impersonate may send {USER_HEADER}.")


def refuse_browser(connection: Connection) -> None:
    """Raise `Forbidden` if a browser sends a service token: everybody who uses the page could read the token."""
    names = [name.lower() for name in connection.headers]
    if any(name in BROWSER_HEADERS or name.startswith("sec-fetch-") for name in names):
        raise Forbidden(
            "A service token must never reach a browser: revoke it. Give browsers thread tokens or JWTs of users."
        )


async def act_for_user(connection: Connection, account: Caller, db: Database, trail: ImpersonationAudit) -> Caller:
    """The user whom the request names, else the service's own account. The first request for a user creates them."""
    assert account.service is not None
    given = connection.headers.getall(USER_HEADER, [])
    if not given:
        return account
    if len(given) > 1:
        raise InvalidInput(f"Send {USER_HEADER} once.", path=USER_HEADER)
    require_service_scope(account.service, "impersonate")
    service = msgspec.structs.replace(account.service, impersonates=True)
    identity = Identity(issuer=service.user_issuer, subject=external_user_id(given[0]))
    acting = msgspec.structs.replace(account, service=service)
    user = await external_users.find_or_create(db, identity, acting)
    acting = msgspec.structs.replace(acting, user_id=user.id, name=user.name)
    await trail.record(db, acting)
    return acting

"""The caller's account over REST: profile, export, usage, audit log, sessions and deletion."""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, delete, get, patch
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import BodyKwarg, QueryParameter
from litestar.response import Stream

from khala.api.accounts import session_cookie
from khala.api.accounts.authentication import BY_ACCOUNT, require_credentials, require_user
from khala.api.accounts.exports import ArchiveStream
from khala.api.accounts.sign_in import ACCOUNT, BODY, DENIED, check_current_password
from khala.api.accounts.types import AccountDeletion, ProfileChanges
from khala.api.context import Context
from khala.api.http.path_parameters import SessionId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import Items, Page
from khala.api.validation import check_text
from khala.archive.exporter import export_archive
from khala.domain.access import Caller, is_admin
from khala.domain.accounts import Invitation, Session, User
from khala.domain.budgets import BudgetUsage
from khala.store.accounts import accounts, audit, external_users, sessions
from khala.store.accounts.audit import AuditEntry
from khala.store.budgets import usage_receipts, windows
from khala.store.budgets.usage_receipts import UsageReceipt
from khala.store.operations import account_export
from khala.store.sharing import invitations

BY_ANON_KEY: list[dict[str, list[str]]] = [{"anonKey": []}]
"""For the OpenAPI document: an anonymous key also opens this operation."""
ZIP, JSON_LINES = "application/zip", "application/jsonl"
ARCHIVE = ResponseSpec(
    data_container=bytes, media_type=ZIP, generate_examples=False, description="The archive, or JSON lines."
)

Connection = Request[Any, Any, Any]


@dataclass
class ExportOperation(Operation):
    """An operation whose response has one of two media types. Litestar documents only one of them."""

    def __post_init__(self) -> None:
        """Document the second media type."""
        response = (self.responses or {}).get("200")
        if isinstance(response, OpenAPIResponse) and response.content is not None:
            response.content[JSON_LINES] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


async def read_user(context: Context, caller: Caller) -> User:
    """Return the caller's account, and whether the caller is an administrator."""
    user_id = require_user(caller)
    async with context.db.snapshot() as driver:
        user = await accounts.get(driver, user_id)
        facts = await external_users.admin_facts(driver, user_id)
    return msgspec.structs.replace(user, admin=is_admin(caller, facts, context.sign_in.admins))


class AccountController(Controller):
    """The caller's account."""

    path = "/me"
    tags = ("Accounts",)
    security = BY_ACCOUNT

    @get(
        "/",
        operation_id="readAccount",
        summary="Read the account",
        response_description="The account.",
        responses=documented_errors(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> User:
        """Read the account of the caller."""
        return await read_user(context, caller)

    @patch(
        "/",
        operation_id="renameAccount",
        summary="Change the account's name",
        opt={"scope": "account"},
        response_description="The changed account.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def rename(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[ProfileChanges, BodyKwarg(examples=example("A new name", name="Tassadar"))],
    ) -> User:
        """Change the name that other users see. `null` removes it."""
        user_id = require_user(caller)
        await accounts.rename(context.db, user_id, None if data.name is None else check_text(data.name, "name"))
        return await read_user(context, caller)

    @delete(
        "/",
        operation_id="deleteAccount",
        operation_class=OptionalBody,
        summary="Delete the account",
        opt={"scope": "account"},
        response_description="The account was deleted.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def remove(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[
            AccountDeletion | None, BodyKwarg(examples=example("With the password", password=ACCOUNT["password"]))
        ] = None,
    ) -> Response[None]:
        """Delete the account with its threads, sessions and tokens. An account with a password must send it."""
        await check_current_password(context, caller, require_user(caller), data.password if data else None)
        await accounts.remove(context.db, caller)
        return Response(None, status_code=204, cookies=[session_cookie.signed_out(request, context.origins)])

    @get(
        "/export",
        operation_id="exportAccount",
        operation_class=ExportOperation,
        summary="Export the account",
        opt={"scope": "account"},
        responses=documented_errors(*DENIED, "payload_too_large") | {200: ARCHIVE},
    )
    async def export(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], request: Connection
    ) -> Stream:
        """Export everything that the account has, as a ZIP file of JSON lines and of its blobs.

        If `Accept` prefers `application/jsonl`, the response contains only JSON lines: the user, files, todos, tools,
        and threads with their content.
        """
        user_id = require_user(caller)
        async with context.db.snapshot() as driver:
            user = await accounts.get(driver, user_id)
        is_archive = request.accept.best_match([ZIP, JSON_LINES], ZIP) == ZIP
        if is_archive:
            context.limits.exports.check(user_id)  # A refused export is not counted.
        await context.limits.exports.count(context.db, user_id)
        if not is_archive:
            return Stream(
                account_export.export_lines(context.db, user), media_type=JSON_LINES, headers=_attachment("khala.jsonl")
            )
        chunks = await context.limits.exports.start(user_id, export_archive(context.db, context.blobs.service, user_id))
        return ArchiveStream(chunks, media_type=ZIP, headers=_attachment("khala.zip"))

    @get(
        "/invitations",
        operation_id="listInvitations",
        summary="List invitations",
        response_description="Open invitations, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def invitations(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Items[Invitation]:
        """List invitations to threads. Accept one with `POST /threads/{id}/join`, or decline by removing yourself."""
        async with context.db.snapshot() as driver:
            return Items(items=await invitations.of_user(driver, require_user(caller)))

    @get(
        "/usage",
        operation_id="readUsage",
        summary="Read usage and limits",
        security=BY_ANON_KEY,
        response_description="Limits, and their usage.",
        responses=documented_errors(*DENIED),
    )
    async def usage(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[BudgetUsage]:
        """Read what the account, or the anonymous key, has used of its limits in the current windows."""
        async with context.db.snapshot() as driver:
            return Items(
                items=await windows.read_usage(driver, require_credentials(caller), context.limits.sends.budgets)
            )

    @get(
        "/usage/receipts",
        operation_id="listUsageReceipts",
        summary="List receipts of calls outside of runs",
        response_description="Receipts, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def usage_receipts(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        cursor: Annotated[UUID | None, QueryParameter(description="The `nextCursor` of the previous page.")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")] = 50,
    ) -> Page[UsageReceipt]:
        """List what the account has used outside of runs: extractions of memories, and embeddings of texts.

        The receipts of a run are at `GET /runs/{id}/receipts`. Receipts are kept for 90 days.
        """
        user_id = require_user(caller)
        async with context.db.snapshot() as driver:
            items = await usage_receipts.of_user(driver, user_id, before=cursor, limit=limit + 1)
        more = len(items) > limit
        return Page(items=items[:limit], next_cursor=str(items[limit - 1].id) if more else None)

    @get(
        "/audit",
        operation_id="listAuditEntries",
        summary="List the account's audit log",
        opt={"scope": "account"},
        response_description="Changes, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def audit(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        before: Annotated[UUID | None, QueryParameter(description="The id of the oldest entry that you have.")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of entries.")] = 50,
    ) -> Items[AuditEntry]:
        """List the changes that this account made to identities and access."""
        async with context.db.snapshot() as driver:
            return Items(items=await audit.of_user(driver, require_user(caller), before=before, limit=limit))

    @get(
        "/sessions",
        operation_id="listSessions",
        summary="List sessions",
        opt={"scope": "account"},
        response_description="Sessions, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def sessions(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[Session]:
        """List the browsers that are signed in."""
        async with context.db.snapshot() as driver:
            return Items(items=await sessions.of_user(driver, require_user(caller), caller.credential))

    @delete(
        "/sessions/{session_id:uuid}",
        operation_id="endSession",
        summary="End a session",
        opt={"scope": "account"},
        response_description="The session has ended.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def end_session(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], session_id: SessionId
    ) -> None:
        """Sign a browser out, and close its sockets."""
        require_user(caller)
        await sessions.end(context.db, session_id, caller)

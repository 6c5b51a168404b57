"""One's own account over REST: what it is called, has, used and changed, and its end."""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import BodyKwarg, QueryParameter
from litestar.response import Stream

from khala.api.accounts import session_cookie
from khala.api.accounts.authentication import BY_ACCOUNT, require_credentials, require_user
from khala.api.accounts.exports import ArchiveStream
from khala.api.accounts.sign_in import ACCOUNT, BODY, DENIED, confirmed
from khala.api.accounts.types import AccountDeletion, ProfileChanges
from khala.api.context import Context
from khala.api.http.path_parameters import SessionId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import Items
from khala.api.validation import check_text
from khala.archive.exporter import export_archive
from khala.domain.access import Caller
from khala.domain.accounts import Invitation, Session, User
from khala.domain.budgets import BudgetUsage
from khala.store.accounts import accounts, audit, sessions
from khala.store.accounts.audit import AuditEntry
from khala.store.budgets import windows
from khala.store.operations import account_export
from khala.store.sharing import invitations

BY_ANON_KEY: list[dict[str, list[str]]] = [{"anonKey": []}]
"""For the OpenAPI document: besides what its controller says, an anonymous key is enough for this operation."""
ZIP, LINES = "application/zip", "application/jsonl"
ARCHIVE = ResponseSpec(
    data_container=bytes, media_type=ZIP, generate_examples=False, description="The archive; or one JSON object a line."
)

Connection = Request[Any, Any, Any]


@dataclass
class ExportOperation(Operation):
    """An operation whose answer has one of two media types, of which Litestar knows one."""

    def __post_init__(self) -> None:
        """Name the other."""
        answer = (self.responses or {}).get("200")
        if isinstance(answer, OpenAPIResponse) and answer.content is not None:
            answer.content[LINES] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


def _saved(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


class AccountController(Controller):
    """One's own account."""

    path = "/me"
    tags = ("Accounts",)
    security = BY_ACCOUNT

    @get("/", operation_id="me", summary="Who am I?", response_description="You.", responses=documented_errors(*DENIED))
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> User:
        """The account that the request is made by."""
        async with context.db.snapshot() as driver:
            return await accounts.get(driver, require_user(caller))

    @patch(
        "/",
        operation_id="renameMe",
        summary="Change the name",
        opt={"scope": "account"},
        response_description="You, now.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def rename(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[ProfileChanges, BodyKwarg(examples=example("Another name", name="Tassadar"))],
    ) -> User:
        """Be called so from now on, or nothing with `null`."""
        user_id = require_user(caller)
        await accounts.rename(context.db, user_id, None if data.name is None else check_text(data.name, "name"))
        async with context.db.snapshot() as driver:
            return await accounts.get(driver, user_id)

    @delete(
        "/",
        operation_id="deleteMe",
        operation_class=OptionalBody,
        summary="Delete the account",
        opt={"scope": "account"},
        response_description="It is gone.",
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
        """Delete the account, its threads, sessions and tokens. It takes the password, where there is one."""
        await confirmed(context, caller, require_user(caller), data.password if data else None)
        await accounts.remove(context.db, caller)
        return Response(None, status_code=204, cookies=[session_cookie.clearing(request, context.origins)])

    @get(
        "/export",
        operation_id="exportMe",
        operation_class=ExportOperation,
        summary="Export everything",
        opt={"scope": "account"},
        responses=documented_errors(*DENIED, "payload_too_large") | {200: ARCHIVE},
    )
    async def export(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], request: Connection
    ) -> Stream:
        """All that the account has, as a ZIP file of JSON lines and of the bytes of its blobs.

        Where `Accept` prefers `application/jsonl`: the user, files, todos, tools, threads, and what is in those, as
        JSON lines only.
        """
        user_id = require_user(caller)
        async with context.db.snapshot() as driver:
            user = await accounts.get(driver, user_id)
        await context.limits.exports.count(context.db, user_id)
        if request.accept.best_match([ZIP, LINES], ZIP) == LINES:
            return Stream(
                account_export.export_lines(context.db, user), media_type=LINES, headers=_saved("khala.jsonl")
            )
        chunks = await context.limits.exports.begun(user_id, export_archive(context.db, context.blobs.service, user_id))
        return ArchiveStream(chunks, media_type=ZIP, headers=_saved("khala.zip"))

    @get(
        "/invitations",
        operation_id="listInvitations",
        summary="Which threads am I invited to?",
        response_description="Open invitations, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def invitations(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Items[Invitation]:
        """Roles that the account may take with `POST /threads/{id}/join`, or decline by removing itself."""
        async with context.db.snapshot() as driver:
            return Items(items=await invitations.of_user(driver, require_user(caller)))

    @get(
        "/usage",
        operation_id="usage",
        summary="What is used of which limit?",
        security=BY_ANON_KEY,
        response_description="Limits, and what is used of them.",
        responses=documented_errors(*DENIED),
    )
    async def usage(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[BudgetUsage]:
        """What the account, or else the anonymous key, has used of its limits in their present windows."""
        async with context.db.snapshot() as driver:
            return Items(
                items=await windows.read_usage(driver, require_credentials(caller), context.limits.sends.budgets)
            )

    @get(
        "/audit",
        operation_id="auditMe",
        summary="What has this account changed?",
        opt={"scope": "account"},
        response_description="Changes, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def audit(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        before: Annotated[UUID | None, QueryParameter(description="The id of the oldest that you have.")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="How many, at most.")] = 50,
    ) -> Items[AuditEntry]:
        """What this account did to identities and access."""
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
        """The browsers that are signed in."""
        async with context.db.snapshot() as driver:
            return Items(items=await sessions.of_user(driver, require_user(caller), caller.credential))

    @delete(
        "/sessions/{session_id:uuid}",
        operation_id="endSession",
        summary="End a session",
        opt={"scope": "account"},
        response_description="It is over.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def end_session(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], session_id: SessionId
    ) -> None:
        """Sign a browser out; its sockets are cut off."""
        require_user(caller)
        await sessions.end(context.db, session_id, caller)

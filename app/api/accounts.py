"""Accounts over REST: register, sign in and out, and what belongs to an account."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, QueryParameter
from litestar.response import Stream

from app.api import cookies, throttle
from app.api.bodies import (
    Farewell,
    Items,
    Login,
    NewPassword,
    Profile,
    Provider,
    Registration,
    SignedIn,
    SignedOut,
    Ways,
    storable,
)
from app.api.callers import BY_ACCOUNT, BY_KEY, somebody, user_of
from app.api.context import Context
from app.api.document import OptionalBody
from app.api.origins import base_url
from app.api.paths import SessionId
from app.api.problems import documented
from app.api.sharing import claimed
from app.domain.access import Caller
from app.domain.accounts import Session, User
from app.domain.budgets import Used
from app.domain.errors import Forbidden, InvalidInput, Unauthorized
from app.identity import passwords
from app.store import accounts, audit, export, ledger, sessions
from app.store.audit import Trace

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
WRONG = "The address or the password is wrong."
LONGEST_USER_AGENT = 300
ACCOUNT = {"email": "tassadar@example.com", "password": "en taro adun"}

Connection = Request[Any, Any, Any]


def _example(summary: str, **value: Any) -> list[Example]:
    return [Example(summary=summary, value=value)]


class Auth(Controller):
    """Ways in and out."""

    path = "/auth"
    tags = ("Accounts",)

    @get(
        "/",
        operation_id="waysIn",
        summary="How may one sign in?",
        response_description="The ways.",
        responses=documented("rate_limited"),
    )
    async def ways(self, context: NamedDependency[Context]) -> Ways:
        """Whether accounts can be made here, and the OpenID Provider if there is one."""
        oidc = None if context.provider is None else Provider(name=context.provider_name)
        return Ways(registration=context.registration, oidc=oidc)

    @post(
        "/register",
        operation_id="register",
        summary="Make an account",
        response_description="The account. The answer signs the browser in.",
        responses=documented(*DENIED, "conflict", *BODY),
    )
    async def register(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[
            Registration,
            BodyKwarg(examples=_example("An account", **ACCOUNT)),
        ],
    ) -> Response[SignedIn]:
        """Make an account with an address and a password, sign in, and claim anonymous threads in one go."""
        if not context.registration:
            raise Forbidden("No accounts are made here by oneself.")
        email = passwords.normalized_email(data.email)
        hashed = await passwords.hashed(passwords.checked(data.password))
        await throttle.count_registration(context.db, caller.network)
        name = None if data.name is None else storable(data.name, "name")
        user_id = await accounts.register(context.db, email, hashed, name, caller)
        return await signed_in(context, request, caller, user_id, data, status=201)

    @post(
        "/login",
        operation_id="login",
        summary="Sign in",
        status_code=200,
        response_description="The account. The answer signs the browser in.",
        responses=documented(*DENIED, *BODY),
    )
    async def login(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[Login, BodyKwarg(examples=_example("By password", **ACCOUNT))],
    ) -> Response[SignedIn]:
        """Sign in by address and password, and claim anonymous threads in one go."""
        email = _address(data.email)
        await throttle.count_try(context.db, email, caller.network)
        user_id = await _proven(context, caller, email, data.password)
        await throttle.forgive(context.db, email, caller.network)
        return await signed_in(context, request, caller, user_id, data, status=200)

    @post(
        "/logout",
        operation_id="logout",
        summary="Sign out",
        status_code=200,
        opt={"scope": "account"},
        response_description="The session is over.",
        responses=documented("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable"),
    )
    async def logout(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], request: Connection
    ) -> Response[SignedOut]:
        """End the session that the cookie is of; sockets that were opened by it are cut off."""
        ended = None
        if caller.credential is not None and "authorization" not in request.headers:
            id_token = await sessions.end(context.db, caller.credential, caller)
            if context.provider is not None and id_token is not None:
                back = base_url(request, context.origins) + "/"
                ended = await context.provider.end_session_url(id_token, back)
        cookie = cookies.clearing(request, context.origins)
        return Response(SignedOut(end_session_url=ended), cookies=[cookie])

    @post(
        "/password",
        operation_id="changePassword",
        summary="Change the password",
        status_code=204,
        security=BY_ACCOUNT,
        opt={"scope": "account"},
        response_description="It is changed, and all other sessions are over.",
        responses=documented(*DENIED, "conflict", *BODY),
    )
    async def change_password(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewPassword, BodyKwarg(examples=_example("Another", current="en taro adun", new="en taro tassadar"))
        ],
    ) -> None:
        """Change the password, or give an account that signs in otherwise one, with an address."""
        user_id = user_of(caller)
        has_one = await _confirmed(context, caller, user_id, data.current)
        email = None if has_one else passwords.normalized_email(data.email or "")
        hashed = await passwords.hashed(passwords.checked(data.new, path="new"))
        await accounts.set_password(context.db, caller, hashed, email=email)


def _address(given: str) -> str:
    """The address; one that is none is as wrong as one that nobody has."""
    try:
        return passwords.normalized_email(given)
    except InvalidInput:
        return ""


async def _proven(context: Context, caller: Caller, email: str, password: str) -> UUID:
    """The user whose password this is. It takes as long whether there is such an account or not."""
    async with context.db.driver() as driver:
        secret = await accounts.secret_of(driver, email)
    right = await passwords.matches(password, None if secret is None else secret.hash)
    if secret is None or not right:
        if secret is not None:
            await accounts.note_failure(context.db, secret.user_id, caller)
        raise Unauthorized(WRONG)
    if passwords.needs_rehash(secret.hash):
        await accounts.rehash(context.db, secret.user_id, secret.hash, await passwords.hashed(password))
    return secret.user_id


async def _confirmed(context: Context, caller: Caller, user_id: UUID, password: str | None) -> bool:
    """Whether the account has a password, which then must be this one."""
    async with context.db.driver() as driver:
        secret = await accounts.secret_of_user(driver, user_id)
    if secret is None:
        return False
    await throttle.count_try(context.db, str(user_id), caller.network)
    if not await passwords.matches(password or "", secret.hash):
        raise Forbidden("The current password is wrong.")
    await throttle.forgive(context.db, str(user_id), caller.network)
    return True


async def signed_in(
    context: Context, request: Connection, caller: Caller, user_id: UUID, data: Login | Registration, *, status: int
) -> Response[SignedIn]:
    """A new session in place of the one that the browser came with, and the claims that it brought."""
    secret = await begin(context, request, caller, user_id)
    async with context.db.driver() as driver:
        user = await accounts.get(driver, user_id)
    who = msgspec.structs.replace(caller, user_id=user_id, name=user.name)
    found = await claimed(context, data.claim, who)
    body = SignedIn(**msgspec.structs.asdict(user), claimed=tuple(found))
    return Response(body, status_code=status, cookies=[cookies.keeping(request, context.origins, secret)])


async def begin(
    context: Context, request: Connection, caller: Caller, user_id: UUID, *, id_token: str | None = None
) -> str:
    """A new session of this browser's; its old one ends. Returns the secret."""
    agent = storable_agent(request.headers.get("user-agent"))
    before = caller if "authorization" not in request.headers else Caller(network=caller.network)
    return await sessions.begin(context.db, user_id, before, user_agent=agent, id_token=id_token)


def storable_agent(agent: str | None) -> str | None:
    """What the browser calls itself, as much as is worth keeping."""
    return None if agent is None else agent.replace("\0", "")[:LONGEST_USER_AGENT]


class Me(Controller):
    """One's own account."""

    path = "/me"
    tags = ("Accounts",)
    security = BY_ACCOUNT

    @get("/", operation_id="me", summary="Who am I?", response_description="You.", responses=documented(*DENIED))
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> User:
        """The account that the request is made by."""
        async with context.db.snapshot() as driver:
            return await accounts.get(driver, user_of(caller))

    @patch(
        "/",
        operation_id="renameMe",
        summary="Change the name",
        opt={"scope": "account"},
        response_description="You, now.",
        responses=documented(*DENIED, *BODY),
    )
    async def rename(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[Profile, BodyKwarg(examples=_example("Another name", name="Tassadar"))],
    ) -> User:
        """Be called so from now on, or nothing with `null`."""
        user_id = user_of(caller)
        await accounts.rename(context.db, user_id, None if data.name is None else storable(data.name, "name"))
        async with context.db.snapshot() as driver:
            return await accounts.get(driver, user_id)

    @delete(
        "/",
        operation_id="deleteMe",
        operation_class=OptionalBody,
        summary="Delete the account",
        opt={"scope": "account"},
        response_description="It is gone.",
        responses=documented(*DENIED, *BODY),
    )
    async def remove(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[
            Farewell | None, BodyKwarg(examples=_example("With the password", password=ACCOUNT["password"]))
        ] = None,
    ) -> Response[None]:
        """Delete the account, its threads, sessions and tokens. It takes the password, where there is one."""
        await _confirmed(context, caller, user_of(caller), data.password if data else None)
        await accounts.remove(context.db, caller)
        return Response(None, status_code=204, cookies=[cookies.clearing(request, context.origins)])

    @get(
        "/export",
        operation_id="exportMe",
        summary="Export everything",
        opt={"scope": "account"},
        response_description="One JSON object a line.",
        responses=documented(*DENIED),
    )
    async def export(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Stream:
        """All that the account owns, as JSON lines: the user, threads, messages, runs, parts and receipts."""
        async with context.db.snapshot() as driver:
            user = await accounts.get(driver, user_of(caller))
        headers = {"Content-Disposition": 'attachment; filename="khala.jsonl"'}
        return Stream(export.lines(context.db, user), media_type="application/jsonl", headers=headers)

    @get(
        "/usage",
        operation_id="usage",
        summary="What is used of which limit?",
        security=BY_KEY,
        response_description="Limits, and what is used of them.",
        responses=documented(*DENIED),
    )
    async def usage(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[Used]:
        """What the account, or else the anonymous key, has used of its limits in their present windows."""
        async with context.db.snapshot() as driver:
            return Items(items=await ledger.usage(driver, somebody(caller), context.limits.budgets))

    @get(
        "/audit",
        operation_id="auditMe",
        summary="What has this account changed?",
        opt={"scope": "account"},
        response_description="Changes, the newest first.",
        responses=documented(*DENIED),
    )
    async def audit(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        before: Annotated[UUID | None, QueryParameter(description="The id of the oldest that you have.")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="How many, at most.")] = 50,
    ) -> Items[Trace]:
        """What this account did to identities and access."""
        async with context.db.snapshot() as driver:
            return Items(items=await audit.of_user(driver, user_of(caller), before=before, limit=limit))

    @get(
        "/sessions",
        operation_id="listSessions",
        summary="List sessions",
        opt={"scope": "account"},
        response_description="Sessions, the newest first.",
        responses=documented(*DENIED),
    )
    async def sessions(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[Session]:
        """The browsers that are signed in."""
        async with context.db.snapshot() as driver:
            return Items(items=await sessions.of_user(driver, user_of(caller), caller.credential))

    @delete(
        "/sessions/{session_id:uuid}",
        operation_id="endSession",
        summary="End a session",
        opt={"scope": "account"},
        response_description="It is over.",
        responses=documented(*DENIED, "not_found"),
    )
    async def end_session(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], session_id: SessionId
    ) -> None:
        """Sign a browser out; its sockets are cut off."""
        user_of(caller)
        await sessions.end(context.db, session_id, caller)

"""Ways in and out over REST: register, sign in and out, change the password."""

from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts import session_cookie, sign_in_throttle
from khala.api.accounts.authentication import BY_ACCOUNT, require_user
from khala.api.accounts.types import (
    Login,
    NewPassword,
    Registration,
    SignedInUser,
    SignedOut,
    SignInMethods,
    SignInProvider,
)
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import base_url
from khala.api.openapi.document import example
from khala.api.sharing.sharing import claimed
from khala.api.validation import check_text
from khala.domain.access import SCOPES, Caller
from khala.domain.errors import Forbidden, InvalidInput, NotFound, Unauthorized
from khala.identity import passwords
from khala.store.accounts import accounts, sessions
from khala.store.accounts.accounts import PasswordRecord

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
WRONG = "The address or the password is wrong."
LONGEST_USER_AGENT = 300
ACCOUNT = {"email": "tassadar@example.com", "password": "en taro adun"}

Connection = Request[Any, Any, Any]


class SignInController(Controller):
    """Ways in and out."""

    path = "/auth"
    tags = ("Accounts",)

    @get(
        "/",
        operation_id="waysIn",
        summary="How may one sign in?",
        response_description="The ways.",
        responses=documented_errors("rate_limited"),
    )
    async def ways(self, context: NamedDependency[Context]) -> SignInMethods:
        """Whether accounts can be made here, and the OpenID SignInProvider if there is one."""
        oidc = None if context.sign_in.provider is None else SignInProvider(name=context.sign_in.provider_name)
        return SignInMethods(registration=context.sign_in.allow_registration, oidc=oidc)

    @post(
        "/register",
        operation_id="register",
        summary="Make an account",
        response_description="The account. The answer signs the browser in.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def register(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[
            Registration,
            BodyKwarg(examples=example("An account", **ACCOUNT)),
        ],
    ) -> Response[SignedInUser]:
        """Make an account with an address and a password, sign in, and claim anonymous threads in one go."""
        if not context.sign_in.allow_registration:
            raise Forbidden("No accounts are made here by oneself.")
        email = passwords.normalized_email(data.email)
        password = passwords.validated_password(data.password)
        await sign_in_throttle.count_registration(context.db, caller.network)
        hashed = await passwords.hash_password(password)
        name = None if data.name is None else check_text(data.name, "name")
        user_id = await accounts.register(context.db, email, hashed, name, caller)
        proven = PasswordRecord(user_id=user_id, hash=hashed)
        return await signed_in(context, request, caller, proven, data, status=201)

    @post(
        "/login",
        operation_id="login",
        summary="Sign in",
        status_code=200,
        response_description="The account. The answer signs the browser in.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def login(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[Login, BodyKwarg(examples=example("By password", **ACCOUNT))],
    ) -> Response[SignedInUser]:
        """Sign in by address and password, and claim anonymous threads in one go."""
        email = _address(data.email)
        await sign_in_throttle.count_try(context.db, email, caller.network)
        proven = await _proven(context, caller, email, data.password)
        await sign_in_throttle.forgive(context.db, email, caller.network)
        return await signed_in(context, request, caller, proven, data, status=200)

    @post(
        "/logout",
        operation_id="logout",
        summary="Sign out",
        status_code=200,
        opt={"scope": "account"},
        response_description="The session is over.",
        responses=documented_errors("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable"),
    )
    async def logout(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], request: Connection
    ) -> Response[SignedOut]:
        """End the session that the cookie is of; sockets that were opened by it are cut off."""
        ended = id_token = None
        if caller.credential is not None and "authorization" not in request.headers:
            with suppress(NotFound):  # it has ended meanwhile, which is what was asked for
                id_token = await sessions.end(context.db, caller.credential, caller)
            if context.sign_in.provider is not None and id_token is not None:
                back = base_url(request, context.origins) + "/"
                ended = await context.sign_in.provider.end_session_url(id_token, back)
        cookie = session_cookie.clearing(request, context.origins)
        return Response(SignedOut(end_session_url=ended), cookies=[cookie])

    @post(
        "/password",
        operation_id="changePassword",
        summary="Change the password",
        status_code=204,
        security=BY_ACCOUNT,
        opt={"scope": "account"},
        response_description="It is changed, and all other sessions are over.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def change_password(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewPassword, BodyKwarg(examples=example("Another", current="en taro adun", new="en taro tassadar"))
        ],
    ) -> None:
        """Change the password, or give an account that signs in otherwise one, with an address."""
        user_id = require_user(caller)
        has_one = await confirmed(context, caller, user_id, data.current)
        if not has_one and caller.scopes != frozenset(SCOPES):
            raise Forbidden("A token can't give the account a way in that may do more than it.")
        email = None if has_one else passwords.normalized_email(data.email or "")
        hashed = await passwords.hash_password(passwords.validated_password(data.new, path="new"))
        await accounts.set_password(context.db, caller, hashed, email=email)


def _address(given: str) -> str:
    """The address; one that is none is as wrong as one that nobody has."""
    try:
        return passwords.normalized_email(given)
    except InvalidInput:
        return ""


async def _proven(context: Context, caller: Caller, email: str, password: str) -> PasswordRecord:
    """Whose password this is, and its hash. It takes as long whether there is such an account or not."""
    async with context.db.driver() as driver:
        secret = await accounts.password_record(driver, email)
    right = await passwords.verify_password(password, None if secret is None else secret.hash)
    if secret is None or not right:
        if secret is not None:
            await accounts.record_failure(context.db, secret.user_id, caller)
        raise Unauthorized(WRONG)
    if not passwords.needs_rehash(secret.hash):
        return secret
    fresh = PasswordRecord(user_id=secret.user_id, hash=await passwords.hash_password(password))
    await accounts.rehash(context.db, secret.user_id, secret.hash, fresh.hash)
    return fresh


async def confirmed(context: Context, caller: Caller, user_id: UUID, password: str | None) -> bool:
    """Whether the account has a password, which then must be this one."""
    async with context.db.driver() as driver:
        secret = await accounts.password_record_of_user(driver, user_id)
    if secret is None:
        return False
    await sign_in_throttle.count_try(context.db, str(user_id), caller.network)
    if not await passwords.verify_password(password or "", secret.hash):
        raise Forbidden("The current password is wrong.")
    await sign_in_throttle.forgive(context.db, str(user_id), caller.network)
    return True


async def signed_in(
    context: Context,
    request: Connection,
    caller: Caller,
    proven: PasswordRecord,
    data: Login | Registration,
    *,
    status: int,
) -> Response[SignedInUser]:
    """A new session in place of the one that the browser came with, and the claims that it brought."""
    secret = await begin(context, request, caller, proven.user_id, proof=proven.hash)
    async with context.db.driver() as driver:
        user = await accounts.get(driver, proven.user_id)
    who = msgspec.structs.replace(caller, user_id=user.id, name=user.name)
    found = await claimed(context, data.claim, who)
    body = SignedInUser(**msgspec.structs.asdict(user), claimed=tuple(found))
    return Response(body, status_code=status, cookies=[session_cookie.keeping(request, context.origins, secret)])


async def begin(
    context: Context,
    request: Connection,
    caller: Caller,
    user_id: UUID,
    *,
    id_token: str | None = None,
    proof: str | None = None,
) -> str:
    """A new session of this browser's; its old one ends. Returns the secret."""
    agent = storable_agent(request.headers.get("user-agent"))
    before = caller if "authorization" not in request.headers else Caller(network=caller.network)
    return await sessions.begin(context.db, user_id, before, user_agent=agent, id_token=id_token, proof=proof)


def storable_agent(agent: str | None) -> str | None:
    """What the browser calls itself, as much as is worth keeping."""
    return None if agent is None else agent.replace("\0", "")[:LONGEST_USER_AGENT]

"""Sign-in over REST: register, sign in, sign out and change the password."""

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
from khala.api.sharing.sharing import claim_each
from khala.api.validation import check_text
from khala.domain.access import ACCOUNT_SCOPES, Caller
from khala.domain.errors import Forbidden, InvalidInput, NotFound, Unauthorized
from khala.identity import passwords
from khala.store.accounts import accounts, sessions
from khala.store.accounts.accounts import PasswordRecord

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
WRONG_CREDENTIALS = "The email or password is incorrect."
MAX_USER_AGENT_CHARACTERS = 300
ACCOUNT = {"email": "tassadar@example.com", "password": "en taro adun"}

Connection = Request[Any, Any, Any]


class SignInController(Controller):
    """Sign-in and sign-out."""

    path = "/auth"
    tags = ("Accounts",)

    @get(
        "/",
        operation_id="readSignInMethods",
        summary="Read the ways to sign in",
        response_description="The ways to sign in.",
        responses=documented_errors("rate_limited"),
    )
    async def methods(self, context: NamedDependency[Context]) -> SignInMethods:
        """Read whether users can register, the name of the OpenID Provider, and whether threads can be public."""
        oidc = None if context.sign_in.provider is None else SignInProvider(name=context.sign_in.provider_name)
        return SignInMethods(
            registration=context.sign_in.allow_registration,
            oidc=oidc,
            public_threads=context.threads.allow_public,
            undo_seconds=int(context.threads.undo.total_seconds()),
        )

    @post(
        "/register",
        operation_id="register",
        summary="Create an account",
        response_description="The account. The response signs the browser in.",
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
        """Create an account with an email address and a password, sign in, and claim anonymous threads."""
        if not context.sign_in.allow_registration:
            raise Forbidden("Registration is disabled on this server. Ask its operator for an account.")
        email = passwords.normalized_email(data.email)
        password = passwords.validated_password(data.password)
        await sign_in_throttle.count_registration(context.db, caller.network)
        hashed = await passwords.hash_password(password)
        name = None if data.name is None else check_text(data.name, "name")
        user_id = await accounts.register(context.db, email, hashed, name, caller)
        credentials = PasswordRecord(user_id=user_id, hash=hashed)
        return await sign_in(context, request, caller, credentials, data, status=201)

    @post(
        "/login",
        operation_id="login",
        summary="Sign in",
        status_code=200,
        response_description="The account. The response signs the browser in.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def login(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        data: Annotated[Login, BodyKwarg(examples=example("By password", **ACCOUNT))],
    ) -> Response[SignedInUser]:
        """Sign in with an email address and a password, and claim anonymous threads."""
        email = _normalized_or_empty(data.email)
        await sign_in_throttle.count_attempt(context.db, email, caller.network)
        credentials = await _verify_password(context, caller, email, data.password)
        await sign_in_throttle.discount_attempt(context.db, email, caller.network)
        return await sign_in(context, request, caller, credentials, data, status=200)

    @post(
        "/logout",
        operation_id="logout",
        summary="Sign out",
        status_code=200,
        opt={"scope": "account"},
        response_description="The session has ended.",
        responses=documented_errors("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable"),
    )
    async def logout(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], request: Connection
    ) -> Response[SignedOut]:
        """End the session of the cookie, and close the sockets that it opened."""
        end_url = id_token = None
        if caller.credential is not None and "authorization" not in request.headers:
            with suppress(NotFound):  # the session has ended meanwhile
                id_token = await sessions.end(context.db, caller.credential, caller)
            if context.sign_in.provider is not None and id_token is not None:
                return_url = base_url(request, context.origins) + "/"
                end_url = await context.sign_in.provider.end_session_url(id_token, return_url)
        cookie = session_cookie.signed_out(request, context.origins)
        return Response(SignedOut(end_session_url=end_url), cookies=[cookie])

    @post(
        "/password",
        operation_id="changePassword",
        summary="Change the password",
        status_code=204,
        security=BY_ACCOUNT,
        opt={"scope": "account"},
        response_description="The password was changed. All other sessions have ended.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def change_password(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewPassword, BodyKwarg(examples=example("A new password", current="en taro adun", new="en taro tassadar"))
        ],
    ) -> None:
        """Change the password. For an account without one, set a password and the email address to sign in with."""
        user_id = require_user(caller)
        has_password = await check_current_password(context, caller, user_id, data.current)
        if not has_password and not caller.scopes >= ACCOUNT_SCOPES:
            raise Forbidden("Only a session or a token with all scopes can set the first password.")
        email = None if has_password else passwords.normalized_email(data.email or "")
        hashed = await passwords.hash_password(passwords.validated_password(data.new, path="new"))
        await accounts.set_password(context.db, caller, hashed, email=email)


def _normalized_or_empty(given: str) -> str:
    """Return the normalised address. An invalid one becomes empty: it fails like an unknown address."""
    try:
        return passwords.normalized_email(given)
    except InvalidInput:
        return ""


async def _verify_password(context: Context, caller: Caller, email: str, password: str) -> PasswordRecord:
    """Return the account of a correct password, and its hash. An unknown address takes the same time."""
    async with context.db.driver() as driver:
        record = await accounts.password_record(driver, email)
    is_correct = await passwords.verify_password(password, None if record is None else record.hash)
    if record is None or not is_correct:
        if record is not None:
            await accounts.record_failure(context.db, record.user_id, caller)
        raise Unauthorized(WRONG_CREDENTIALS)
    if not passwords.needs_rehash(record.hash):
        return record
    rehashed = PasswordRecord(user_id=record.user_id, hash=await passwords.hash_password(password))
    await accounts.rehash(context.db, record.user_id, record.hash, rehashed.hash)
    return rehashed


async def check_current_password(context: Context, caller: Caller, user_id: UUID, password: str | None) -> bool:
    """Check the account's password. Returns whether it has one. Raises `Forbidden` if the given one is wrong."""
    async with context.db.driver() as driver:
        record = await accounts.password_record_of_user(driver, user_id)
    if record is None:
        return False
    await sign_in_throttle.count_attempt(context.db, str(user_id), caller.network)
    if not await passwords.verify_password(password or "", record.hash):
        raise Forbidden("The current password is incorrect.")
    await sign_in_throttle.discount_attempt(context.db, str(user_id), caller.network)
    return True


async def sign_in(
    context: Context,
    request: Connection,
    caller: Caller,
    credentials: PasswordRecord,
    data: Login | Registration,
    *,
    status: int,
) -> Response[SignedInUser]:
    """Replace the browser's session by a new one, and process its claims."""
    secret = await start_session(context, request, caller, credentials.user_id, proof=credentials.hash)
    async with context.db.driver() as driver:
        user = await accounts.get(driver, credentials.user_id)
    user_caller = msgspec.structs.replace(caller, user_id=user.id, name=user.name)
    results = await claim_each(context, data.claim, user_caller)
    body = SignedInUser(**msgspec.structs.asdict(user), claimed=tuple(results))
    return Response(body, status_code=status, cookies=[session_cookie.signed_in(request, context.origins, secret)])


async def start_session(
    context: Context,
    request: Connection,
    caller: Caller,
    user_id: UUID,
    *,
    id_token: str | None = None,
    proof: str | None = None,
) -> str:
    """Start a session of this browser, end its old one, and return the new secret."""
    agent = _truncated_user_agent(request.headers.get("user-agent"))
    previous = caller if "authorization" not in request.headers else Caller(network=caller.network)
    return await sessions.begin(context.db, user_id, previous, user_agent=agent, id_token=id_token, proof=proof)


def _truncated_user_agent(agent: str | None) -> str | None:
    """Return the beginning of the `User-Agent` header, without characters that cannot be stored."""
    return None if agent is None else agent.replace("\0", "")[:MAX_USER_AGENT_CHARACTERS]

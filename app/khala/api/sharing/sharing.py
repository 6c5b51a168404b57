"""Sharing over REST: claims, members, invitations and share links."""

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_ACCOUNT, BY_KEY, SERVICE_SCOPE, require_user
from khala.api.context import Context
from khala.api.http.path_parameters import LinkId, ThreadId, TokenId, UserId
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import base_url
from khala.api.openapi.document import example
from khala.api.sharing.types import (
    ClaimRequest,
    ClaimsRequest,
    CreatedLink,
    CreatedThreadToken,
    InvitationByAddress,
    NewLink,
    NewRole,
    NewThreadToken,
    ReadPosition,
    ThreadAccess,
    ThreadClaim,
)
from khala.api.types import Items
from khala.api.validation import check_expiry
from khala.domain.access import Action, Caller, key_hash
from khala.domain.accounts import ClaimResult, Member, ShareLink, ThreadToken
from khala.domain.chat import Thread
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.identity.passwords import normalized_email
from khala.store.accounts import claims
from khala.store.sharing import access, address_lookups, sharing, thread_tokens
from khala.store.threads import thread_lists

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
EXPIRES = "2030-01-01T00:00:00Z"


async def claim_each(context: Context, threads: list[ThreadClaim], caller: Caller) -> list[ClaimResult]:
    """Claim each thread independently, and return the result of each claim."""
    results = []
    for thread in threads:
        try:
            await claims.claim(context.db, thread.thread_id, key_hash(thread.anon_key), caller)
            results.append(ClaimResult(thread_id=thread.thread_id))
        except (Forbidden, ThreadNotFound) as error:
            results.append(ClaimResult(thread_id=thread.thread_id, code=error.code))
    return results


class SharingController(Controller):
    """Access of other users to a thread."""

    path = "/threads/{thread_id:uuid}"
    tags = ("Sharing",)

    @post(
        "/claim",
        operation_id="claimThread",
        summary="Claim an anonymous thread",
        security=BY_ACCOUNT,
        status_code=200,
        response_description="The thread, which the caller now owns.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def claim(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ClaimRequest, BodyKwarg(examples=example("With the thread's key", anonKey="k" * 43))],
    ) -> Thread:
        """Transfer an anonymous thread to the account. Runs continue, and the key becomes invalid."""
        require_user(caller)
        return await claims.claim(context.db, thread_id, key_hash(data.anon_key), caller)

    @put(
        "/read",
        operation_id="markRead",
        summary="Mark a thread as read",
        security=BY_ACCOUNT,
        status_code=204,
        response_description="The position was stored.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ReadPosition, BodyKwarg(examples=example("Up to here", revision=12))],
    ) -> None:
        """Store up to which revision the user has read. A lower revision has no effect."""
        user_id = require_user(caller)
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        await thread_lists.mark_read(context.db, thread_id, user_id, data.revision)

    @post(
        "/join",
        operation_id="joinThread",
        summary="Accept an invitation, or join with a share link",
        security=BY_ACCOUNT,
        status_code=200,
        response_description="The caller's role.",
        responses=documented_errors(*DENIED, "conflict"),
    )
    async def join(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Member:
        """Take the role of an invitation or of a share link, which is sent as X-Share-Key. The higher role applies.

        The thread is then in the account's list of threads.
        """
        return await sharing.join(context.db, thread_id, require_user(caller), caller)

    @get(
        "/access",
        operation_id="readAccess",
        summary="Read the caller's access",
        security=BY_KEY,
        response_description="The caller's role.",
        responses=documented_errors(*DENIED),
    )
    async def access(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> ThreadAccess:
        """Read the highest role of the caller's account and keys, and when it expires, if it does."""
        async with context.db.driver() as driver:
            authorization = await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        assert authorization.role is not None
        return ThreadAccess(role=authorization.role, expires_at=authorization.expires_at)

    @get(
        "/members",
        operation_id="listMembers",
        summary="List members",
        security=BY_KEY,
        response_description="Members and invited users, the first owner first.",
        responses=documented_errors(*DENIED),
    )
    async def members(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[Member]:
        """List the users with a role in the thread, and the users who are invited."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            return Items(items=await sharing.members(driver, thread_id))

    @put(
        "/members/{user_id:uuid}",
        operation_id="setMember",
        summary="Invite a user, or change a member's role",
        security=BY_KEY,
        response_description="The member or invited user.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
    )
    async def set_member(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        user_id: UserId,
        data: Annotated[NewRole, BodyKwarg(examples=example("Allow writing", role="editor"))],
    ) -> Member:
        """Change a member's role, which applies at once, or invite another user, who may read until they accept.

        The first owner's role cannot be changed.
        """
        return await sharing.set_role(context.db, thread_id, user_id, data.role, caller)

    @post(
        "/invitations",
        operation_id="inviteByAddress",
        summary="Invite a user by their e-mail address",
        security=BY_KEY,
        status_code=200,
        response_description="The member or invited user.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
    )
    async def invite(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[
            InvitationByAddress, BodyKwarg(examples=example("To write", email="fenix@example.org", role="editor"))
        ],
    ) -> Member:
        """Invite the account with this address. Each attempt counts, so that nobody can try many addresses.

        Addresses that accounts with a password have given are proven by nobody, so they count only where registration
        is closed.
        """
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.MANAGE_MEMBERS)
        email = normalized_email(data.email)
        trusts_passwords = not context.sign_in.allow_registration
        user_id = await address_lookups.find(context.db, caller, email, trusts_passwords=trusts_passwords)
        return await sharing.set_role(context.db, thread_id, user_id, data.role, caller)

    @delete(
        "/members/{user_id:uuid}",
        operation_id="removeMember",
        summary="Remove a member, or withdraw an invitation",
        security=BY_KEY,
        response_description="The user no longer has a role.",
        responses=documented_errors(*DENIED, "not_found", "conflict"),
    )
    async def remove_member(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, user_id: UserId
    ) -> None:
        """Remove a user's access at once. Users may also remove themselves, or decline their own invitation."""
        await sharing.remove_member(context.db, thread_id, user_id, caller)

    @post(
        "/links",
        operation_id="createLink",
        summary="Create a share link",
        security=BY_KEY,
        response_description="The link and its key, which is returned only once.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def create_link(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Request[Any, Any, Any],
        thread_id: ThreadId,
        data: Annotated[NewLink, BodyKwarg(examples=example("Read only", role="viewer", expiresAt=EXPIRES))],
    ) -> CreatedLink:
        """Create a link that lets everybody who has it read or write. It opens the live thread, not a copy."""
        expires_at = check_expiry(data.expires_at)
        link, key = await sharing.create_link(context.db, thread_id, data.role, expires_at, caller)
        url = f"{base_url(request, context.origins)}/t/{thread_id}#share={key}"
        return CreatedLink(
            id=link.id,
            role=link.role,
            created_at=link.created_at,
            expires_at=link.expires_at,
            share_key=key,
            url=url,
        )

    @get(
        "/links",
        operation_id="listLinks",
        summary="List share links",
        security=BY_KEY,
        response_description="Links, the newest first, without their keys.",
        responses=documented_errors(*DENIED),
    )
    async def links(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[ShareLink]:
        """List the valid links."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.MANAGE_LINKS)
            return Items(items=await sharing.links(driver, thread_id))

    @delete(
        "/links/{link_id:uuid}",
        operation_id="revokeLink",
        summary="Revoke a share link",
        security=BY_KEY,
        response_description="The link was revoked.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke_link(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, link_id: LinkId
    ) -> None:
        """Revoke a link. Clients that use it lose access at once."""
        await sharing.revoke_link(context.db, thread_id, link_id, caller)

    @post(
        "/tokens",
        operation_id="createThreadToken",
        summary="Create a thread token",
        security=BY_KEY,
        opt={SERVICE_SCOPE: "tokens"},
        response_description="The token and its secret, which is returned only once.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def create_token(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[NewThreadToken, BodyKwarg(examples=example("For an hour", role="editor", expiresIn=3600))],
    ) -> CreatedThreadToken:
        """Create a token that gives a browser this thread and nothing else, without an account.

        Send it as `Authorization: Bearer`, or in an `authenticate` frame.
        """
        lifetime = timedelta(seconds=data.expires_in)
        token, secret = await thread_tokens.create(context.db, thread_id, data.role, lifetime, caller)
        return CreatedThreadToken(**msgspec.structs.asdict(token), token=secret)

    @get(
        "/tokens",
        operation_id="listThreadTokens",
        summary="List thread tokens",
        security=BY_KEY,
        opt={SERVICE_SCOPE: "tokens"},
        response_description="Valid tokens, the newest first, without their secrets.",
        responses=documented_errors(*DENIED),
    )
    async def tokens(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[ThreadToken]:
        """List the valid tokens."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.MANAGE_TOKENS)
            return Items(items=await thread_tokens.of_thread(driver, thread_id))

    @delete(
        "/tokens/{token_id:uuid}",
        operation_id="revokeThreadToken",
        summary="Revoke a thread token",
        security=BY_KEY,
        opt={SERVICE_SCOPE: "tokens"},
        response_description="The token was revoked.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke_token(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, token_id: TokenId
    ) -> None:
        """Revoke a token. Clients that use it lose access at once."""
        await thread_tokens.revoke(context.db, thread_id, token_id, caller)


@post(
    "/claims",
    tags=["Sharing"],
    operation_id="claimThreads",
    summary="Claim several threads",
    security=BY_ACCOUNT,
    status_code=200,
    response_description="The result of each claim.",
    responses=documented_errors("invalid_input", "unauthorized", "forbidden", "rate_limited", *BODY, "unavailable"),
)
async def claim_threads(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    data: Annotated[
        ClaimsRequest,
        BodyKwarg(
            examples=example(
                "One thread", items=[{"threadId": "0190a3c4-7b2e-7c1a-9f00-000000000001", "anonKey": "k" * 43}]
            )
        ),
    ],
) -> Items[ClaimResult]:
    """Transfer anonymous threads to the account. Each claim succeeds or fails independently."""
    require_user(caller)
    return Items(items=await claim_each(context, data.items, caller))

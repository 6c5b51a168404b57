"""Sharing over REST: claim a thread, its members, and links to it."""

from typing import Annotated, Any

from litestar import Controller, Request, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_ACCOUNT, BY_KEY, require_user
from khala.api.context import Context
from khala.api.http.path_parameters import LinkId, ThreadId, UserId
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import base_url
from khala.api.openapi.document import example
from khala.api.sharing.types import (
    ClaimRequest,
    ClaimsRequest,
    CreatedLink,
    NewLink,
    NewRole,
    ReadPosition,
    ThreadAccess,
    ThreadClaim,
)
from khala.api.types import Items
from khala.api.validation import check_expiry
from khala.domain.access import Action, Caller, key_hash
from khala.domain.accounts import ClaimResult, Member, ShareLink
from khala.domain.chat import Thread
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.store.accounts import claims
from khala.store.sharing import access, sharing
from khala.store.threads import thread_lists

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
EXPIRES = "2030-01-01T00:00:00Z"


async def claimed(context: Context, threads: list[ThreadClaim], caller: Caller) -> list[ClaimResult]:
    """Claim each of these threads by itself; what can't be claimed keeps no other from it."""
    found = []
    for thread in threads:
        try:
            await claims.claim(context.db, thread.thread_id, key_hash(thread.anon_key), caller)
            found.append(ClaimResult(thread_id=thread.thread_id))
        except (Forbidden, ThreadNotFound) as error:
            found.append(ClaimResult(thread_id=thread.thread_id, code=error.code))
    return found


class SharingController(Controller):
    """Who else may read and write."""

    path = "/threads/{thread_id:uuid}"
    tags = ("Sharing",)

    @post(
        "/claim",
        operation_id="claimThread",
        summary="Claim an anonymous thread",
        security=BY_ACCOUNT,
        status_code=200,
        response_description="The thread, which is the caller's now.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def claim(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ClaimRequest, BodyKwarg(examples=example("By its key", anonKey="k" * 43))],
    ) -> Thread:
        """Own a thread that was begun without an account. Runs go on; the key opens nothing any more."""
        require_user(caller)
        return await claims.claim(context.db, thread_id, key_hash(data.anon_key), caller)

    @put(
        "/read",
        operation_id="markRead",
        summary="Mark a thread as read",
        security=BY_ACCOUNT,
        status_code=204,
        response_description="It is noted.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ReadPosition, BodyKwarg(examples=example("Up to here", revision=12))],
    ) -> None:
        """Note up to which revision the user has read. It never goes back."""
        user_id = require_user(caller)
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        await thread_lists.mark_read(context.db, thread_id, user_id, data.revision)

    @post(
        "/join",
        operation_id="joinThread",
        summary="Accept an invitation, or join by a link",
        security=BY_ACCOUNT,
        status_code=200,
        response_description="The caller's role.",
        responses=documented_errors(*DENIED, "conflict"),
    )
    async def join(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Member:
        """Take the role of an invitation, or of a share link, sent as X-Share-Key; of both the higher one.

        The thread is on the account's list from now on.
        """
        return await sharing.join(context.db, thread_id, require_user(caller), caller)

    @get(
        "/access",
        operation_id="readAccess",
        summary="What may I do here?",
        security=BY_KEY,
        response_description="The caller's role.",
        responses=documented_errors(*DENIED),
    )
    async def access(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> ThreadAccess:
        """The most that the caller's account and keys open, and until when if that is known to end."""
        async with context.db.driver() as driver:
            found = await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        assert found.role is not None
        return ThreadAccess(role=found.role, expires_at=found.expires_at)

    @get(
        "/members",
        operation_id="listMembers",
        summary="List members",
        security=BY_KEY,
        response_description="Members and who is invited, the first owner first.",
        responses=documented_errors(*DENIED),
    )
    async def members(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[Member]:
        """The users who have a role in the thread, and those who are invited to have one."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            return Items(items=await sharing.members(driver, thread_id))

    @put(
        "/members/{user_id:uuid}",
        operation_id="setMember",
        summary="Invite a user, or change a member's role",
        security=BY_KEY,
        response_description="The member, or who is invited.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
    )
    async def set_member(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        user_id: UserId,
        data: Annotated[NewRole, BodyKwarg(examples=example("May write", role="editor"))],
    ) -> Member:
        """Change at once what a member may do, or invite a user who is none: they read until they accept.

        The first owner stays owner.
        """
        return await sharing.set_role(context.db, thread_id, user_id, data.role, caller)

    @delete(
        "/members/{user_id:uuid}",
        operation_id="removeMember",
        summary="Remove a member, or withdraw an invitation",
        security=BY_KEY,
        response_description="The user has no role here any more.",
        responses=documented_errors(*DENIED, "not_found", "conflict"),
    )
    async def remove_member(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, user_id: UserId
    ) -> None:
        """Cut a user off at once. Anybody may give up their own role, or decline their own invitation."""
        await sharing.remove_member(context.db, thread_id, user_id, caller)

    @post(
        "/links",
        operation_id="makeLink",
        summary="Make a share link",
        security=BY_KEY,
        response_description="The link, and its key, which is told only now.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def make_link(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Request[Any, Any, Any],
        thread_id: ThreadId,
        data: Annotated[NewLink, BodyKwarg(examples=example("To look on", role="viewer", expiresAt=EXPIRES))],
    ) -> CreatedLink:
        """Let whoever has the link read, or write. It opens the live thread, not a copy."""
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
        """The links that are good now."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.MANAGE_LINKS)
            return Items(items=await sharing.links(driver, thread_id))

    @delete(
        "/links/{link_id:uuid}",
        operation_id="revokeLink",
        summary="Revoke a share link",
        security=BY_KEY,
        response_description="It opens nothing any more.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke_link(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, link_id: LinkId
    ) -> None:
        """End a link. Whoever follows by it is cut off at once."""
        await sharing.revoke_link(context.db, thread_id, link_id, caller)


@post(
    "/claims",
    tags=["Sharing"],
    operation_id="claimThreads",
    summary="Claim several threads",
    security=BY_ACCOUNT,
    status_code=200,
    response_description="What became of each claim.",
    responses=documented_errors("invalid_input", "unauthorized", "forbidden", "rate_limited", *BODY, "unavailable"),
)
async def claim_threads(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    data: Annotated[
        ClaimsRequest,
        BodyKwarg(
            examples=example("One", items=[{"threadId": "0190a3c4-7b2e-7c1a-9f00-000000000001", "anonKey": "k" * 43}])
        ),
    ],
) -> Items[ClaimResult]:
    """Own threads that were begun without an account, each by its key and by itself."""
    require_user(caller)
    return Items(items=await claimed(context, data.items, caller))

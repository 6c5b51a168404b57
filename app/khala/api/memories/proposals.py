"""Proposed memories over REST: list, accept and reject them."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter

from khala.api.accounts.authentication import BY_ACCOUNT_OR_ANON_KEY
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.memories.memories import DENIED, may_change
from khala.api.types import Items
from khala.domain.access import Action, Caller
from khala.domain.errors import NotFound
from khala.domain.memories import Memory, MemoryProposal
from khala.store.memories import memory_proposals, memory_settings

ProposalId = Annotated[UUID, PathParameter(description="The proposal's id, as in the list.")]


class MemoryProposalController(Controller):
    """Memories that were extracted from the caller's messages, and wait for the caller's decision."""

    path = "/memories/proposals"
    tags = ("Memories",)
    security = BY_ACCOUNT_OR_ANON_KEY

    @get(
        "/",
        operation_id="listMemoryProposals",
        summary="List proposed memories",
        response_description="Open proposals, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[MemoryProposal]:
        """List the open proposals for the account, or for the anonymous key."""
        subject_id = memory_settings.subject_of(caller)
        async with context.db.driver() as driver:
            return Items(items=await memory_proposals.of_subject(driver, subject_id))

    @post(
        "/{proposal_id:uuid}/accept",
        operation_id="acceptMemoryProposal",
        summary="Accept a proposed memory",
        response_description="The memory that was stored.",
        responses=documented_errors(*DENIED, "not_found", "payload_too_large"),
    )
    async def accept(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], proposal_id: ProposalId
    ) -> Memory:
        """Store the memory. If it corrects another one, that one is superseded.

        A memory of a thread takes the right to change the thread's memories, as it is now.
        """
        subject_id = memory_settings.subject_of(caller)
        async with context.db.driver() as driver:
            space = await memory_proposals.space_of(driver, subject_id, proposal_id)
            if not await may_change(driver, caller, space, Action.EDIT_MEMORIES):
                raise NotFound("There is no such proposal.")
        return await context.memories.service.accept(subject_id, proposal_id)

    @delete(
        "/{proposal_id:uuid}",
        operation_id="rejectMemoryProposal",
        summary="Reject a proposed memory",
        response_description="The proposal was rejected.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def reject(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], proposal_id: ProposalId
    ) -> None:
        """Reject a proposal. The same text is not proposed again for 30 days."""
        await memory_proposals.reject(context.db, memory_settings.subject_of(caller), proposal_id)

"""Agents over REST: list, read, create, change and delete them."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter

from khala.api.accounts.authentication import BY_ACCOUNT, BY_KEY, require_user
from khala.api.agents import catalog
from khala.api.agents.types import AgentChanges, AgentLink, NewAgent
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.types import Items
from khala.api.validation import check_json, check_text
from khala.domain.access import Caller
from khala.domain.agents import RESERVED_NAMES, Agent, AgentDefinition
from khala.domain.errors import InvalidInput, NotFound
from khala.store.agents import agent_links, agents
from khala.store.agents.agents import StoredAgent

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
POET = {
    "name": "poet",
    "title": "Poet",
    "description": "Writes short poems.",
    "instructions": "Answer in rhyme.",
    "tools": ["read_file"],
    "examples": ["Write a poem about Aiur"],
}

AgentName = Annotated[str, PathParameter(description="The agent's name.")]
NameOrLink = Annotated[str, PathParameter(description="The agent's name, or the link of a shared agent.")]


class AgentController(Controller):
    """Agents of accounts, and the built-in ones."""

    path = "/agents"
    tags = ("Agents",)

    @get(
        "/",
        operation_id="listAgents",
        summary="List agents",
        security=BY_KEY,
        response_description="Agents by name.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[Agent]:
        """List the agents that the caller may use: the account's own, and the built-in ones whose tools it has."""
        return Items(items=await catalog.list_agents(context, caller))

    @post(
        "/",
        operation_id="createAgent",
        summary="Create an agent",
        security=BY_ACCOUNT,
        response_description="The agent.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[NewAgent, BodyKwarg(examples=example("A poet", **POET))],
    ) -> Agent:
        """Create an agent of the account. It hides a built-in agent of the same name."""
        user_id = require_user(caller)
        if data.name in RESERVED_NAMES:
            raise InvalidInput("This name is reserved.", path="name")
        fields = msgspec.structs.asdict(data)
        name = fields.pop("name")
        _check(context, fields)
        return await agents.create(context.db, user_id, name, AgentDefinition(**fields))

    @get(
        "/{name:str}",
        operation_id="readAgent",
        summary="Read an agent",
        security=BY_KEY,
        response_description="The agent.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: NameOrLink) -> Agent:
        """Read the account's agent of this name, or else the built-in one; or a shared agent by its link."""
        found = await catalog.find_agent(context, caller, check_text(name, "name"))
        if found is None:
            raise NotFound("There is no such agent.")
        return found.agent if isinstance(found, StoredAgent) else found

    @patch(
        "/{name:str}",
        operation_id="changeAgent",
        summary="Change an agent",
        security=BY_ACCOUNT,
        response_description="The new version.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        name: AgentName,
        data: Annotated[AgentChanges, BodyKwarg(examples=example("Instructions", instructions="Answer in haiku."))],
    ) -> Agent:
        """Add a version to an agent of the account. Runs that were queued before use the version before."""
        user_id = require_user(caller)
        changes = {field: value for field, value in msgspec.structs.asdict(data).items() if value is not msgspec.UNSET}
        _check(context, changes)
        return await agents.change(context.db, user_id, check_text(name, "name"), changes)

    @post(
        "/{name:str}/link",
        operation_id="shareAgent",
        summary="Share an agent by a link",
        security=BY_ACCOUNT,
        response_description="The link, which is returned only here.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def share(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: AgentName
    ) -> AgentLink:
        """Make a link to an agent of the account. The link from before stops working."""
        return AgentLink(link=await agent_links.replace(context.db, require_user(caller), check_text(name, "name")))

    @delete(
        "/{name:str}/link",
        operation_id="unshareAgent",
        summary="Stop sharing an agent",
        security=BY_ACCOUNT,
        response_description="The agent has no link.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def unshare(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: AgentName
    ) -> None:
        """Revoke the link to an agent of the account. Runs that were queued before use the agent nevertheless."""
        await agent_links.remove(context.db, require_user(caller), check_text(name, "name"))

    @delete(
        "/{name:str}",
        operation_id="deleteAgent",
        summary="Delete an agent",
        security=BY_ACCOUNT,
        response_description="The agent was deleted.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def remove(self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: AgentName) -> None:
        """Delete an agent of the account. Runs that were queued before use it nevertheless."""
        await agents.remove(context.db, require_user(caller), check_text(name, "name"))


def _check(context: Context, fields: dict[str, Any]) -> None:
    """Raise `InvalidInput` for fields that cannot be stored, or that name a model that is not offered."""
    for name, value in fields.items():
        check_json(value, name)
    named = {"model": fields.get("model")} | {
        f"fallbacks[{index}]": model for index, model in enumerate(fields.get("fallbacks", ()))
    }
    for path, model in named.items():
        if model is not None and not context.models.is_allowed(model):
            raise InvalidInput("This model is not offered by this server.", path=path)

"""Tools over REST: the tools that are offered, users' own tools, and rules for calls."""

import asyncio
from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter

from khala.api.accounts.authentication import BY_ACCOUNT, BY_KEY, require_user
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.tools.types import NewTool, OfferedTool, ToolDecision, ToolRuleList
from khala.api.types import Items
from khala.api.validation import check_json, check_text
from khala.domain.access import Action, Caller
from khala.domain.tools import RuleAction, ToolActor, ToolRule, ToolSpec
from khala.store.sharing import access
from khala.store.tools import tool_rules, user_tools
from khala.store.tools.user_tools import UserTool, UserToolDefinition
from khala.tools.user_tools import check_definition

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
IN_THREAD = (*DENIED, "thread_not_found")
BODY = ("payload_too_large", "unsupported_media_type")
BY_THREADS_KEY: list[dict[str, list[str]]] = [{"anonKey": []}, {"shareKey": []}]
"""For the OpenAPI document: a thread's key also opens this operation."""
NO_OWNER = UUID(int=0)
"""Stands for the owner if the request has no credentials. It owns nothing."""
SHOUT = {
    "name": "shout",
    "description": "Convert a text to capitals.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "language": "python",
    "code": "import json, sys\nprint(json.dumps(json.load(sys.stdin)['text'].upper()))",
}

ToolName = Annotated[str, PathParameter(description="The tool's name.")]
InThread = Annotated[UUID | None, QueryParameter(name="threadId", description="Also apply the rules of this thread.")]


RULES = Annotated[
    ToolRuleList, BodyKwarg(examples=example("Ask before fetching", items=[{"pattern": "fetch_*", "action": "ask"}]))
]


class ToolController(Controller):
    """Tools that models can call."""

    path = "/tools"
    tags = ("Tools",)
    security = BY_ACCOUNT

    @get(
        "/",
        operation_id="listTools",
        summary="List tools",
        security=BY_THREADS_KEY,
        response_description="Tools, the built-in ones first.",
        responses=documented_errors(*IN_THREAD),
    )
    async def page(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: InThread = None
    ) -> Items[OfferedTool]:
        """List the tools that the caller may use, and whether their calls run or require an approval."""
        if thread_id is not None:
            async with context.db.driver() as driver:
                await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        owner_id = caller.user_id or thread_id or NO_OWNER
        actor = ToolActor(owner_id=owner_id, user_id=caller.user_id, thread_id=thread_id)
        offer = await context.tools.registry.offer(actor)
        return Items(items=[_offered(tool.spec, offer.actions[name]) for name, tool in offer.tools.items()])

    @post(
        "/",
        operation_id="createTool",
        summary="Create a tool",
        response_description="The tool, which requires its user's approval.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[NewTool, BodyKwarg(examples=example("Capitals", **SHOUT))],
    ) -> UserTool:
        """Register a program as a tool of the account. It is offered after its user has approved it."""
        user_id = require_user(caller)
        definition = UserToolDefinition(
            name=data.name,
            description=check_text(data.description, "description"),
            parameters=data.parameters,
            language=data.language,
            permissions=tuple(dict.fromkeys(data.permissions)),
            timeout=data.timeout,
            idempotent=data.idempotent,
        )
        # In a thread, because checking a schema can take 100 ms.
        await asyncio.to_thread(
            check_definition, definition, check_text(data.code, "code"), taken=context.tools.registry.reserved_names
        )
        check_json(data.parameters, "parameters")
        return await user_tools.add(context.db, user_id, definition, data.code)

    @get(
        "/mine",
        operation_id="listMyTools",
        summary="List the account's own tools",
        response_description="Tools by name, with their code and state.",
        responses=documented_errors(*DENIED),
    )
    async def mine(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[UserTool]:
        """List the tools that the account has created, in every state."""
        user_id = require_user(caller)
        async with context.db.driver() as driver:
            return Items(items=await user_tools.of_user(driver, user_id))

    @post(
        "/{name:str}/decision",
        operation_id="decideTool",
        summary="Approve or reject a tool",
        opt={"scope": "account"},
        status_code=200,
        response_description="The tool.",
        responses=documented_errors(*DENIED, "not_found", "conflict", "already_decided", *BODY),
    )
    async def decide(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        name: ToolName,
        data: Annotated[ToolDecision, BodyKwarg(examples=example("Yes", approved=True))],
    ) -> UserTool:
        """Decide whether a tool may be used. The decision is final: to change it, delete the tool."""
        user_id = require_user(caller)
        return await user_tools.decide(
            context.db, user_id, check_text(name, "name"), approve=data.approved, digest=data.digest
        )

    @delete(
        "/{name:str}",
        operation_id="deleteTool",
        summary="Delete a tool",
        response_description="The tool was deleted.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def remove(self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: ToolName) -> None:
        """Delete a tool of the account. Later calls of it fail."""
        await user_tools.remove(context.db, require_user(caller), check_text(name, "name"))


def _offered(spec: ToolSpec, action: RuleAction) -> OfferedTool:
    return OfferedTool(
        name=spec.name,
        description=spec.description,
        parameters=spec.parameters,
        permissions=sorted(spec.permissions),
        timeout=spec.timeout,
        cost=spec.cost,
        idempotent=spec.idempotent,
        source=spec.source,
        action=action,
        title=spec.title,
        destructive=spec.destructive,
    )


class ToolRuleController(Controller):
    """Rules for tool calls, of users and of threads."""

    path = "/"
    tags = ("Tools",)

    @get(
        "/me/tool-rules",
        operation_id="readMyToolRules",
        summary="Read the account's tool rules",
        security=BY_ACCOUNT,
        response_description="The rules.",
        responses=documented_errors(*DENIED),
    )
    async def mine(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ToolRule]:
        """Read the account's rules for tool calls, in order."""
        user_id = require_user(caller)
        async with context.db.driver() as driver:
            rules, _ = await tool_rules.of(driver, thread_id=None, user_id=user_id)
        return Items(items=list(rules))

    @put(
        "/me/tool-rules",
        operation_id="setMyToolRules",
        summary="Replace the account's tool rules",
        opt={"scope": "account"},
        security=BY_ACCOUNT,
        response_description="The rules.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def set_mine(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], data: RULES
    ) -> Items[ToolRule]:
        """Replace the rules for calls that act for the account. A call runs, requires an approval, or fails."""
        user_id = require_user(caller)
        await tool_rules.set_user(context.db, user_id, _checked_rules(data))
        return Items(items=data.items)

    @get(
        "/threads/{thread_id:uuid}/tool-rules",
        operation_id="readToolRules",
        summary="Read the thread's tool rules",
        security=BY_KEY,
        response_description="The rules.",
        responses=documented_errors(*IN_THREAD),
    )
    async def of_thread(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[ToolRule]:
        """Read the rules for tool calls in this thread, in order."""
        async with context.db.driver() as driver:
            return Items(items=list(await tool_rules.of_thread(driver, thread_id, caller)))

    @put(
        "/threads/{thread_id:uuid}/tool-rules",
        operation_id="setToolRules",
        summary="Replace the thread's tool rules",
        opt={"scope": "account"},
        security=BY_KEY,
        response_description="The rules.",
        responses=documented_errors(*IN_THREAD, *BODY),
    )
    async def set_of_thread(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, data: RULES
    ) -> Items[ToolRule]:
        """Replace the rules for calls in this thread. They take precedence over the rules of users."""
        await tool_rules.set_thread(context.db, thread_id, _checked_rules(data), caller)
        return Items(items=data.items)


def _checked_rules(data: ToolRuleList) -> list[ToolRule]:
    for index, rule in enumerate(data.items):
        check_text(rule.pattern, f"items.{index}.pattern")
    return data.items

"""Plans over REST: create, import, list, read, export and delete them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import BodyKwarg, QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.page_cursors import decode_cursor, encode_cursor
from khala.api.http.path_parameters import PlanId, ThreadId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import example
from khala.api.plans.plan_agents import check_agents
from khala.api.plans.types import ImportedPlan, NewPlan, PlanEventPage, PlanWithSteps
from khala.api.types import Items, Page
from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.errors import InvalidInput
from khala.domain.plans.documents.markdown_reader import read_markdown
from khala.domain.plans.documents.markdown_writer import write_markdown
from khala.domain.plans.documents.plan_document import PlanDocument, document_of
from khala.domain.plans.documents.prd_json import read_prd, write_prd
from khala.domain.plans.events import Created
from khala.domain.plans.named_agents import agents_of_config, agents_of_steps
from khala.domain.plans.new_plans import default_iterations
from khala.domain.plans.plan import PlanConfig
from khala.domain.plans.step_limits import STEP_ID, is_storable
from khala.domain.plans.views import PlanDetail, PlanEntry, StepDetail
from khala.domain.routing import DEFAULT_AGENT
from khala.store.plans import plan_feed, plan_rows, plans
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.sharing import access

MAX_PLAN_BODY_BYTES = 4 << 20
"""For bodies with steps: 1,000 steps with 4,000 bytes each."""
DENIED = ("invalid_input", "unauthorized", "forbidden", "not_found", "rate_limited", "unavailable")
OF_THREAD = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
MEDIA_TYPES = {"markdown": "text/markdown", "prd": "application/json"}
DOCUMENT = ResponseSpec(
    data_container=str, media_type=MEDIA_TYPES["markdown"], generate_examples=False, description="The document."
)
STEPS = [
    {"id": "read", "title": "Read the archive"},
    {"id": "write", "title": "Write the summary", "dependsOn": ["read"], "acceptance": ["It names its sources."]},
]

Cursor = Annotated[str | None, QueryParameter(description="The `nextCursor` of the previous page.")]
Limit = Annotated[int, QueryParameter(ge=1, le=100, description="The maximum number of items.")]
After = Annotated[int, QueryParameter(ge=0, le=2**31 - 1, description="The seq of the last event that you have.")]
EventLimit = Annotated[int, QueryParameter(ge=1, le=500, description="The maximum number of events.")]

EventStep = Annotated[
    str | None,
    QueryParameter(name="stepId", pattern=f"^{STEP_ID.pattern}$", description="Only the events of this step."),
]


@dataclass
class DocumentOperation(Operation):
    """An operation whose response has one of two media types. Litestar documents only one of them."""

    def __post_init__(self) -> None:
        """Document the second media type."""
        response = (self.responses or {}).get("200")
        if isinstance(response, OpenAPIResponse) and response.content is not None:
            response.content[MEDIA_TYPES["prd"]] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT))


class ThreadPlanController(Controller):
    """The plans of a thread."""

    path = "/threads/{thread_id:uuid}/plans"
    tags = ("Plans",)
    security = BY_KEY

    @post(
        "/",
        operation_id="createPlan",
        summary="Create a plan",
        request_max_body_size=MAX_PLAN_BODY_BYTES,
        response_description="The plan, which is idle.",
        responses=documented_errors(*OF_THREAD, "conflict", *BODY)
        | {200: documented_success(PlanWithSteps, "The plan already existed. Nothing was changed.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[NewPlan, BodyKwarg(examples=example("Two steps", title="Summarize", steps=STEPS))],
    ) -> Response[PlanWithSteps]:
        """Create a plan. Start it by `POST /api/plans/{plan_id}/start`. A repetition with the same id returns 200."""
        check_texts(title=data.title, goal=data.goal)
        agents = agents_of_config(data.config.named_agents) | agents_of_steps(data.steps, "steps")
        await check_agents(context, caller, agents)
        document = PlanDocument(title=data.title, goal=data.goal, steps=tuple(data.steps))
        return await _create(context, caller, thread_id, data, document)

    @post(
        "/import",
        operation_id="importPlan",
        summary="Create a plan from a document",
        request_max_body_size=MAX_PLAN_BODY_BYTES,
        response_description="The plan, which is idle.",
        responses=documented_errors(*OF_THREAD, "conflict", *BODY)
        | {200: documented_success(PlanWithSteps, "The plan already existed. Nothing was changed.")},
    )
    async def import_document(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[
            ImportedPlan,
            BodyKwarg(examples=example("A checklist", format="markdown", document="# Trip\n- [ ] Pack\n- [ ] Leave\n")),
        ],
    ) -> Response[PlanWithSteps]:
        """Create a plan from a Markdown checklist or a `prd.json`. Errors name the line or the path in it."""
        check_texts(title=data.title)
        read = _read_document(data)
        title = data.title or read.title or "Imported plan"
        agents = agents_of_config(data.config.named_agents) | agents_of_steps(read.steps, "document.steps")
        await check_agents(context, caller, agents)
        return await _create(context, caller, thread_id, data, msgspec.structs.replace(read, title=title))

    @get(
        "/",
        operation_id="listPlans",
        summary="List plans",
        response_description="Plans, the newest first.",
        responses=documented_errors(*OF_THREAD),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        cursor: Cursor = None,
        limit: Limit = 20,
    ) -> Page[PlanEntry]:
        """List the plans of the thread, the newest first, without their steps."""
        before = (None, None) if cursor is None else decode_cursor(cursor)
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            page = await plan_feed.of_thread(driver, thread_id, limit=limit + 1, before=before)
        items = page[:limit]
        more = len(page) > limit
        return Page(items=items, next_cursor=encode_cursor(items[-1].created_at, items[-1].id) if more else None)


class PlanController(Controller):
    """Plans: reads, and deletion."""

    path = "/plans/{plan_id:uuid}"
    tags = ("Plans",)
    security = BY_KEY

    @get(
        "/",
        operation_id="readPlan",
        summary="Read a plan",
        response_description="The plan, without its steps.",
        responses=documented_errors(*DENIED),
    )
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId
    ) -> PlanDetail:
        """Read a plan: its goal, its rules, its state and the counts of its steps."""
        async with context.db.snapshot() as driver:
            return plan_feed.detail(await plans.find(driver, plan_id, caller))

    @get(
        "/steps",
        operation_id="readPlanSteps",
        summary="Read a plan's steps",
        response_description="All steps, in order.",
        responses=documented_errors(*DENIED),
    )
    async def steps(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId
    ) -> Items[StepDetail]:
        """Read all steps of a plan, as they were planned, and their progress."""
        async with context.db.snapshot() as driver:
            return Items(items=await plan_feed.steps(driver, await plans.find(driver, plan_id, caller)))

    @get(
        "/events",
        operation_id="readPlanEvents",
        summary="Read a plan's events",
        response_description="Events, in order.",
        responses=documented_errors(*DENIED),
    )
    async def events(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        after: After = 0,
        limit: EventLimit = 200,
        step_id: EventStep = None,
    ) -> PlanEventPage:
        """Read what has happened in a plan or in one of its steps, after a seq.

        Events of edits are without the steps: read these instead.
        """
        async with context.db.snapshot() as driver:
            row = await plans.find(driver, plan_id, caller)
            page = await plan_feed.events(driver, row, after=after, limit=limit + 1, step_id=step_id)
        items = page[:limit]
        return PlanEventPage(items=items, next_after=items[-1].seq if items else after, has_more=len(page) > limit)

    @get(
        "/export",
        operation_id="exportPlan",
        operation_class=DocumentOperation,
        summary="Write a plan as a document",
        responses=documented_errors(*DENIED) | {200: DOCUMENT},
    )
    async def export(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        document_format: Annotated[
            Literal["markdown", "prd"], QueryParameter(name="format", description="The kind of document.")
        ] = "markdown",
    ) -> Response[bytes]:
        """Write the plan as a Markdown checklist or as a `prd.json`, in which the completed steps are done."""
        async with context.db.snapshot() as driver:
            row = await plans.find(driver, plan_id, caller)
            document = document_of((await plan_rows.read_whole(driver, row)).plan)
        text = write_markdown(document).encode() if document_format == "markdown" else write_prd(document)
        return Response(text, media_type=MEDIA_TYPES[document_format])

    @delete(
        "/",
        operation_id="deletePlan",
        summary="Delete a plan",
        response_description="The plan was deleted.",
        responses=documented_errors(*DENIED, "thread_not_found", "conflict"),
    )
    async def remove(self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId) -> None:
        """Delete a plan that is idle, paused or stopped. The messages of its steps stay."""
        await plans.remove(context.db, plan_id, caller)


async def _create(
    context: Context, caller: Caller, thread_id: UUID, data: NewPlan | ImportedPlan, document: PlanDocument
) -> Response[PlanWithSteps]:
    config = data.config.apply(PlanConfig(agents=(DEFAULT_AGENT,)))
    created = Created(
        at=datetime.now(UTC),
        title=document.title,
        goal=document.goal,
        config=config,
        mode=data.mode,
        max_iterations=data.max_iterations or default_iterations(len(document.steps), config),
        steps=document.steps,
        completed=document.completed,
    )
    stored, new = await plans.create(context.db, data.plan_id or ids.new(), thread_id, caller, created)
    async with context.db.snapshot() as driver:
        plan = await with_steps(driver, await plans.find(driver, stored.id, caller))
    return Response(plan, status_code=201 if new else 200)


async def with_steps(driver: Driver, row: Record) -> PlanWithSteps:
    """The plan of this row with its steps. Raises `PlanDamaged`."""
    fields: dict[str, Any] = msgspec.structs.asdict(plan_feed.detail(row))
    return PlanWithSteps(**fields, steps=await plan_feed.steps(driver, row))


def _read_document(data: ImportedPlan) -> PlanDocument:
    """The plan in the document. Errors have a path below `document`, such as `document.userStories[2].title`."""
    try:
        return read_markdown(data.document) if data.format == "markdown" else read_prd(data.document.encode())
    except InvalidInput as error:
        path = f"document.{error.path}" if error.path else "document"
        raise InvalidInput(error.message, path=path) from error


def check_texts(**texts: str | None) -> None:
    """Raise `InvalidInput` for a blank title, or for a text that can't be stored."""
    for name, text in texts.items():
        if name == "title" and text is not None and not text.strip():
            raise InvalidInput("A title is required.", path=name)
        if text is not None and not is_storable(text):
            raise InvalidInput("This has a character that can't be stored.", path=name)

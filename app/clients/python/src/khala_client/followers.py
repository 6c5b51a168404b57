"""Follows threads, runs and plans: from frames and pages to updates, parts and events that come exactly once."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from khala_client.content import Content, Finish, Notice, Part, PartData, RunFailure, TextDelta, text_of
from khala_client.credentials import Keys
from khala_client.errors import AnswerReplaced, RunFailed, ServerError
from khala_client.feed import Feed, FeedTarget, FollowOptions
from khala_client.fold import fold
from khala_client.http_core import HttpCore
from khala_client.models import ENDED_STATUSES, Delta, PartPage, Snapshot
from khala_client.plan_models import PlanEntry, PlanEvent, PlanEventPage, PlanInfo, StepProgress
from khala_client.state import MAX_MESSAGES, MessageState, ThreadState, apply_delta, from_snapshot
from khala_client.wire import WireStruct

Decoded = TypeVar("Decoded")
PARTS_PER_PAGE = 500
EVENTS_PER_PAGE = 200


class ThreadUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a thread: the state after it, and what is new in it.

    `messages` are those that are new or changed, as they are now; `parts` are new parts of their runs. An update with
    `is_snapshot` replaces everything known: it has no parts, and `messages` are those that differ from before.
    `plan_steps` and `plan_events` are None where there are too many: read them over REST.
    """

    state: ThreadState
    is_snapshot: bool = False
    is_reset: bool = False
    messages: tuple[MessageState, ...] = ()
    parts: tuple[Part, ...] = ()
    plans: tuple[PlanEntry, ...] = ()
    plan_steps: tuple[StepProgress, ...] | None = ()
    plan_events: tuple[PlanEvent, ...] | None = ()

    @property
    def revision(self) -> int:
        """The revision of the thread after this update."""
        return self.state.revision


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run. `text` is its answer; `finish.reason` says why it ended, `canceled` among others."""

    run_id: UUID
    message_id: UUID
    text: str
    content: Content
    finish: Finish


class RunTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A run to follow, and the keys that open its thread.

    `revision` is one of the thread before the run's first part, if it is known. `checks_format` says that its text is
    not final before its end, because the server may have the model write it again.
    """

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    keys: Keys
    revision: int | None = None
    checks_format: bool = False


class _Place(WireStruct, frozen=True, kw_only=True):
    """The answer of `GET /runs/{id}/cursor`: a revision that has no part from the position on."""

    revision: int


async def follow_thread(
    core: HttpCore, thread_id: UUID, keys: Keys, known: ThreadState | None, options: FollowOptions
) -> AsyncGenerator[ThreadUpdate, None]:
    """The updates of a thread after `known`, or from a snapshot on."""
    state = known
    feed = Feed(core, FeedTarget(thread_id=thread_id, keys=keys, after=known.revision if known else None), options)
    async with contextlib.aclosing(feed.frames()) as frames:
        async for frame in frames:
            if isinstance(frame, Snapshot):
                state, update = _replaced(state, frame)
                yield update
            elif state is not None:
                applied = apply_delta(state, frame, max_messages=MAX_MESSAGES)
                state = applied.state
                if applied.outcome == "applied":
                    yield _updated(state, applied.changed, frame)
                elif applied.outcome in ("gap", "broken"):
                    feed.request_snapshot()


def _replaced(before: ThreadState | None, frame: Snapshot) -> tuple[ThreadState, ThreadUpdate]:
    state = from_snapshot(frame)
    known = {} if before is None else {message.id: message for message in before.messages}
    changed = tuple(message for message in state.messages if known.get(message.id) != message)
    return state, ThreadUpdate(state=state, is_snapshot=True, is_reset=frame.reset, messages=changed, plans=frame.plans)


def _updated(state: ThreadState, changed: tuple[MessageState, ...], frame: Delta) -> ThreadUpdate:
    return ThreadUpdate(
        state=state,
        messages=changed,
        parts=frame.parts,
        plans=frame.plans,
        plan_steps=frame.plan_steps,
        plan_events=frame.plan_events,
    )


async def follow_run(
    core: HttpCore, run: RunTarget, after: int, options: FollowOptions
) -> AsyncGenerator[tuple[int, PartData], None]:
    """The parts of a run with `seq` over `after`, each once and in order, up to and including its `Finish`."""
    reader = _PartReader(core, run, after + 1)
    revision = run.revision if after < 0 else None
    if revision is None:
        async for item in reader.read_stored():
            yield item
        if reader.done:
            return
        revision = await reader.revision()
    feed = Feed(core, FeedTarget(thread_id=run.thread_id, keys=run.keys, after=revision), options)
    async with contextlib.aclosing(feed.frames()) as frames:
        async for frame in frames:
            for item in reader.take(frame):
                yield item
            if reader.lacks_parts(frame):
                async for item in reader.read_stored():
                    yield item
            if reader.done:
                return


class _PartReader:
    """Takes the parts of a run from frames, and from pages where frames do not have them."""

    def __init__(self, core: HttpCore, run: RunTarget, position: int) -> None:
        self._core = core
        self._run = run
        self.position = position
        self.done = False

    def take(self, frame: Snapshot | Delta) -> list[tuple[int, PartData]]:
        """The next parts in a frame."""
        parts = frame.parts if isinstance(frame, Delta) else ()
        return self._next(sorted((one for one in parts if one.run_id == self._run.run_id), key=lambda one: one.seq))

    def lacks_parts(self, frame: Snapshot | Delta) -> bool:
        """Whether the server has parts that frames will not have."""
        if isinstance(frame, Snapshot):
            return True
        own = [one for one in frame.messages if one.id == self._run.message_id]
        has_ended = any(one.status in ENDED_STATUSES for one in own)
        newest = max((one.seq + 1 for one in frame.parts if one.run_id == self._run.run_id), default=0)
        return not self.done and (has_ended or newest > self.position)

    async def read_stored(self) -> AsyncGenerator[tuple[int, PartData], None]:
        """The parts that the server has, from the position on."""
        is_whole = False
        while not is_whole:
            params = {"after": self.position - 1, "limit": PARTS_PER_PAGE}
            page = await self._get("parts", PartPage, params)
            for item in self._next(page.items):
                yield item
            # `done` says that no part follows the page, also if the run had ended before the position.
            self.done = self.done or page.done
            is_whole = self.done or len(page.items) < PARTS_PER_PAGE

    async def revision(self) -> int:
        """The revision from which the feed has the parts from the position on."""
        return (await self._get("cursor", _Place, {"position": self.position})).revision

    async def _get(self, name: str, kind: type[Decoded], params: dict[str, int]) -> Decoded:
        path = f"/api/runs/{self._run.run_id}/{name}"
        return await self._core.request("GET", path, kind, params=params, keys=self._run.keys, patient=True)

    def _next(self, parts: Sequence[Part]) -> list[tuple[int, PartData]]:
        items = []
        for part in parts:
            if part.seq == self.position:
                data = part.read()
                items.append((part.seq, data))
                self.position += 1
                self.done = self.done or isinstance(data, Finish)
        return items


async def run_text(core: HttpCore, run: RunTarget, options: FollowOptions) -> AsyncGenerator[str, None]:
    """The text of a run, in pieces. Raises `RunFailed`, and `AnswerReplaced`."""
    if run.checks_format:
        result = await run_result(core, run, options, None)
        yield result.text
        return
    taken: list[PartData] = []
    async with contextlib.aclosing(follow_run(core, run, -1, options)) as parts:
        async for _, part in parts:
            taken.append(part)
            if isinstance(part, TextDelta) and part.text:
                yield part.text
            elif isinstance(part, RunFailure):
                raise _failure(part, taken)
            elif isinstance(part, Notice) and part.code == "format_repair":
                message = "The text did not fit the requested format. The model writes it again."
                raise AnswerReplaced(message, code=part.code)


async def run_result(core: HttpCore, run: RunTarget, options: FollowOptions, timeout: float | None) -> RunResult:
    """Wait for the end of a run. Raises `RunFailed`, and `TimeoutError` if it takes longer than `timeout` seconds."""
    taken: list[PartData] = []
    async with asyncio.timeout(timeout), contextlib.aclosing(follow_run(core, run, -1, options)) as parts:
        async for _, part in parts:
            taken.append(part)
            if isinstance(part, RunFailure):
                raise _failure(part, taken)
    content, finish = fold((), taken), taken[-1] if taken else None
    if not isinstance(finish, Finish):
        raise ServerError("The run has ended, and the server has no finish of it.")
    return RunResult(
        run_id=run.run_id, message_id=run.message_id, text=text_of(content), content=content, finish=finish
    )


def _failure(part: RunFailure, taken: Sequence[PartData]) -> RunFailed:
    """The error of a failed run. Its text repeats the message for people, which is left out here."""
    text = text_of(fold((), taken)).removesuffix(part.message).removesuffix("\n\n")
    return RunFailed(part.message, code=part.code, text=text, retry_after=part.retry_after)


async def follow_plan(
    core: HttpCore, plan_id: UUID, keys: Keys, after: int, options: FollowOptions
) -> AsyncGenerator[PlanEvent, None]:
    """The events of a plan with `seq` over `after`, each once and in order, up to and including `stopped`."""
    plan = await core.request("GET", f"/api/plans/{plan_id}", PlanInfo, keys=keys, patient=True)
    async for event in _stored_events(core, plan_id, keys, after):
        yield event
        after = event.seq
        if event.type == "stopped":
            return
    if plan.status == "stopped":
        return
    feed = Feed(core, FeedTarget(thread_id=plan.thread_id, keys=keys, after=plan.revision), options)
    async with contextlib.aclosing(feed.frames()) as frames:
        async for frame in frames:
            newest = max((one.event_seq for one in frame.plans if one.id == plan_id), default=0)
            if newest <= after and isinstance(frame, Delta):
                continue
            # The feed cuts long texts, and leaves out what is too much: the pages have all of it.
            async for event in _stored_events(core, plan_id, keys, after):
                yield event
                after = event.seq
                if event.type == "stopped":
                    return


async def _stored_events(core: HttpCore, plan_id: UUID, keys: Keys, after: int) -> AsyncGenerator[PlanEvent, None]:
    has_more = True
    while has_more:
        params = {"after": after, "limit": EVENTS_PER_PAGE}
        path = f"/api/plans/{plan_id}/events"
        page = await core.request("GET", path, PlanEventPage, params=params, keys=keys, patient=True)
        for event in page.items:
            yield event
            after = event.seq
        has_more = page.has_more and bool(page.items)

"""Reads and writes `prd.json`, the list of user stories of ralph-tui.

The file has more fields than a plan: `branchName`, `metadata`, and `labels` and `notes` of stories. They survive when a
plan is written over the file that it was read from. ralph-tui ignores `phase` and `agent`, which only Khala has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from khala.domain.errors import InvalidInput
from khala.domain.plans.documents.plan_document import (
    DocumentPlaces,
    PlanDocument,
    check_document,
    check_size,
    clean_block,
    clean_line,
)
from khala.domain.plans.plan import MAX_STEPS, PlannedStep

DEFAULT_PRIORITY = 3
"""The priority that ralph-tui gives to a story without one. 1 is the highest."""


class PrdStory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A user story, with the fields that a plan has. `passes` says that it is done."""

    id: str
    title: str
    passes: bool
    description: str | None = None
    acceptance_criteria: Sequence[str] | None = None
    priority: int | None = None
    depends_on: Sequence[str] | None = None
    phase: str | None = None
    agent: str | None = None

    def step(self) -> PlannedStep:
        """The step of this story."""
        return PlannedStep(
            id=self.id,
            title=clean_line(self.title),
            instructions=clean_block(self.description or ""),
            acceptance=tuple(text for one in self.acceptance_criteria or () if (text := clean_line(one))),
            depends_on=tuple(self.depends_on or ()),
            priority=DEFAULT_PRIORITY if self.priority is None else self.priority,
            phase=clean_line(self.phase or "") or None,
            agent=clean_line(self.agent or "") or None,
        )


class PrdFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file. `project` is another name of `name`."""

    user_stories: Sequence[PrdStory]
    name: str | None = None
    project: str | None = None
    description: str | None = None


def read_prd(content: bytes) -> PlanDocument:
    """The plan in this file. Raises `InvalidInput` with the path of what is wrong, or `PayloadTooLarge`."""
    stories = _decode(content)
    document = PlanDocument(
        title=clean_line(stories.name or stories.project or ""),
        goal=clean_block(stories.description or ""),
        steps=tuple(story.step() for story in stories.user_stories),
        completed=tuple(story.id for story in stories.user_stories if story.passes),
    )
    steps = [f"userStories[{number}]" for number in range(len(document.steps))]
    try:
        check_document(document, DocumentPlaces("name", "description", steps))
    except InvalidInput as error:
        raise InvalidInput(error.message, path=_story_path(error.path)) from error
    return document


def write_prd(document: PlanDocument, over: bytes | None = None) -> bytes:
    """The file of this plan. Fields of the file `over` that a plan does not have are kept, by the ids of stories."""
    former = {} if over is None else _fields(over)
    stories = {story["id"]: story for story in former.get("userStories", ())}
    completed = set(document.completed)
    file = former | {"name": document.title, "description": document.goal}
    file.pop("project", None)
    file["userStories"] = [
        stories.get(step.id, {}) | _story(step, stories.get(step.id, {}), passes=step.id in completed)
        for step in document.steps
    ]
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def _story(step: PlannedStep, former: Mapping[str, Any], *, passes: bool) -> dict[str, Any]:
    """The fields of a story. Phase and agent are left out without a value, unless the former story has them."""
    own = {name: value for name, value in (("phase", step.phase), ("agent", step.agent)) if value or name in former}
    return {
        "id": step.id,
        "title": step.title,
        "description": step.instructions,
        "acceptanceCriteria": step.acceptance,
        "priority": step.priority,
        "dependsOn": step.depends_on,
        "passes": passes,
    } | own


def _story_path(path: str) -> str:
    """The path in the file of a field of a step."""
    return path.replace(".acceptance", ".acceptanceCriteria").replace(".instructions", ".description")


def _decode(content: bytes) -> PrdFile:
    check_size(len(content))
    try:
        file = msgspec.json.decode(content, type=PrdFile)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        raise InvalidInput(f"{message}.", path=place.removesuffix("`").removeprefix("$").removeprefix(".")) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"The document is not JSON: {error}.") from error
    if len(file.user_stories) > MAX_STEPS:
        raise InvalidInput(f"A plan has at most {MAX_STEPS:,} steps.", path="userStories")
    return file


def _fields(content: bytes) -> dict[str, Any]:
    """All fields of a file that can be read as a plan."""
    _decode(content)
    fields: dict[str, Any] = msgspec.json.decode(content)
    return fields

"""A plan as a document has it: title, goal, steps, and which of them are done."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.plan import MAX_GOAL_CHARACTERS, MAX_TITLE_CHARACTERS, Plan, PlannedStep

MAX_DOCUMENT_BYTES = 1_048_576
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was read, or that is to be written.

    `title` is empty if the document has none. `completed` has the ids of the steps that are done, in the order of
    `steps`: a plan that is created from the document does not execute them.
    """

    title: str = ""
    goal: str = ""
    steps: tuple[PlannedStep, ...]
    completed: tuple[str, ...] = ()


def document_of(plan: Plan) -> PlanDocument:
    """The document of a plan as it is now."""
    return PlanDocument(
        title=plan.title,
        goal=plan.goal,
        steps=tuple(step.planned for step in plan.steps.values()),
        completed=tuple(step_id for step_id, step in plan.steps.items() if step.status == "completed"),
    )


class DocumentPlaces(NamedTuple):
    """The lines or paths at which a document has its parts."""

    title: str
    goal: str
    steps: Sequence[str]


def check_document(document: PlanDocument, places: DocumentPlaces) -> None:
    """Raise `InvalidInput`, with a place, for a document of which no plan can be created."""
    if not document.steps:
        raise InvalidInput("The document has no steps.")
    _check_length(document.title, "title", MAX_TITLE_CHARACTERS, places.title)
    _check_length(document.goal, "goal", MAX_GOAL_CHARACTERS, places.goal)
    check_steps(document.steps, places.steps, completed=document.completed)


def _check_length(text: str, name: str, max_characters: int, place: str) -> None:
    if len(text) > max_characters:
        message = f"The {name} may have at most {max_characters:,} characters, not {len(text):,}."
        raise InvalidInput(message, path=place)


def check_size(size: int) -> None:
    """Raise `PayloadTooLarge` for a document that has too many bytes."""
    if size > MAX_DOCUMENT_BYTES:
        raise PayloadTooLarge(f"The document has {size:,} bytes. At most {MAX_DOCUMENT_BYTES:,} are allowed.")


def clean_line(text: str) -> str:
    """The text on one line: each run of white space is one space, and control characters are left out."""
    return " ".join(_CONTROL_CHARACTERS.sub(" ", text.replace("\t", " ")).split())


def clean_block(text: str) -> str:
    """The text with line feeds as line ends, and without other control characters, or white space around it."""
    return _CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip()

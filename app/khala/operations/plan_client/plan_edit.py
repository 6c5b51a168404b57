"""Edits a plan as a Markdown checklist: the difference between two documents, and the editor of the person."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from khala.console import KnownFailure
from khala.domain.errors import InvalidInput
from khala.domain.plans.documents.plan_document import PlanDocument

DEFAULT_EDITOR = "vi"


class PlanDifference(msgspec.Struct, frozen=True):
    """The bodies of the requests that make one document of another: of the steps, and of title and goal."""

    steps: dict[str, Any]
    details: dict[str, Any]


def difference(before: PlanDocument, after: PlanDocument) -> PlanDifference:
    """The difference, which is empty for equal documents.

    Raises `InvalidInput` for a box that was checked or unchecked: the work alone completes a step.
    """
    old, new = ({step.id: step for step in document.steps} for document in (before, after))
    for step_id in sorted(set(before.completed) ^ set(after.completed)):
        if step_id in new:
            raise InvalidInput(
                f"Step {step_id!r}: an edit does not change whether a step is done. Use `khala plan skip` or `retry`."
            )
    unordered = [*(step_id for step_id in old if step_id in new), *(step_id for step_id in new if step_id not in old)]
    steps = {
        "add": [step for step_id, step in new.items() if step_id not in old],
        "remove": [step_id for step_id in old if step_id not in new],
        "change": [step for step_id, step in new.items() if step_id in old and step != old[step_id]],
        "order": list(new) if list(new) != unordered else [],
    }
    details = {
        name: getattr(after, name) for name in ("title", "goal") if getattr(after, name) != getattr(before, name)
    }
    return PlanDifference({name: msgspec.to_builtins(value) for name, value in steps.items() if value}, details)


class EditedFile:
    """A file with the text that is edited. It stays if the text was not applied."""

    def __init__(self, text: str) -> None:
        # `mkstemp` lets only the user read the file.
        number, name = tempfile.mkstemp(prefix="khala-plan-", suffix=".md")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        self.path = Path(name)

    def edit(self, environment: Mapping[str, str] = os.environ) -> str:
        """Open the editor, and return the text when the editor ends. Raises `KnownFailure`."""
        editor = environment.get("VISUAL") or environment.get("EDITOR") or DEFAULT_EDITOR
        try:
            code = subprocess.call([*shlex.split(editor), str(self.path)])  # noqa: S603  # the person's own editor
            text = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise KnownFailure(f"The editor {editor!r} failed: {error}. Set EDITOR. {self.kept}") from error
        if code != 0:
            raise KnownFailure(f"The editor {editor!r} ended with {code}: nothing is changed. {self.kept}")
        return text

    @property
    def kept(self) -> str:
        """The place of the text, for people."""
        return f"The text is in {self.path}."

    def remove(self) -> None:
        """Remove the file, because the text was applied or is unchanged."""
        self.path.unlink(missing_ok=True)

"""Edits a plan of a server in the person's editor."""

from uuid import UUID

import click
import msgspec

from khala.console import KnownFailure, run
from khala.domain.errors import KhalaError
from khala.domain.plans.documents.markdown_reader import read_markdown
from khala.domain.plans.documents.plan_document import PlanDocument
from khala.domain.plans.views import PlanDetail
from khala.operations.plan_client import session
from khala.operations.plan_client.api import RequestRefused, ServerConnection
from khala.operations.plan_client.plan_edit import EditedFile, difference

BEGIN_ANEW = "To go on with its steps, write them to a file, edit it and run it: khala plan export -o plan.md"
MEANWHILE = "Somebody else has edited the plan meanwhile. Run `khala plan edit` again, and repeat your changes."
MAX_EDITS = 100
"""Times that the editor is opened for one edit."""


class EditedMeanwhile(KnownFailure):
    """The plan was edited by somebody else since its text was read."""


class PlanEditor:
    """One edit of a plan: the document as it was read, and how far the difference was applied.

    Raises `KnownFailure` for a plan that has stopped.
    """

    def __init__(self, connection: ServerConnection, plan_id: UUID) -> None:
        exported = run(session.export_plan(connection, plan_id, "markdown"))
        if exported is None:
            raise SystemExit(130)
        self._connection = connection
        self.plan: PlanDetail = exported[0]
        if self.plan.status in ("stopping", "stopped"):
            raise KnownFailure(f"The plan is {self.plan.status}, and can't be changed any more. {BEGIN_ANEW}")
        self.text = exported[1].decode()
        self._before: PlanDocument = read_markdown(self.text)
        self._seen_event = self.plan.event_seq

    def apply(self, text: str) -> bool:
        """Apply the difference to this text. Returns whether there was one.

        Raises `KhalaError` for a document that can't be read, and `KnownFailure` if the server refuses the change, as
        it does after an edit by somebody else.
        """
        after = read_markdown(text)
        changes = difference(self._before, after)
        if changes.steps:
            body = {**changes.steps, "ifEventSeq": self._seen_event}
            try:
                self._set(run(session.give_command(self._connection, self.plan.id, "edit", body)))
            except RequestRefused as error:
                self._check_edits(error)
                raise
            self._before = msgspec.structs.replace(after, title=self._before.title, goal=self._before.goal)
        if changes.details:
            self._set(run(session.change_plan(self._connection, self.plan.id, changes.details)))
        return bool(changes.steps or changes.details)

    def _check_edits(self, error: RequestRefused) -> None:
        """Raise `EditedMeanwhile` if that is why the edit was refused: the same text would be refused again."""
        if error.code == "conflict":
            now = run(session.find_plan(self._connection, self.plan.id))
            if now is not None and now.edited_revision != self.plan.edited_revision:
                raise EditedMeanwhile(MEANWHILE) from error

    def _set(self, plan: PlanDetail | None) -> None:
        if plan is None:
            raise SystemExit(130)
        self.plan = plan
        self._seen_event = plan.event_seq


def edit_plan(connection: ServerConnection, plan_id: UUID, *, interactive: bool) -> None:
    """Open the editor until the difference is applied, nothing changed, or the person gives up.

    Raises `KnownFailure`, and keeps the text.
    """
    editor = PlanEditor(connection, plan_id)
    file = EditedFile(editor.text)
    for _ in range(MAX_EDITS):
        text = file.edit()
        try:
            changed = editor.apply(text)
        except EditedMeanwhile as error:
            raise KnownFailure(f"{error.message} {file.kept}") from error
        except (KhalaError, KnownFailure) as error:
            click.echo(f"The plan is not changed: {_reason(error)}", err=True)
            if not interactive or not click.confirm("Edit the text again?", default=True, err=True):
                break
            continue
        file.remove()
        click.echo(session.plan_line(editor.plan) if changed else "Nothing is changed.")
        return
    raise KnownFailure(file.kept)


def _reason(error: KhalaError | KnownFailure) -> str:
    """The error's message, with its place in the document."""
    path = getattr(error, "path", None)
    return f"{path}: {error.message}" if path else error.message

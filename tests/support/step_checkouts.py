"""Attempts of steps in checkouts, without their commands."""

from pathlib import Path
from typing import Any

from khala.domain import ids
from khala.domain.chat import StepCheckout, StepRef
from khala.tools.commands import Checkout, Command
from tests.support.checkouts import git

PLAN = ids.new()
THREAD = ids.new()


def command(folder: Path, **settings: Any) -> Command:
    """A command that works in this folder."""
    return Command(argv=("true",), folder=str(folder), git=True, git_author="Ada <ada@localhost>", **settings)


def opened(
    folder: Path, step: str, *, title: str = "", filters: bool = False, deployment: str = "one", **rules: Any
) -> Any:
    """The checkout of an attempt of this step."""
    ref = StepRef(plan_id=PLAN, step_id=step, attempt=1)
    checkout = StepCheckout(title=title or f"Do {step}", **rules)
    return Checkout.opened(command(folder, git_filters=filters), THREAD, ref, checkout, deployment)


async def work(folder: Path, step: str, files: dict[str, str], summary: str = "Done.", **options: Any) -> None:
    """Complete a step that writes these files."""
    async with opened(folder, step, **options) as found:
        assert found.summary is None
        for name, text in files.items():
            (found.folder / name).write_text(text)
        await found.finish(summary)


def refs(folder: Path) -> list[str]:
    """The refs of steps, by kind."""
    names = git(folder, "for-each-ref", "--format=%(refname)").split("\n")
    return [name.split("/")[-3] for name in names if "khala" in name]

"""The names of what a step of a plan has in a checkout: its branch, its worktree, its refs and its lock."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from khala.domain.chat import StepRef

HEADS = "refs/heads/"
BRANCHES = f"{HEADS}khala/"
STATES = "refs/khala/"
BEGUN, DONE, CONFLICTED = "begun", "done", "conflicted"
KINDS = (BEGUN, DONE, CONFLICTED)
MERGING = f"{STATES}merging"
"""The commit to which the branch of the folder is moved, while that is under way."""
MAX_SLUG_CHARACTERS = 30
_NO_SLUG = re.compile(r"[^a-z0-9]+")


class StepNames(msgspec.Struct, frozen=True):
    """The names of one step. `name` is `PLAN/STEP`, made of characters that refs and folders may have."""

    name: str

    @classmethod
    def of(cls, step: StepRef) -> "StepNames":
        """The names of this step, whatever characters its id has."""
        slug = _NO_SLUG.sub("-", step.step_id.lower())[:MAX_SLUG_CHARACTERS].strip("-")
        digest = hashlib.sha256(step.step_id.encode()).hexdigest()[:12]
        return cls(f"{step.plan_id}/{slug or 'step'}-{digest}")

    @classmethod
    def in_refs(cls, refs: str) -> Iterator[tuple[UUID, "StepNames"]]:
        """The steps to which these refs belong, one ref in a line, with their plans. A step may occur repeatedly."""
        for ref in refs.splitlines():
            *_, plan, step = ["", *ref.split("/")]
            try:
                yield UUID(plan), cls(f"{plan}/{step}")
            except ValueError:
                continue

    @property
    def branch(self) -> str:
        """The branch of the step's worktree."""
        return BRANCHES + self.name

    @property
    def begun(self) -> str:
        """The ref of the last commit when the step began."""
        return f"{STATES}{BEGUN}/{self.name}"

    @property
    def done(self) -> str:
        """The ref of the step's commit, once it is to be merged."""
        return f"{STATES}{DONE}/{self.name}"

    @property
    def conflicted(self) -> str:
        """The ref of the step's commit, if it could not be merged."""
        return f"{STATES}{CONFLICTED}/{self.name}"

    @property
    def states(self) -> tuple[str, ...]:
        """All refs of the step but its branch."""
        return self.begun, self.done, self.conflicted

    def lock(self, folder: Path) -> Path:
        """The step's lock in the folder of locks."""
        return folder / f"{self.name.replace('/', '-')}.lock"

    def tree(self, folder: Path) -> Path:
        """The step's worktree, beside the folder of the checkout."""
        return trees(folder) / self.name


def trees(folder: Path) -> Path:
    """The folder of the worktrees of all plans, beside the folder of the checkout."""
    return folder.with_name(f"{folder.name}.khala")


def short(branch: str) -> str:
    """The name of a branch for people."""
    return branch.removeprefix(HEADS)

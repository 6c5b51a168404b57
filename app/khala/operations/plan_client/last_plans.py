"""The last plans of a directory, remembered in a file of the user.

The file has the key of a guest's thread if Khala created that thread here, because nothing else opens the thread. So
only the user can read it. API tokens are never stored.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import msgspec

from khala.console import KnownFailure

MAX_REMEMBERED = 20
"""Plans of one directory."""
MAX_FILE_BYTES = 1 << 20


class RememberedPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A plan that was started from a directory. `source` is the file that it was read from."""

    server: str
    plan_id: UUID
    thread_id: UUID
    source: str | None = None
    anon_key: str | None = None


class _File(msgspec.Struct, frozen=True):
    directory: str
    plans: list[RememberedPlan]


class PlanMemory:
    """The last plans of one directory, the newest first."""

    def __init__(self, directory: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._directory = str(directory.resolve())
        state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        name = hashlib.sha256(os.fsencode(self._directory)).hexdigest()[:32]
        self.path = Path(state) / "khala" / "plans" / f"{name}.json"

    def read(self) -> list[RememberedPlan]:
        """The plans. A file that is missing or damaged has none."""
        with contextlib.suppress(OSError, msgspec.DecodeError), self.path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_File).plans
        return []

    def find(self, *, server: str, source: str | None = None, plan_id: UUID | None = None) -> RememberedPlan | None:
        """The newest plan of this server, of this source or with this id if given."""
        for plan in self.read():
            if plan.server == server and source in (None, plan.source) and plan_id in (None, plan.plan_id):
                return plan
        return None

    def anon_key(self, server: str, thread_id: UUID) -> str | None:
        """The key of a guest's thread, if it is known."""
        return next((one.anon_key for one in self.read() if (one.server, one.thread_id) == (server, thread_id)), None)

    def add(self, plan: RememberedPlan) -> None:
        """Remember a plan as the newest one. Raises `KnownFailure` if the file can't be written."""
        others = [one for one in self.read() if one.plan_id != plan.plan_id]
        body = msgspec.json.encode(_File(self._directory, [plan, *others][:MAX_REMEMBERED]))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # `mkstemp` lets only the user read the file.
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=".new-")
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(msgspec.json.format(body, indent=2) + b"\n")
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise KnownFailure(f"The plan can't be remembered: {error}. Name it by --plan {plan.plan_id}.") from error

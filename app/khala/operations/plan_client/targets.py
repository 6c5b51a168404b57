"""Finds the server and the plan of a command: by options, the environment, or the last plan of the directory."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import click
import msgspec

from khala.console import run
from khala.operations.plan_client.last_plans import PlanMemory, RememberedPlan

if TYPE_CHECKING:
    from khala.operations.plan_client.api import ServerConnection

DEFAULT_SERVER = "http://127.0.0.1:8000"


class PlanTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all commands have."""

    server: str
    token: str | None = None
    anon_key: str | None = None
    plan: UUID | None = None
    thread: UUID | None = None

    @property
    def memory(self) -> PlanMemory:
        """The last plans of the current directory."""
        return PlanMemory(Path.cwd())

    def connection(self, thread_id: UUID | None = None) -> "ServerConnection":
        """The server and the credentials for this thread: those given, else the key of a guest's thread made here."""
        from khala.operations.plan_client.api import ServerConnection

        key = self.anon_key
        if key is None and self.token is None and thread_id is not None:
            key = self.memory.anon_key(self.server, thread_id)
        return ServerConnection(server=self.server, token=self.token, anon_key=key)

    def find(self) -> tuple["ServerConnection", UUID]:
        """The plan: the given one, the newest of the given thread, or the last one of this directory.

        Raises `UsageError` if there is none.
        """
        from khala.operations.plan_client import session

        if self.plan is not None:
            known = self.memory.find(server=self.server, plan_id=self.plan)
            return self.connection(None if known is None else known.thread_id), self.plan
        if self.thread is not None:
            connection = self.connection(self.thread)
            newest = run(session.newest_plan(connection, self.thread))
            if newest is None:
                raise click.UsageError(f"The thread {self.thread} has no plan.")
            return connection, newest.id
        last = self.memory.find(server=self.server)
        if last is None:
            raise click.UsageError(
                f"No plan of {self.server} was started in this directory. Name one by --plan or --thread,"
                " or start one: khala plan run FILE."
            )
        return self.connection(last.thread_id), last.plan_id

    def remember(self, plan: RememberedPlan) -> None:
        """Let later commands in this directory find the plan."""
        self.memory.add(plan)


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `PlanTarget` to a command, which gets it as `target`."""

    @click.option(
        "--server", envvar="KHALA_URL", default=DEFAULT_SERVER, show_default=True, help="Its address; or KHALA_URL."
    )
    @click.option("--token", envvar="KHALA_TOKEN", help="An API token. Better set KHALA_TOKEN: processes see options.")
    @click.option("--anon-key", envvar="KHALA_ANON_KEY", help="The key of a guest's thread. Better set KHALA_ANON_KEY.")
    @click.option("--plan", type=click.UUID, metavar="ID", help="The plan. By default the last one of this directory.")
    @click.option("--thread", type=click.UUID, metavar="ID", help="The newest plan of this thread.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        server: str,
        token: str | None,
        anon_key: str | None,
        plan: UUID | None,
        thread: UUID | None,
        **options: Any,
    ) -> None:
        target = PlanTarget(
            server=_address(server), token=token or None, anon_key=anon_key or None, plan=plan, thread=thread
        )
        command(*args, target=target, **options)

    return wrapped


def _address(server: str) -> str:
    """The address without a slash at its end. Raises `UsageError` if it is not one."""
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise click.UsageError(f"{server!r} is no address of a server. Give a whole one, such as {DEFAULT_SERVER}.")
    return server.rstrip("/")


def is_interactive() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()

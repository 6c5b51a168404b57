"""Removes from Git checkouts what plans left that have stopped, or that were deleted."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import structlog

from khala.domain.errors import Unavailable
from khala.live.polling import wait_until_set
from khala.store.blobs import objects
from khala.store.plans import plan_rows
from khala.store.postgres.database import Database
from khala.tools.commands import Command, Git, GitError, leftovers

log = structlog.get_logger()

SWEEP_INTERVAL_SECONDS = 600.0
"""Time between two searches of all checkouts."""
RETRY_INTERVAL_SECONDS = 30.0
"""Time until the next search if something could not be removed, for example because a command is about to end."""
MIN_SWEEP_INTERVAL_SECONDS = 5.0
MAX_MENTIONED_PLANS = 1_000


class CheckoutCleaner:
    """Cleans the checkouts that this process finds on its disk."""

    def __init__(self, db: Database, commands: Mapping[str, Command]) -> None:
        self._db = db
        self._commands = {name: command for name, command in commands.items() if command.git}
        self._mentioned: set[UUID] = set()
        """Plans that changed, and that nobody drives here. A plan that does not exist any more was one of them, or has
        a mark of this deployment in the checkout.

        Others are left alone, because a checkout may have steps of another deployment's plans.
        """
        self._wake = asyncio.Event()

    def mention(self, plan_id: UUID) -> None:
        """Look soon whether this plan has ended, or was deleted."""
        if self._commands and len(self._mentioned) < MAX_MENTIONED_PLANS:
            self._mentioned.add(plan_id)
            self._wake.set()

    async def run(self) -> None:
        """Clean now, regularly, and after plans were mentioned, until cancelled. Logs every error."""
        while self._commands:
            self._wake.clear()
            is_all = await self.clean()
            await asyncio.sleep(MIN_SWEEP_INTERVAL_SECONDS)
            await wait_until_set(self._wake, SWEEP_INTERVAL_SECONDS if is_all else RETRY_INTERVAL_SECONDS)

    async def clean(self) -> bool:
        """Clean all checkouts once. Returns whether everything was removed that could be."""
        mentioned, self._mentioned = self._mentioned, set()
        try:
            folders = await asyncio.to_thread(leftovers.find_folders, self._commands)
            if all([await self._clean(folder, command, mentioned) for folder, command in folders.items()]):
                return True
        except Unavailable as error:
            log.warning("checkout_cleaning_failed", error=str(error.__cause__))
        except Exception:
            # Caught, because it would end the driver and all its plans.
            log.exception("checkout_cleaning_crashed")
        self._mentioned |= mentioned
        return False

    async def _clean(self, folder: Path, command: Command, mentioned: set[UUID]) -> bool:
        git = Git(folder, command.git_author)
        try:
            if not command.git_filters:
                await git.refuse_programs()
            found = await leftovers.plans_in(git)
            if not found:
                return True
            ended = await self._ended(git, found, mentioned)
            if not ended:
                return True
            log.info("checkout_cleaned", folder=str(folder), plans=len(ended))
            return await leftovers.remove(git, ended)
        except (GitError, OSError) as error:
            log.warning("checkout_cleaning_failed", folder=str(folder), error=str(error))
            return False

    async def _ended(self, git: Git, found: set[UUID], mentioned: set[UUID]) -> set[UUID]:
        """Those of the plans in a checkout that have stopped, or that this deployment had and has no more."""
        async with self._db.driver() as driver:
            stopped = await plan_rows.read_stopped(driver, found)
            unknown = found - stopped.keys() - mentioned
            deployment = await objects.database_name(driver) if unknown else ""
        deleted = await leftovers.marked(git, unknown, deployment) if deployment else set()
        return {plan_id for plan_id in found if stopped.get(plan_id, plan_id in mentioned or plan_id in deleted)}

"""The driver of a process: claims plans that go on, renews their leases, and has each driven by a pump.

A notification says when a plan has to be claimed. Without one, the driver looks when the lease of another process
lapses, and rarely otherwise: plans that are idle, paused or stopped cost no query.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
import structlog

from khala.domain import ids
from khala.domain.errors import PlanDamaged, Unavailable
from khala.live.polling import wait_until_set
from khala.plans.checkout_cleaner import CheckoutCleaner
from khala.plans.pump import PlanPump, PumpOptions
from khala.signals import metrics
from khala.store.plans import plan_leases
from khala.store.plans.plan_leases import PlanLease
from khala.store.postgres.database import Database
from khala.store.postgres.notifications import EVERYTHING

log = structlog.get_logger()

MIN_CLAIM_INTERVAL_SECONDS = 0.025
"""Minimum time between two claims."""


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a driver. Times are seconds."""

    max_plans: int = 500
    """Plans that one process drives at once."""
    lease_seconds: float = 10.0
    """Time without a renewal after which another driver may take a plan over."""
    sweep_interval_seconds: float = 30.0
    """The longest time between two searches: then the driver looks whether it has missed a notification."""
    retry_interval_seconds: float = 1.0
    """Time until the next search after a claim: a plan whose thread was locked is left out. The shortest time, too."""


class PlanDriver:
    """Drives all plans that this process claims."""

    def __init__(
        self, db: Database, pump_options: PumpOptions, options: DriverOptions, cleaner: CheckoutCleaner
    ) -> None:
        self.id = f"driver-{ids.new()}"
        self._db = db
        self._pump_options = pump_options
        self._options = options
        self._cleaner = cleaner
        self._pumps: dict[UUID, PlanPump] = {}
        metrics.PLANS_DRIVEN.set(0)
        self._wake = asyncio.Event()

    def handle_notification(self, payload: str) -> None:
        """Handle a notification that plans have changed, or that runs of their steps have ended."""
        if payload in ("", EVERYTHING):
            for pump in self._pumps.values():
                pump.wake()
            self._wake.set()
            return
        for plan_id in map(UUID, payload.split(",")):
            if plan_id in self._pumps:
                self._pumps[plan_id].wake()
            else:
                self._wake.set()
                self._cleaner.mention(plan_id)

    async def run(self) -> None:
        """Drive plans until cancelled. Then the leases are given up, so that others go on at once."""
        leases: list[PlanLease] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew())
                group.create_task(self._cleaner.run())
                try:
                    await self._claim_plans(group)
                finally:
                    leases = [pump.lease for pump in self._pumps.values()]
        finally:
            await self._release(leases)

    async def _claim_plans(self, group: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            wait = self._options.retry_interval_seconds
            try:
                wait = await self._claim(group)
            except Unavailable as error:
                log.warning("plan_claim_failed", error=str(error.__cause__))
            except Exception:
                # Caught, because it would end this loop and all plans of this process.
                log.exception("plan_claim_crashed")
            await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(MIN_CLAIM_INTERVAL_SECONDS)
        await wait_until_set(self._wake, seconds)

    async def _claim(self, group: asyncio.TaskGroup) -> float:
        """Claim plans that need a driver. Returns the seconds until the next search, without a notification."""
        places = self._options.max_plans - len(self._pumps)
        longest, retry = self._options.sweep_interval_seconds, self._options.retry_interval_seconds
        if places <= 0:
            return longest
        async with self._db.driver() as driver:
            due = await plan_leases.seconds_until_due(driver, held=list(self._pumps))
        if due is None or due > 0:
            return longest if due is None else min(max(due, retry), longest)
        claimed = await plan_leases.claim(
            self._db, most=places, owner=self.id, lease_seconds=self._options.lease_seconds, held=list(self._pumps)
        )
        for lease in claimed:
            self._pumps[lease.plan_id] = pump = PlanPump(self._db, lease, self._pump_options)
            group.create_task(self._drive(pump))
        metrics.PLANS_CLAIMED.inc(len(claimed))
        metrics.PLANS_DRIVEN.set(len(self._pumps))
        return retry

    async def _drive(self, pump: PlanPump) -> None:
        """Drive one plan. Logs every error, and raises none.

        After an error, the plan is claimed again when its lease lapses and not at once, so that neither a defect nor a
        damaged plan is a busy loop.
        """
        plan_id = pump.lease.plan_id
        try:
            with structlog.contextvars.bound_contextvars(plan_id=str(plan_id)):
                await pump.run()
        except PlanDamaged as error:
            metrics.PLAN_DRIVES_FAILED.labels("damaged").inc()
            log.error("plan_damaged", plan_id=str(plan_id), error=error.message)
            return
        except Exception:
            metrics.PLAN_DRIVES_FAILED.labels("crashed").inc()
            log.exception("plan_crashed", plan_id=str(plan_id))
            return
        finally:
            del self._pumps[plan_id]
            metrics.PLANS_DRIVEN.set(len(self._pumps))
        self._cleaner.mention(plan_id)
        self._wake.set()

    async def _renew(self) -> None:
        """Renew the leases of all plans, for ever, and wake the pumps that have lost theirs."""
        while True:
            await asyncio.sleep(self._options.lease_seconds / 4)
            pumps = list(self._pumps.values())
            if not pumps:
                continue
            try:
                leases = [pump.lease for pump in pumps]
                held = await plan_leases.renew(self._db, leases, lease_seconds=self._options.lease_seconds)
            except Unavailable as error:
                log.warning("plan_renewal_failed", error=str(error.__cause__))
                continue
            except Exception:
                # Caught, because it would end all plans. A lease that lapses is safe: its epoch fences the writes.
                log.exception("plan_renewal_crashed")
                continue
            for pump in pumps:
                if pump.lease.plan_id not in held:
                    pump.wake()

    async def _release(self, leases: Sequence[PlanLease]) -> None:
        if not leases:
            return
        try:
            async with self._db.driver() as driver:
                for lease in leases:
                    await plan_leases.release(driver, lease)
        except Unavailable as error:
            log.warning("plan_release_failed", plans=len(leases), error=str(error.__cause__))

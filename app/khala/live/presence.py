"""Presence: who is here now, told to everybody who follows the thread over a socket, in every process.

What is said here is written, and what is read is told, at most once in a while each; whoever waits gets the newest.
A thread that nothing happens in costs no query, however many follow it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4, uuid5

import structlog

from khala.domain import frames
from khala.domain.errors import Unavailable
from khala.live.access_guard import Guard
from khala.live.encoded_frame import EncodedFrame
from khala.live.observer import Observer, Subscription
from khala.signals.metrics import PRESENT
from khala.store.postgres.database import EVERYTHING, Database
from khala.store.threads import presence
from khala.store.threads.presence import PresenceList, PresenceRow

log = structlog.get_logger()

UPDATE_INTERVAL_SECONDS = 0.2
"""Seconds between two writes, and between two reads."""
HEARTBEAT_INTERVAL_SECONDS = 2.0
"""Seconds between two proofs that this process is alive."""
CHECK_INTERVAL_SECONDS = 0.5
"""Seconds between two looks at who was heard."""
PING_AFTER_SECONDS = 3.0
"""Seconds of silence after which a socket is asked for a sign of life, while it is present somewhere."""
ABSENT_AFTER_SECONDS = 8.0
"""Seconds of silence after which it is not present any more, until it is heard again."""
RETRY_INTERVAL_SECONDS = 0.5
"""Seconds before another try, when the database is away."""
EMPTY_LIST = EncodedFrame(b"")
"""What is told where nobody is."""


class PresenceEntry:
    """One connection's presence in one thread, as it was said last."""

    def __init__(self, subscription: Subscription, state: str) -> None:
        self.subscription = subscription
        self.state = state
        self.away = False
        self.user_id = subscription.caller.user_id

    def row(self, participant_id: UUID) -> PresenceRow:
        """As it is stored; the name is the account's."""
        caller = self.subscription.caller
        return PresenceRow(
            thread_id=self.subscription.topic_id,
            participant_id=participant_id,
            user_id=caller.user_id,
            name=caller.name if caller.user_id is not None else None,
            state=self.state,
        )

    def check(self) -> bool:
        """Whether it has become silent, was heard again, or has lost its account."""
        heartbeat, before = self.subscription.client.heartbeat, (self.away, self.user_id)
        if heartbeat is not None:
            heartbeat.ping_if_silent(PING_AFTER_SECONDS)
            self.away = time.monotonic() - heartbeat.last_heard_at > ABSENT_AFTER_SECONDS
        self.user_id = self.subscription.caller.user_id
        return (self.away, self.user_id) != before


class PresenceService:
    """All of this process who are present, and all who are told."""

    def __init__(self, db: Database, guard: Guard) -> None:
        self.process_id = uuid4()
        self._db = db
        self._guard = guard
        self._here: dict[tuple[Observer, UUID], PresenceEntry] = {}
        self._unwritten: dict[tuple[Observer, UUID], UUID] = {}
        self._watchers: dict[UUID, dict[Observer, Subscription]] = defaultdict(dict)
        self._told: dict[UUID, EncodedFrame] = {}
        self._unread: set[UUID] = set()
        self._to_write = asyncio.Event()
        self._to_read = asyncio.Event()

    def add_watcher(self, subscription: Subscription) -> None:
        """It follows a thread, perhaps in the place of another: it is told who is there, and of every change."""
        client, thread_id = subscription.client, subscription.topic_id
        self._watchers[thread_id][client] = subscription
        here = self._here.get((client, thread_id))
        if here is not None:
            here.subscription = subscription
        if thread_id in self._told:
            self._send_list(subscription, self._told[thread_id])
        else:
            self._mark_unread(thread_id)

    def remove_watcher(self, subscription: Subscription) -> None:
        """It follows no more, and is not present."""
        client, thread_id = subscription.client, subscription.topic_id
        watchers = self._watchers.get(thread_id)
        if watchers is None or watchers.get(client) is not subscription:
            return
        del watchers[client]
        if not watchers:
            del self._watchers[thread_id]
            self._told.pop(thread_id, None)
        self.remove(subscription)

    def update(self, subscription: Subscription, state: str) -> None:
        """It is present, with this state as JSON text; the same again changes nothing."""
        key = (subscription.client, subscription.topic_id)
        here = self._here.get(key)
        if here is None:
            self._here[key] = PresenceEntry(subscription, state)
        elif here.state == state:
            return
        else:
            here.state = state
        self._mark_unwritten(key)

    def remove(self, subscription: Subscription) -> None:
        """It is present no more."""
        key = (subscription.client, subscription.topic_id)
        if self._here.pop(key, None) is not None:
            self._mark_unwritten(key)

    def handle_notification(self, payload: str) -> None:
        """The listener's word that in these threads, or in any, it has changed who is present."""
        named = list(self._watchers) if payload == EVERYTHING else map(UUID, payload.split(","))
        for thread_id in named:
            if thread_id in self._watchers:
                self._mark_unread(thread_id)

    async def run(self) -> None:
        """Write, read, beat and listen, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat_on(self._to_write, self._write_all))
            group.create_task(self._repeat_on(self._to_read, self._read_all))
            group.create_task(self._run_heartbeat())
            group.create_task(self._watch_silence())

    async def close(self) -> None:
        """Take all of this process away: it ends."""
        try:
            async with asyncio.timeout(RETRY_INTERVAL_SECONDS), self._db.driver() as driver:
                await presence.clear(driver, self.process_id)
        except (Unavailable, TimeoutError):
            log.warning("presence_left_behind", process_id=str(self.process_id))

    def _mark_unwritten(self, key: tuple[Observer, UUID]) -> None:
        client, thread_id = key
        PRESENT.set(len(self._here))
        # One of the connection in each thread, which tells nothing of its other threads.
        self._unwritten[key] = uuid5(client.secret, str(thread_id))
        self._to_write.set()

    def _mark_unread(self, thread_id: UUID) -> None:
        self._unread.add(thread_id)
        self._to_read.set()

    def _send_list(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Pass the list on; that nobody is there is news only to who was told of somebody."""
        if body or subscription.had_presence:
            subscription.had_presence = bool(body)
            nobody = frames.PresenceFrame(thread_id=subscription.topic_id, participants=())
            subscription.client.set_presence(subscription, body or EncodedFrame.encode(nobody))

    async def _repeat_on(self, event: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await event.wait()
            event.clear()
            try:
                await work()
            except Unavailable as error:
                log.warning("presence_failed", error=str(error.__cause__))
                event.set()
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            except BaseException:
                event.set()
                raise
            await asyncio.sleep(UPDATE_INTERVAL_SECONDS)

    async def _write_all(self) -> None:
        due, self._unwritten = self._unwritten, {}
        there = {key: self._here[key] for key in due if key in self._here and not self._here[key].away}
        said = [here.row(due[key]) for key, here in there.items()]
        left = [(key[1], participant_id) for key, participant_id in due.items() if key not in there]
        try:
            async with self._db.driver() as driver:
                made = await presence.write(driver, self.process_id, said, left)
        except BaseException:
            self._unwritten = due | self._unwritten
            raise
        if made:
            self._rewrite_all(but=due)

    def _rewrite_all(self, *, but: dict[tuple[Observer, UUID], UUID]) -> None:
        for key in self._here:
            if key not in but:
                self._mark_unwritten(key)

    async def _read_all(self) -> None:
        due, self._unread = self._unread & self._watchers.keys(), set()
        if not due:
            return
        try:
            async with self._db.driver() as driver:
                found = await presence.read_lists(driver, list(due))
        except BaseException:
            self._unread |= due
            raise
        for thread_id, company in found.items():
            if thread_id in self._watchers:
                self._broadcast(thread_id, company)

    def _broadcast(self, thread_id: UUID, company: PresenceList) -> None:
        frame = frames.PresenceFrame(thread_id=thread_id, participants=company.participants, more=company.more)
        body = EncodedFrame.encode(frame) if company.participants else EMPTY_LIST
        told = self._told.get(thread_id)
        if told is not None and told.data == body.data:
            return
        self._told[thread_id] = body
        for subscription in list(self._watchers[thread_id].values()):
            if subscription.access_id != company.access_id:
                # Read under another access than it was let in under: it waits for the guard.
                self._guard.recheck(subscription)
            self._send_list(subscription, body)

    async def _run_heartbeat(self) -> None:
        while True:
            try:
                if self._here or any(self._told.values()):
                    await self._record_heartbeat()
            except Unavailable as error:
                log.warning("beat_failed", error=str(error.__cause__))
            await asyncio.sleep(HEARTBEAT_INTERVAL_SECONDS)

    async def _record_heartbeat(self) -> None:
        async with self._db.driver() as driver:
            if await presence.record_heartbeat(driver, self.process_id):
                self._rewrite_all(but={})
            await presence.clear(driver)

    async def _watch_silence(self) -> None:
        while True:
            for key, here in self._here.items():
                if here.check():
                    self._mark_unwritten(key)
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

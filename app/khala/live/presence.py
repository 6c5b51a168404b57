"""Presence: reports which clients have a thread open to all sockets that follow the thread, in every process.

Writes are batched, and so are reads with their frames: at most one of each per `UPDATE_INTERVAL_SECONDS`, with the
newest state. A thread without changes costs no query, however many clients follow it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4, uuid5

import structlog

from khala.domain import frames
from khala.domain.errors import Unavailable
from khala.live.access_guard import AccessGuard
from khala.live.encoded_frame import EncodedFrame
from khala.live.observer import Observer, Subscription
from khala.signals.metrics import PRESENT
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
)
from khala.store.threads import presence
from khala.store.threads.presence import PresenceList, PresenceRow

log = structlog.get_logger()

UPDATE_INTERVAL_SECONDS = 0.2
"""Seconds between two writes, and between two reads."""
HEARTBEAT_INTERVAL_SECONDS = 2.0
"""Seconds between two heartbeats of this process."""
CHECK_INTERVAL_SECONDS = 0.5
"""Seconds between two checks for silent connections."""
PING_AFTER_SECONDS = 3.0
"""Seconds of silence after which a socket is pinged, if it is present in a thread."""
ABSENT_AFTER_SECONDS = 8.0
"""Seconds of silence after which a connection counts as absent, until it sends something."""
RETRY_INTERVAL_SECONDS = 0.5
"""Seconds before a failed read or write is retried, and the timeout of the clean-up at shutdown."""
EMPTY_LIST = EncodedFrame(b"")
"""The presence list of an empty thread."""


class PresenceEntry:
    """One connection's presence in one thread."""

    def __init__(self, subscription: Subscription, state: str) -> None:
        self.subscription = subscription
        self.state = state
        self.silent = False
        self.user_id = subscription.caller.user_id

    def row(self, participant_id: UUID) -> PresenceRow:
        """The entry as it is stored. The name is the account's."""
        caller = self.subscription.caller
        return PresenceRow(
            thread_id=self.subscription.topic_id,
            participant_id=participant_id,
            user_id=caller.user_id,
            name=caller.name if caller.user_id is not None else None,
            state=self.state,
        )

    def refresh(self) -> bool:
        """Ping a silent connection, and update the entry. Returns whether its silence or its account has changed."""
        heartbeat, before = self.subscription.client.heartbeat, (self.silent, self.user_id)
        if heartbeat is not None:
            heartbeat.ping_if_silent(PING_AFTER_SECONDS)
            self.silent = time.monotonic() - heartbeat.last_received_at > ABSENT_AFTER_SECONDS
        self.user_id = self.subscription.caller.user_id
        return (self.silent, self.user_id) != before


class PresenceService:
    """The presence of this process's connections, and the presence lists that their subscriptions receive."""

    def __init__(self, db: Database, guard: AccessGuard) -> None:
        self.process_id = uuid4()
        self._db = db
        self._guard = guard
        self._entries: dict[tuple[Observer, UUID], PresenceEntry] = {}
        self._unwritten: dict[tuple[Observer, UUID], UUID] = {}
        self._watchers: dict[UUID, dict[Observer, Subscription]] = defaultdict(dict)
        self._lists: dict[UUID, EncodedFrame] = {}
        self._unread: set[UUID] = set()
        self._to_write = asyncio.Event()
        self._to_read = asyncio.Event()

    def add_watcher(self, subscription: Subscription) -> None:
        """Send the thread's presence list to this subscription, now and at every change.

        The subscription may replace another one of the same connection.
        """
        client, thread_id = subscription.client, subscription.topic_id
        self._watchers[thread_id][client] = subscription
        entry = self._entries.get((client, thread_id))
        if entry is not None:
            entry.subscription = subscription
        if thread_id in self._lists:
            self._send_list(subscription, self._lists[thread_id])
        else:
            self._mark_unread(thread_id)

    def remove_watcher(self, subscription: Subscription) -> None:
        """Remove an ended subscription, and its presence."""
        client, thread_id = subscription.client, subscription.topic_id
        watchers = self._watchers.get(thread_id)
        if watchers is None or watchers.get(client) is not subscription:
            return
        del watchers[client]
        if not watchers:
            del self._watchers[thread_id]
            self._lists.pop(thread_id, None)
        self.remove(subscription)

    def update(self, subscription: Subscription, state: str) -> None:
        """Set the connection present with this state, as JSON text. Repeating the call changes nothing."""
        key = (subscription.client, subscription.topic_id)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = PresenceEntry(subscription, state)
        elif entry.state == state:
            return
        else:
            entry.state = state
        self._mark_unwritten(key)

    def remove(self, subscription: Subscription) -> None:
        """Set the connection absent."""
        key = (subscription.client, subscription.topic_id)
        if self._entries.pop(key, None) is not None:
            self._mark_unwritten(key)

    def handle_notification(self, payload: str) -> None:
        """Handle a notification that presence has changed in these threads, or in any thread."""
        thread_ids = list(self._watchers) if payload == EVERYTHING else map(UUID, payload.split(","))
        for thread_id in thread_ids:
            if thread_id in self._watchers:
                self._mark_unread(thread_id)

    async def run(self) -> None:
        """Write, read, send heartbeats and check for silence, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat_on(self._to_write, self._write_all))
            group.create_task(self._repeat_on(self._to_read, self._read_all))
            group.create_task(self._run_heartbeat())
            group.create_task(self._watch_silence())

    async def close(self) -> None:
        """Remove all entries of this process, which is shutting down."""
        try:
            async with asyncio.timeout(RETRY_INTERVAL_SECONDS), self._db.driver() as driver:
                await presence.clear(driver, self.process_id)
        except (Unavailable, TimeoutError):
            log.warning("presence_not_removed", process_id=str(self.process_id))

    def _mark_unwritten(self, key: tuple[Observer, UUID]) -> None:
        client, thread_id = key
        PRESENT.set(len(self._entries))
        # Each thread has another participant id, so that it reveals nothing about the connection's other threads.
        self._unwritten[key] = uuid5(client.secret, str(thread_id))
        self._to_write.set()

    def _mark_unread(self, thread_id: UUID) -> None:
        self._unread.add(thread_id)
        self._to_read.set()

    def _send_list(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Send the list. An empty list is sent only to a subscription whose last list was not empty."""
        if body or subscription.had_presence:
            subscription.had_presence = bool(body)
            empty = frames.PresenceFrame(thread_id=subscription.topic_id, participants=())
            subscription.client.set_presence(subscription, body or EncodedFrame.encode(empty))

    async def _repeat_on(self, event: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await event.wait()
            event.clear()
            try:
                await work()
            except Unavailable as error:
                log.warning("presence_update_failed", error=str(error.__cause__))
                event.set()
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            except BaseException:
                event.set()
                raise
            await asyncio.sleep(UPDATE_INTERVAL_SECONDS)

    async def _write_all(self) -> None:
        due, self._unwritten = self._unwritten, {}
        present = {key: self._entries[key] for key in due if key in self._entries and not self._entries[key].silent}
        rows = [entry.row(due[key]) for key, entry in present.items()]
        absent = [(key[1], participant_id) for key, participant_id in due.items() if key not in present]
        try:
            async with self._db.driver() as driver:
                was_dead = await presence.write(driver, self.process_id, rows, absent)
        except BaseException:
            self._unwritten = due | self._unwritten
            raise
        if was_dead:
            self._rewrite_all(except_for=due)

    def _rewrite_all(self, *, except_for: dict[tuple[Observer, UUID], UUID]) -> None:
        for key in self._entries:
            if key not in except_for:
                self._mark_unwritten(key)

    async def _read_all(self) -> None:
        due, self._unread = self._unread & self._watchers.keys(), set()
        if not due:
            return
        try:
            async with self._db.driver() as driver:
                lists = await presence.read_lists(driver, list(due))
        except BaseException:
            self._unread |= due
            raise
        for thread_id, present in lists.items():
            if thread_id in self._watchers:
                self._broadcast(thread_id, present)

    def _broadcast(self, thread_id: UUID, present: PresenceList) -> None:
        frame = frames.PresenceFrame(thread_id=thread_id, participants=present.participants, more=present.more)
        body = EncodedFrame.encode(frame) if present.participants else EMPTY_LIST
        last = self._lists.get(thread_id)
        if last is not None and last.data == body.data:
            return
        self._lists[thread_id] = body
        for subscription in list(self._watchers[thread_id].values()):
            if subscription.access_id != present.access_id:
                # The list was read at another `access_id` than the subscription's, so its access is checked first.
                self._guard.recheck(subscription)
            self._send_list(subscription, body)

    async def _run_heartbeat(self) -> None:
        while True:
            try:
                if self._entries or any(self._lists.values()):
                    await self._record_heartbeat()
            except Unavailable as error:
                log.warning("presence_heartbeat_failed", error=str(error.__cause__))
            await asyncio.sleep(HEARTBEAT_INTERVAL_SECONDS)

    async def _record_heartbeat(self) -> None:
        async with self._db.driver() as driver:
            if await presence.record_heartbeat(driver, self.process_id):
                self._rewrite_all(except_for={})
            await presence.clear(driver)

    async def _watch_silence(self) -> None:
        while True:
            for key, entry in self._entries.items():
                if entry.refresh():
                    self._mark_unwritten(key)
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

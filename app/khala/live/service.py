"""The live layer's services together: the hubs of both feeds, the access guard and presence."""

from collections.abc import Awaitable, Callable

from khala.live.access_guard import AccessGuard
from khala.live.catch_up_reader import CatchUpReader
from khala.live.delivery_metrics import DeliveryRecorder
from khala.live.fallback_poll import FallbackPoll
from khala.live.feeds import AccountFeed, ThreadFeed
from khala.live.heartbeat import Heartbeat
from khala.live.hub import Hub
from khala.live.observer import Observer, TryWrite
from khala.live.own_appends import OwnAppends
from khala.live.presence import PresenceService
from khala.live.stream_follower import StreamFollower
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    ACCOUNTS_CHANNEL,
    CREDENTIALS_CHANNEL,
    PRESENCE_CHANNEL,
    STREAMS_CHANNEL,
    THREADS_CHANNEL,
)


class LiveService:
    """The services of the live layer. Observers catch up through `db`, all other reads use `background_db`."""

    def __init__(self, db: Database, background_db: Database) -> None:
        reader = CatchUpReader(db)
        self.guard = AccessGuard(background_db)
        self.deliveries = DeliveryRecorder(background_db)
        self.threads = Hub(background_db, reader, ThreadFeed(), self.guard, self.deliveries)
        self.own_appends = OwnAppends(self.threads)
        self.accounts = Hub(background_db, reader, AccountFeed(), self.guard, self.deliveries)
        self.presence = PresenceService(background_db, self.guard)
        self.streams = StreamFollower(db)
        self.poll = FallbackPoll(background_db, self._is_watched, self._refresh_all)

    @property
    def handlers(self) -> dict[str, Callable[[str], None]]:
        """The handlers of notifications, by channel."""
        return {
            THREADS_CHANNEL: self.threads.handle_notification,
            ACCOUNTS_CHANNEL: self.accounts.handle_notification,
            CREDENTIALS_CHANNEL: self.guard.handle_notification,
            PRESENCE_CHANNEL: self.presence.handle_notification,
            STREAMS_CHANNEL: self.streams.handle_notification,
        }

    @property
    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run for as long as the process runs, by name."""
        return {
            "hub": self.threads.run,
            "accounts": self.accounts.run,
            "guard": self.guard.run,
            "presence": self.presence.run,
            "poll": self.poll.run,
            "deliveries": self.deliveries.run,
        }

    def create_observer(self, heartbeat: Heartbeat | None = None, write: TryWrite | None = None) -> Observer:
        """An observer for a new connection. Its pump sends the frames that `write` does not take."""
        return Observer(heartbeat=heartbeat, write=write, on_ended=self.presence.remove_watcher)

    def close(self, client: Observer) -> None:
        """End all subscriptions of the observer, because its connection has ended."""
        for hub in (self.threads, self.accounts):
            hub.close(client)

    def _is_watched(self) -> bool:
        return self.threads.is_watched or self.accounts.is_watched or self.streams.is_watched

    def _refresh_all(self) -> None:
        for watcher in (self.threads, self.accounts, self.guard, self.streams):
            watcher.refresh_all()

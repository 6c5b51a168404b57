"""The live layer as a whole: the hubs of both feeds, the access guard and presence, for `main` and the API."""

from collections.abc import Awaitable, Callable

from khala.live.access_guard import Guard
from khala.live.catch_up_reader import CatchUpReader
from khala.live.delivery_metrics import DeliveryRecorder
from khala.live.fallback_poll import FallbackPoll
from khala.live.feeds import AccountFeed, ThreadFeed
from khala.live.heartbeat import Heartbeat
from khala.live.hub import Hub
from khala.live.observer import Observer, TryWrite
from khala.live.presence import PresenceService
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    ACCOUNTS_CHANNEL,
    CREDENTIALS_CHANNEL,
    PRESENCE_CHANNEL,
    THREADS_CHANNEL,
)


class LiveService:
    """The hubs read through `inner`; observers are authorised, and catch up, through `db`."""

    def __init__(self, db: Database, inner: Database) -> None:
        reader = CatchUpReader(db)
        self.guard = Guard(inner)
        self.deliveries = DeliveryRecorder(inner)
        self.threads = Hub(inner, reader, ThreadFeed(), self.guard, self.deliveries)
        self.accounts = Hub(inner, reader, AccountFeed(), self.guard, self.deliveries)
        self.presence = PresenceService(inner, self.guard)
        self.poll = FallbackPoll(inner, self._is_watched, self._refresh_all)

    @property
    def handlers(self) -> dict[str, Callable[[str], None]]:
        """By channel, the handler of its notifications."""
        return {
            THREADS_CHANNEL: self.threads.handle_notification,
            ACCOUNTS_CHANNEL: self.accounts.handle_notification,
            CREDENTIALS_CHANNEL: self.guard.handle_notification,
            PRESENCE_CHANNEL: self.presence.handle_notification,
        }

    @property
    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops that run as long as the process does, by name."""
        return {
            "hub": self.threads.run,
            "accounts": self.accounts.run,
            "guard": self.guard.run,
            "presence": self.presence.run,
            "poll": self.poll.run,
            "deliveries": self.deliveries.run,
        }

    def create_observer(self, heartbeat: Heartbeat | None = None, write: TryWrite | None = None) -> Observer:
        """An observer for a new connection, without subscriptions. Its pump sends the frames that `write` does not."""
        return Observer(heartbeat=heartbeat, write=write, on_left=self.presence.remove_watcher)

    def close(self, client: Observer) -> None:
        """End all subscriptions of the observer: its connection is gone."""
        for hub in (self.threads, self.accounts):
            hub.close(client)

    def _is_watched(self) -> bool:
        return self.threads.is_watched or self.accounts.is_watched

    def _refresh_all(self) -> None:
        for watcher in (self.threads, self.accounts, self.guard):
            watcher.refresh_all()

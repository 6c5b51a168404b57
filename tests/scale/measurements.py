"""All measurements in the order in which they run: those that change the database come last."""

from collections.abc import Awaitable, Callable, Sequence

from tests.scale.console_measurements import measure_console
from tests.scale.figures import Figure
from tests.scale.housekeeping_measurements import measure_blob_collection, measure_purge
from tests.scale.plan_measurements import measure_plans
from tests.scale.queue_measurements import measure_account_feed, measure_claims, measure_queue_status
from tests.scale.search_measurements import measure_search
from tests.scale.stage import ScaleStage
from tests.scale.storage_measurements import measure_message_bytes, measure_packing
from tests.scale.thread_measurements import (
    measure_export,
    measure_older_messages,
    measure_subscription,
    measure_thread_list,
    measure_verification,
)
from tests.scale.write_measurements import measure_locked_thread, measure_sends, measure_wal, measure_wal_by_layout

MEASUREMENTS: dict[str, Callable[[ScaleStage], Awaitable[list[Figure]]]] = {
    "bytes": measure_message_bytes,
    "threads": measure_thread_list,
    "before": measure_older_messages,
    "subscribe": measure_subscription,
    "export": measure_export,
    "verify": measure_verification,
    "blobs": measure_blob_collection,
    "feed": measure_account_feed,
    "search": measure_search,
    "plans": measure_plans,
    "console": measure_console,
    "claim": measure_claims,
    "status": measure_queue_status,
    "purge": measure_purge,
    "wal": measure_wal,
    "gap": measure_locked_thread,
    "sends": measure_sends,
    "packing": measure_packing,
    "layouts": measure_wal_by_layout,
}
"""By the name that selects a measurement."""
NEEDED_BEFORE = {"status": ("claim",), "wal": ("purge",), "layouts": ("packing", "wal", "purge")}
"""Measurements that prepare the database for another one."""


def chosen_measurements(only: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """These measurements except the others, in order, with those that have to come before them."""
    wanted = set(only).difference(without)
    for name in list(wanted):
        wanted.update(NEEDED_BEFORE.get(name, ()))
    return [name for name in MEASUREMENTS if name in wanted]

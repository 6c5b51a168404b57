"""Limits of invitations, and the time until a user who has declined one may be invited again."""

from datetime import datetime, timedelta

import msgspec

from khala.domain.errors import Conflict

MAX_MEMBERS = 200
"""Members of one thread, including invited users."""
MAX_RECEIVED = 100
"""Open invitations of one user."""
MAX_FROM_ONE_SENDER = 5
"""Open invitations of one user from the same sender. All senders without an account count as one."""
MAX_SENT_PER_DAY = 100
"""Invitations from one sender in a day (UTC), including withdrawn ones."""
MAX_SENT_TO_ONE_PER_DAY = 5
"""Invitations from one sender to the same user in a day (UTC)."""
DECLINE_DURATION = timedelta(days=30)
"""After a decline, the time in which nobody may invite the user to that thread, nor its sender to any other."""


class InvitationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a user's invitations at one moment, which decide whether the user may receive another one."""

    received: int
    """Open invitations."""
    from_sender: int
    """Open invitations from the same sender."""
    declined_at: datetime | None
    """The last time that the user declined an invitation to the same thread or from the same sender."""


def require_invitable(counts: InvitationCounts, now: datetime) -> None:
    """Raise `Conflict` if the user may not receive another invitation."""
    if counts.declined_at is not None and now < counts.declined_at + DECLINE_DURATION:
        raise Conflict(
            f"This user has declined an invitation of yours, or to this thread, within {DECLINE_DURATION.days} days."
            " You can send them a share link instead."
        )
    if counts.from_sender >= MAX_FROM_ONE_SENDER:
        raise Conflict(f"This user has {MAX_FROM_ONE_SENDER} open invitations from you. Wait for an answer.")
    if counts.received >= MAX_RECEIVED:
        raise Conflict("This user has too many open invitations. You can send them a share link instead.")
